"""Kernels' temporaries (csrc/runtime/workspace.h) and convolutions whose batch is shared out among threads."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from tests.conftest import RunPython
from torch_simdev import memory

DEV = "simdev"


@pytest.mark.parametrize(
    ("batch", "inputs", "outputs", "size", "kernel", "groups"),
    [
        (64, 1, 64, 64, 1, 1),  # weight and bias have as many elements: their sums must not share memory
        (64, 64, 64, 32, 1, 64),
        (64, 32, 64, 8, 3, 1),
        (80, 16, 16, 16, 3, 1),
        (65, 16, 16, 16, 3, 1),  # cannot be shared out
    ],
)
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_convolutions_of_large_batches(
    batch: int,
    inputs: int,
    outputs: int,
    size: int,
    kernel: int,
    groups: int,
    memory_format: torch.memory_format,
) -> None:
    torch.manual_seed(0)
    values = [
        torch.randn(batch, inputs, size, size).to(memory_format=memory_format),
        torch.randn(outputs, inputs // groups, kernel, kernel),
        torch.randn(outputs),
    ]
    results = {}
    for device in ("cpu", DEV):
        leaves = [value.clone().to(device).requires_grad_() for value in values]
        result = F.conv2d(*leaves, padding=kernel // 2, groups=groups)
        result.square().mean().backward()
        results[device] = [result.detach(), *(leaf.grad for leaf in leaves)]
    for actual, expected in zip(results[DEV], results["cpu"], strict=True):
        assert actual.stride() == expected.stride()
        torch.testing.assert_close(actual.cpu(), expected, rtol=1e-4, atol=1e-5 * expected.abs().max().item())


def test_temporaries_are_kept_and_given_back_by_empty_cache() -> None:
    images, weight = (
        torch.randn(4, 8, 64, 64, device=DEV).double(),
        torch.randn(8, 8, 7, 7, device=DEV).double(),
    )
    memory.empty_cache()
    before = memory.mem_get_info()[0]
    F.conv2d(images, weight)
    torch.simdev.synchronize()
    memory.empty_cache()
    assert memory.mem_get_info()[0] == before


def test_temporaries_of_many_sizes_do_not_add_up(run_python: RunPython) -> None:
    code = """
import torch
from torch.nn import functional as F
torch.simdev.init()
before = torch.simdev.mem_get_info()[0]
weight = torch.randn(16, 8, 5, 5, device="simdev", dtype=torch.double)
for size in range(8, 120, 3):  # the last needs 76 MiB to unfold its images
    F.conv2d(torch.randn(4, 8, size, size, device="simdev", dtype=torch.double), weight)
    torch.simdev.synchronize()
print((before - torch.simdev.mem_get_info()[0]) >> 20)
"""
    assert int(run_python(code).stdout) < 4 * 76 + 32  # twice for rounding up, twice for all smaller sizes


def test_queued_kernels_do_not_take_what_an_allocation_needs(run_python: RunPython) -> None:
    code = """
import torch
from torch.nn import functional as F
images = torch.randn(4, 8, 64, 64, device="simdev", dtype=torch.double)
weight = torch.randn(8, 8, 7, 7, device="simdev", dtype=torch.double)
for repetition in range(12):
    for _ in range(repetition % 6 + 1):
        result = F.conv2d(images, weight)
    torch.empty(200 << 20, dtype=torch.uint8, device="simdev")
    torch.simdev.synchronize()
    torch.simdev.empty_cache()
torch.testing.assert_close(result.cpu(), F.conv2d(images.cpu(), weight.cpu()))
"""
    run_python(code, SIMDEV_MEMORY_LIMIT="256M")


def test_host_results_do_not_overtake_queued_work(run_python: RunPython) -> None:
    """A host fallback's result may get memory that other threads' queued work still uses."""
    code = """
import threading, torch
stop = threading.Event()
def busy():
    while not stop.is_set():
        x = torch.zeros(8, device="simdev", dtype=torch.long)
        for _ in range(20):
            x.add_(1)
        del x
threads = [threading.Thread(target=busy) for _ in range(2)]
for thread in threads: thread.start()
x = torch.tensor([0, 1, 2, 0, 5, 0, 7], device="simdev")
wrong = sum(x.nonzero().cpu().flatten().tolist() != [1, 2, 4, 6] for _ in range(20_000))
stop.set()
for thread in threads: thread.join()
print(wrong)
"""
    assert int(run_python(code).stdout) == 0


def test_an_error_under_launch_blocking_is_raised_at_the_call(run_python: RunPython) -> None:
    code = """
import torch
x = torch.ones(3, device="simdev")
for _ in range(3):
    try:
        x[torch.tensor([9], device="simdev")]
    except torch.AcceleratorError as error:
        print("index 9 is out of bounds" in str(error), "aten::index" in str(error))
print((x + 1).tolist())
"""
    result = run_python(code, SIMDEV_LAUNCH_BLOCKING="1")
    assert result.stdout.split("\n")[:4] == ["True True"] * 3 + ["[2.0, 2.0, 2.0]"]
