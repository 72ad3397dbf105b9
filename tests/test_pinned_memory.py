"""Pinned host memory: what is pinned, when a block may be reused, its statistics, and who finds it."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import torch_simdev as simdev

MB = 1 << 20


@pytest.fixture(autouse=True)
def clean_slate() -> Iterator[None]:
    """Each test starts with nothing cached, and with statistics that start from there."""
    simdev.init()
    reset()
    yield
    reset()


def reset() -> None:
    gc.collect()
    simdev.synchronize()
    simdev.empty_host_cache()
    simdev.reset_accumulated_host_memory_stats()
    simdev.reset_peak_host_memory_stats()


def pinned(size: int, value: int = 0) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, pin_memory=True).fill_(value)


# --- What is pinned -----------------------------------------------------------------------------------------


def test_only_memory_of_the_allocator_is_pinned():
    plain = torch.ones(1000)
    assert not plain.is_pinned()
    x = plain.pin_memory()
    assert x.is_pinned()
    assert x.device == torch.device("cpu")
    assert x.equal(plain)
    assert x[100:200].is_pinned()
    assert x.view(10, 100).t().is_pinned()
    assert x.pin_memory().data_ptr() == x.data_ptr()
    assert x.untyped_storage().is_pinned()
    assert not x.clone().is_pinned()
    assert not torch.ones(1000, device="simdev").is_pinned()


@pytest.mark.filterwarnings("ignore:The argument 'device'")
@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.empty(10, pin_memory=True),
        lambda: torch.zeros(10, pin_memory=True),
        lambda: torch.arange(10, pin_memory=True),
        lambda: torch.randn(3, 4, pin_memory=True),
        lambda: torch.tensor([1.0, 2.0], pin_memory=True),
        lambda: torch.empty_like(torch.ones(3), pin_memory=True),
        lambda: torch.empty_strided((2, 3), (1, 2), pin_memory=True),
        lambda: torch.ones(3).pin_memory("simdev"),
        lambda: torch.UntypedStorage(10).pin_memory(),
    ],
)
def test_ways_to_pin(make):
    assert make().is_pinned()


def test_device_memory_cannot_be_pinned():
    with pytest.raises(RuntimeError, match="cannot pin"):
        torch.ones(3, device="simdev").pin_memory()
    with pytest.raises(RuntimeError, match=r"[Oo]nly dense CPU tensors can be pinned"):
        torch.empty(3, device="simdev", pin_memory=True)


def test_an_empty_pinned_tensor():
    x = torch.empty(0, pin_memory=True)
    assert x.data_ptr() == 0
    assert simdev.host_memory_stats()["active_requests.current"] == 0
    assert x.to("simdev", non_blocking=True).shape == (0,)


def test_asking_initialises_nothing(run_python):
    run_python(
        """
import torch
assert not torch.ones(3).is_pinned()
assert torch.simdev.host_memory_stats() == {}
torch.accelerator.empty_host_cache()
assert not torch.simdev.is_initialized()
assert torch.ones(3).pin_memory().is_pinned()
"""
    )


def test_more_than_there_is(run_python):
    run_python(
        """
import torch
x = torch.ones(3).pin_memory()
for size in (2**45, 2**60):
    try:
        torch.empty(size, dtype=torch.uint8, pin_memory=True)
        raise SystemExit("no error")
    except torch.OutOfMemoryError as error:
        assert "out of pinned host memory" in str(error), error
assert torch.ones(5).pin_memory().sum() == 5 and x.sum() == 3
"""
    )


# --- Reuse --------------------------------------------------------------------------------------------------


def test_blocks_are_reused_by_power_of_two():
    x = pinned(3000)
    pointer = x.data_ptr()
    del x
    y = pinned(4096)
    assert y.data_ptr() == pointer
    assert pinned(2048).data_ptr() != pointer
    assert simdev.host_memory_stats()["num_host_alloc"] == 2


@pytest.mark.parametrize("direction", ["host to device", "device to host"])
def test_a_block_is_not_reused_before_the_copy_that_uses_it(direction):
    """The copy waits behind a long kernel when its pinned memory is freed and the next tensors want some."""
    simdev._sleep(100)
    if direction == "host to device":
        x = pinned(1000, 3)
        y = x.to("simdev", non_blocking=True)
    else:
        y = torch.full((1000,), 3, dtype=torch.uint8, device="simdev")
        x = pinned(1000)
        x.copy_(y, non_blocking=True)
    pointer = x.data_ptr()
    del x
    others = [pinned(1000, 7) for _ in range(4)]
    assert pointer not in {other.data_ptr() for other in others}
    assert not simdev.current_stream().query()
    assert y.eq(3).all().item()
    assert all(other.eq(7).all() for other in others)
    assert pinned(1000).data_ptr() == pointer


def test_a_blocking_copy_leaves_the_block_free():
    x = pinned(1000, 3)
    pointer = x.data_ptr()
    y = x.to("simdev")
    del x
    assert pinned(1000).data_ptr() == pointer
    assert y.eq(3).all().item()


def test_views_and_side_streams_hold_the_block():
    side = simdev.Stream()
    x = pinned(1000, 3)
    pointer = x.data_ptr()
    simdev._sleep(100, side)
    with side:
        y = x[500:].to("simdev", non_blocking=True)
    del x
    others = [pinned(1000, 7) for _ in range(3)]
    assert pointer not in {other.data_ptr() for other in others}
    side.synchronize()
    with side:
        assert y.eq(3).all().item()


def test_empty_host_cache_keeps_what_is_in_use():
    x, y = pinned(1000, 3), pinned(1000)
    del y
    stats = simdev.host_memory_stats()
    assert stats["allocations.current"] == 2
    assert stats["active_requests.current"] == 1
    torch.accelerator.empty_host_cache()
    stats = simdev.host_memory_stats()
    assert stats["allocations.current"] == stats["active_requests.current"] == stats["num_host_free"] == 1
    assert x.is_pinned()
    assert x.eq(3).all()
    simdev._sleep(50)
    z = x.to("simdev", non_blocking=True)
    del x
    simdev.empty_host_cache()  # the copy is not done
    assert simdev.host_memory_stats()["allocations.current"] == 1
    assert z.eq(3).all().item()
    simdev.empty_host_cache()
    assert simdev.host_memory_stats()["allocations.current"] == 0


# --- Statistics ---------------------------------------------------------------------------------------------


def test_statistics():
    x, y = pinned(3000), pinned(3000)
    del y
    stats = simdev.host_memory_stats()
    assert stats["active_requests.current"] == 1
    assert stats["active_requests.peak"] == stats["active_requests.allocated"] == 2
    assert stats["active_bytes.current"] == 4096
    assert stats["allocated_bytes.current"] == stats["active_bytes.peak"] == 8192
    assert stats["num_host_alloc"] == stats["host_alloc_time.count"] == stats["allocations.allocated"] == 2
    assert stats["host_alloc_time.max"] >= stats["host_alloc_time.avg"] >= stats["host_alloc_time.min"] >= 0
    assert stats["num_host_free"] == 0
    assert list(stats) == sorted(stats)
    assert simdev.host_memory_stats_as_nested_dict()["active_bytes"]["current"] == 4096
    simdev.reset_peak_host_memory_stats()
    simdev.reset_accumulated_host_memory_stats()
    stats = simdev.host_memory_stats()
    assert stats["active_requests.peak"] == 1
    assert stats["active_requests.allocated"] == stats["host_alloc_time.count"] == 0
    assert stats["allocated_bytes.current"] == 8192
    del x


# --- Who uses it --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
def test_data_loader(workers):
    data = TensorDataset(torch.arange(64.0).view(16, 4), torch.arange(16))
    loader = DataLoader(data, batch_size=4, pin_memory=True, num_workers=workers)
    total = 0
    for x, y in loader:
        assert x.is_pinned()
        assert y.is_pinned()
        total += (
            x.to("simdev", non_blocking=True).sum().item() + y.to("simdev", non_blocking=True).sum().item()
        )
    assert total == 63 * 64 / 2 + 15 * 16 / 2


def test_copies_overlap_with_the_host():
    x = pinned(8 * MB, 1)
    simdev._sleep(100)
    y = x.to("simdev", non_blocking=True)
    back = pinned(8 * MB)
    back.copy_(y, non_blocking=True)
    assert not simdev.current_stream().query()
    assert not back.any()
    simdev.synchronize()
    assert back.eq(1).all()


def test_stress_with_threads():
    """Six threads, a stream each: pinned memory carries numbers to the device and back, freed on the way."""
    errors: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            with simdev.Stream() as stream:
                for i in range(200):
                    size, value = 100 + 700 * (i % 9), (seed * 31 + i) % 251
                    on_device = pinned(size, value).to("simdev", non_blocking=True)
                    back = pinned(size, 255)
                    back.copy_(on_device, non_blocking=True)
                    del on_device
                    stream.synchronize()
                    assert back.eq(value).all()
        except BaseException as error:
            errors.append(error)
            raise

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not errors
    gc.collect()
    simdev.empty_host_cache()
    assert simdev.host_memory_stats()["allocations.current"] == 0


def test_a_forked_child_can_read_and_drop_pinned_tensors(run_python):
    result = run_python(
        """
import os, sys, torch
x = torch.arange(1000).pin_memory()
y = x.to("simdev", non_blocking=True)
pid = os.fork()
if pid == 0:
    ok = x.sum() == 499500
    del x, y
    try:
        torch.ones(3).pin_memory()
        os._exit(1)
    except RuntimeError as error:
        ok = ok and "forked subprocess" in str(error)
    sys.exit(0 if ok else 2)
_, status = os.waitpid(pid, 0)
assert os.waitstatus_to_exitcode(status) == 0, status
assert y.sum().item() == 499500 and x.sum() == 499500
print("parent is well")
"""
    )
    assert "parent is well" in result.stdout


def test_the_process_ends_well_with_live_pinned_tensors(run_python):
    run_python(
        """
import torch, torch_simdev as simdev
torch.kept = torch.ones(1000).pin_memory()
simdev._sleep(30)
torch.also_kept = torch.kept.to("simdev", non_blocking=True)
class Node: pass
node = Node(); node.me = node; node.x = torch.ones(1000).pin_memory()
"""
    )
