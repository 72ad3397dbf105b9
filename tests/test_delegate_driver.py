"""The driver over another device of PyTorch, which CUDA's is, with the CPU for that device: SIMDEV_DRIVER=delegate.

A process has one driver.  In a run with another one, a child process runs this file.
"""

from __future__ import annotations

import copy
import io
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from tests.conftest import RunPython
from torch_simdev import _C, backing

HERE = os.environ.get("SIMDEV_DRIVER") == "delegate"
with_delegate = pytest.mark.skipif(not HERE, reason="runs in a child process with SIMDEV_DRIVER=delegate")


@pytest.mark.skipif(HERE, reason="this is that process")
@pytest.mark.timeout(400)
def test_all_of_this_in_a_process_with_a_delegate_driver() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", __file__]
    environment = {**os.environ, "SIMDEV_DRIVER": "delegate", "SIMDEV_DEVICE_COUNT": "2"}
    root = Path(__file__).parent.parent
    result = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True, timeout=380)
    assert result.returncode == 0, result.stdout + result.stderr
    assert " passed" in result.stdout


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(5, 7, device="simdev")


# --- The choice ---------------------------------------------------------------------------------------------


def test_asking_for_cuda_without_one_says_what_is_missing(run_python: RunPython) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    result = run_python(
        "import torch; print(torch.simdev.is_available()); torch.empty(1, device='simdev')",
        check=False,
        SIMDEV_DRIVER="cuda",
    )
    assert result.returncode != 0
    assert 'SIMDEV_DRIVER="cuda": ' in result.stderr.splitlines()[-1]
    assert "without CUDA" in result.stderr or "no NVIDIA GPU" in result.stderr


@pytest.mark.parametrize(
    ("built", "gpus", "driver", "reason"),
    [
        (False, 0, None, "was built without CUDA; install a CUDA build of it."),
        (True, 0, 13000, "no NVIDIA GPU is visible to this process"),
        (
            True,
            1,
            11040,
            "the NVIDIA driver is too old: it goes up to CUDA 11.4, and this PyTorch needs 12.6",
        ),
        (True, 1, 12020, None),  # minor versions of one major version are compatible
        (True, 1, 13000, None),
        (True, 1, None, None),  # its library is elsewhere: CUDA's own start has the last word
    ],
)
def test_why_cuda_cannot_be_had(
    built: bool, gpus: int, driver: int | None, reason: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: built)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.version, "cuda", "12.6")
    monkeypatch.setattr(backing, "_cuda_driver_version", lambda: driver)
    found = backing.cuda_unavailable_reason()
    assert found is None if reason is None else found is not None and reason in found and "\n" not in found


def test_a_gpu_that_cannot_be_used_is_not_taken_and_one_line_says_why(run_python: RunPython) -> None:
    code = """
import torch, torch_simdev.backing
torch.backends.cuda.is_built, torch.cuda.device_count, torch.version.cuda = lambda: True, lambda: 1, "13.0"
torch_simdev.backing._cuda_driver_version = lambda: 12020
print(torch.simdev.driver())
"""
    assert run_python(code, SIMDEV_DRIVER="auto").stdout.split() == ["simulator"]
    forced = run_python(code, check=False, SIMDEV_DRIVER="cuda").stderr.splitlines()[-1]
    assert forced.startswith(
        'ValueError: SIMDEV_DRIVER="cuda": the NVIDIA driver is too old: it goes up to CUDA 12.2'
    )
    assert "SIMDEV_DRIVER=simulator runs without one." in forced


def test_an_unknown_driver_names_the_possible_ones(run_python: RunPython) -> None:
    result = run_python("import torch; torch.simdev.driver()", check=False, SIMDEV_DRIVER="warpdrive")
    assert "auto (the default" in result.stderr and "cuda" in result.stderr and "simulator" in result.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="ELF only")
def test_autograd_can_be_told_which_accelerator_a_node_is_on(run_python: RunPython) -> None:
    # What csrc/runtime/two_accelerators.cpp does in a PyTorch that has CUDA.  A redirected call that nobody answers
    # goes to the original, which must not be redirected itself.
    code = """
import torch
assert torch.simdev._C._accelerator_imports(redirect=True) >= 1
assert torch.accelerator.current_accelerator().type == "simdev"
x = torch.ones(3, device="simdev", requires_grad=True)
(x * x).sum().backward()
print(x.grad.tolist(), torch.accelerator.current_device_index())
"""
    assert run_python(code).stdout == "[2.0, 2.0, 2.0] 0\n"


def test_the_simulated_chip_has_no_backing_tensors_to_show(run_python: RunPython) -> None:
    code = "import torch; torch.simdev.{}(torch.ones(1{}))"
    for function, device in (("to_backing", ", device='simdev'"), ("from_backing", "")):
        result = run_python(code.format(function, device), check=False, SIMDEV_DRIVER="simulator")
        assert "NotImplementedError: The driver 'simulator' runs on no other device" in result.stderr


# --- Conversion ---------------------------------------------------------------------------------------------


@with_delegate
def test_conversion_shares_memory_and_layout(x: torch.Tensor) -> None:
    for view in (x, x.t(), x[1:, ::2], x[0], x.expand(3, 5, 7), x.to(torch.complex64).conj(), x[:0]):
        backing = torch.simdev.to_backing(view)
        assert (
            backing.device.type == "cpu" and backing.shape == view.shape and backing.stride() == view.stride()
        )
        assert backing.data_ptr() == view.data_ptr() and backing.is_conj() == view.is_conj()
        assert (
            backing.untyped_storage().device.type == "cpu" and view.untyped_storage().device.type == "simdev"
        )
        back = torch.simdev.from_backing(backing)
        assert back.device == view.device and torch.equal(back, view)
    backing = torch.simdev.to_backing(x)
    backing.fill_(3)
    assert x.cpu().eq(3).all()
    x.mul_(2)
    assert backing.eq(6).all()


@with_delegate
def test_conversion_keeps_memory_alive() -> None:
    cpu = torch.arange(1000.0)
    ours = torch.simdev.from_backing(cpu)
    del cpu
    backing = torch.simdev.to_backing(ours)
    del ours
    assert torch.equal(backing, torch.arange(1000.0))


@with_delegate
def test_gradients_do_not_cross_and_conversions_say_so() -> None:
    ours = torch.randn(4, device="simdev", requires_grad=True)
    theirs = torch.randn(4, requires_grad=True)
    for function, tensor in ((torch.simdev.to_backing, ours), (torch.simdev.from_backing, theirs)):
        with pytest.raises(RuntimeError, match="gradients do not flow between simdev and cpu"):
            function(tensor)
        with torch.no_grad():
            assert not function(tensor).requires_grad
        assert function(tensor.detach()).data_ptr() == tensor.data_ptr()


@with_delegate
def test_autograd_sees_writes_through_either(x: torch.Tensor) -> None:
    theirs = torch.simdev.to_backing(x)
    before = x._version
    theirs.add_(1)
    assert x._version == before + 1


@with_delegate
def test_conversion_refuses_other_devices(x: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="Expected a simdev tensor"):
        torch.simdev.to_backing(torch.ones(1))
    with pytest.raises(ValueError, match="Expected a tensor of cpu"):
        torch.simdev.from_backing(torch.ones(1, device="meta"))


# --- Operators ----------------------------------------------------------------------------------------------


@with_delegate
def test_results_are_ours_and_own_their_memory(x: torch.Tensor) -> None:
    for result in (
        x + 1,
        x.sum(),
        x.max(0).values,
        x.nonzero(),
        *x.split(2),
        torch.cat([x, x]),
        x.unique(),
        x.t() @ x,
    ):
        assert result.device == torch.device("simdev", 0)
        assert result.untyped_storage().device == torch.device("simdev", 0)
        assert not result.is_set_to(x)
    assert torch.simdev.fallbacks() == {}


@with_delegate
def test_results_that_are_an_argument_stay_that_argument(x: torch.Tensor) -> None:
    out = torch.empty(0, device="simdev")
    assert torch.add(x, x, out=out) is out and out.shape == x.shape
    assert torch.equal(out.cpu(), 2 * x.cpu())
    assert x.add_(1) is x and torch.relu_(x) is x
    values, indices = torch.empty(0, device="simdev"), torch.empty(0, dtype=torch.long, device="simdev")
    torch.max(x, 0, out=(values, indices))
    assert torch.equal(values.cpu(), x.cpu().max(0).values) and torch.equal(
        indices.cpu(), x.cpu().max(0).indices
    )


@with_delegate
def test_memory_that_is_used_again_and_again_is_seen_right_each_time() -> None:
    """The tensor of the device underneath is kept between calls, whatever views and types come next."""
    before = torch.simdev.memory_allocated()
    host = torch.arange(1.0, 13.0)
    ours = host.to("simdev")
    calls: list[Callable[[torch.Tensor], torch.Tensor]] = [
        lambda t: t + 1,
        lambda t: t.view(3, 4).t().sum(0),
        lambda t: t[2:7:2] * 2,
        lambda t: t.view(torch.int32) + 1,
        lambda t: t.expand(2, 12).sum(1),
        lambda t: torch.cat([t, t[:3]]),
        lambda t: torch._foreach_mul([t, t, t[1:]], 2)[2],
        lambda t: t.add_(1).sub_(1),
    ]
    for _ in range(8):
        for call in calls:
            assert torch.equal(call(ours).cpu(), call(host))
    with torch.inference_mode():
        assert torch.equal((ours * 3).cpu(), host * 3)
    ours.resize_(20).fill_(5)
    assert (ours + 1).cpu().eq(6).all() and ours.shape == (20,)
    del ours
    assert torch.simdev.memory_allocated() == before


@with_delegate
def test_out_takes_over_new_memory_for_all_views_of_its_storage() -> None:
    out = torch.empty(2, device="simdev")
    torch.mul(torch.ones(100, device="simdev"), 3, out=out.resize_(0))
    assert out.shape == (100,) and out.untyped_storage().nbytes() >= 400
    assert out.cpu().eq(3).all() and torch.simdev.to_backing(out).eq(3).all()
    out.resize_(3).fill_(4)
    assert out.cpu().tolist() == [4, 4, 4]


@with_delegate
def test_arguments_that_overlap_are_refused() -> None:
    base = torch.arange(10.0, device="simdev")
    with pytest.raises(RuntimeError, match="single memory location"):
        torch.add(base[:-1], 1, out=base[1:])


@with_delegate
def test_errors_name_the_operator_and_the_device_works_on(x: torch.Tensor) -> None:
    with pytest.raises(RuntimeError, match=r"size of tensor .* \(in aten::add.Tensor on simdev:0\)"):
        x + x[:, :3]
    with pytest.raises(IndexError, match=r"in aten::index_select|in aten::gather|out of range"):
        x.index_select(0, torch.tensor([99], device="simdev"))
    assert torch.equal((x + x).cpu(), 2 * x.cpu())


@with_delegate
def test_devices_are_told_apart() -> None:
    a, b = torch.ones(3, device="simdev:0"), torch.ones(3, device="simdev:1")
    assert (a + 1).device.index == 0 and (b * 2).device.index == 1
    assert torch.zeros_like(b).device.index == 1
    moved = a.to("simdev:1")
    assert moved.device.index == 1 and moved.data_ptr() != a.data_ptr() and torch.equal(moved.cpu(), a.cpu())
    with torch.simdev.device(1):
        assert torch.empty(1, device="simdev").device.index == 1
    assert torch.simdev.device_count() == 2


@with_delegate
def test_layers_train_as_on_the_device_underneath() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.MaxPool2d(2), torch.nn.GroupNorm(2, 8),  # noqa: E501
        torch.nn.Flatten(), torch.nn.Linear(72, 16), torch.nn.LayerNorm(16), torch.nn.GELU(), torch.nn.Linear(16, 4),
    )  # fmt: skip
    ours = copy.deepcopy(model).to("simdev")
    images, labels = torch.randn(4, 3, 8, 8), torch.tensor([0, 1, 2, 3])
    losses: dict[str, list[float]] = {"cpu": [], "simdev": []}
    for device, net in (("cpu", model), ("simdev", ours)):
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2, foreach=True)
        for _ in range(4):
            loss = F.cross_entropy(net(images.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses[device].append(loss.item())
    torch.testing.assert_close(losses["simdev"], losses["cpu"])


@with_delegate
@pytest.mark.parametrize("causal", [False, True])
def test_attention_and_recurrence(causal: bool) -> None:
    q = torch.randn(2, 4, 6, 12)
    ours = q.to("simdev").requires_grad_()
    theirs = q.clone().requires_grad_()
    for tensor in (ours, theirs):
        F.scaled_dot_product_attention(tensor, tensor, tensor, is_causal=causal).sum().backward()
    torch.testing.assert_close(ours.grad.cpu(), theirs.grad, rtol=1e-4, atol=1e-4)
    for kind in (torch.nn.LSTM, torch.nn.GRU):
        torch.manual_seed(1)
        layer = kind(12, 5, batch_first=True, bidirectional=True)
        moved = copy.deepcopy(layer).to("simdev")
        torch.testing.assert_close(moved(q[:, 0].to("simdev"))[0].cpu(), layer(q[:, 0])[0])


@with_delegate
def test_autocast_casts_cudas_lists(x: torch.Tensor) -> None:
    with torch.autocast("simdev", dtype=torch.bfloat16):
        product = x @ x.t()
        assert product.dtype == torch.bfloat16 and x.exp().dtype == torch.float32
        assert (
            product.float().softmax(0).dtype == torch.float32 and (product + x[:, :5]).dtype == torch.float32
        )
        with pytest.raises(RuntimeError, match="unsafe to autocast"):
            F.binary_cross_entropy(x.sigmoid(), x.sigmoid())
    assert (x @ x.t()).dtype == torch.float32


@with_delegate
def test_custom_operators_with_a_kernel_for_the_device_underneath_run() -> None:
    library = torch.library.Library("delegate_tests", "FRAGMENT")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CPU")
    result = torch.ops.delegate_tests.twice(torch.ones(3, device="simdev"))
    assert result.device.type == "simdev" and result.cpu().eq(2).all()


@with_delegate
def test_sparse_tensors(x: torch.Tensor) -> None:
    dense = (x > 0).float() * x
    sparse = dense.to_sparse()
    assert sparse.device.type == "simdev" and torch.equal(sparse.to_dense().cpu(), dense.cpu())
    torch.testing.assert_close(torch.sparse.mm(sparse, x.t()).cpu(), dense.cpu() @ x.cpu().t())


@with_delegate
def test_copies_serialization_and_dlpack_keep_the_device(x: torch.Tensor) -> None:
    assert copy.deepcopy(x).untyped_storage().device == x.device
    buffer = io.BytesIO()
    torch.save({"x": x, "view": x[1:]}, buffer)
    buffer.seek(0)
    loaded = torch.load(buffer)
    assert loaded["x"].device == x.device and torch.equal(loaded["view"].cpu(), x[1:].cpu())
    assert torch.equal(x.to("cpu").to("simdev"), x)
    host = torch.empty(5, 7)
    assert torch.equal(host.copy_(x), x.cpu())
    assert torch.equal(x.t().contiguous().cpu(), x.cpu().t())
    assert torch.equal(torch.empty(7, 5, device="simdev").copy_(x.t()).cpu(), x.cpu().t())


# --- Memory, streams, events --------------------------------------------------------------------------------


@with_delegate
def test_statistics_are_the_delegates() -> None:
    before = torch.simdev.memory_allocated()
    tensor = torch.empty(1 << 20, dtype=torch.uint8, device="simdev")
    assert (
        torch.simdev.memory_allocated() - before == 1 << 20 == torch.accelerator.memory_allocated() - before
    )
    del tensor
    assert torch.simdev.memory_allocated() == before and torch.simdev.max_memory_allocated() >= before + (
        1 << 20
    )
    free, total = torch.simdev.mem_get_info()
    assert total - free == before
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(total + 1, dtype=torch.uint8, device="simdev")


@with_delegate
def test_record_stream_reaches_the_delegate(x: torch.Tensor) -> None:
    def recorded() -> int:
        return torch.simdev.memory_stats()["num_sync_all_streams"]  # where the stand-in shows it

    before = recorded()
    x.record_stream(torch.simdev.Stream())
    (x + 1)[1:].record_stream(torch.simdev.Stream())
    assert recorded() == before + 2


@with_delegate
def test_streams_are_the_delegates() -> None:
    default = torch.simdev.default_stream()
    assert default.simdev_stream == 0 == default.native_handle and default == torch.simdev.current_stream()
    stream = torch.simdev.Stream(priority=-1)
    assert stream.priority == -1 and stream.simdev_stream == stream.native_handle != 0
    with torch.simdev.stream(stream):
        assert torch.simdev.current_stream() == stream == torch.accelerator.current_stream()
        external = torch.simdev.ExternalStream(stream.native_handle - stream.native_handle % 2)
    assert torch.simdev.current_stream() == default
    assert torch.simdev.ExternalStream(0) == default and external != default
    assert len({torch.simdev.Stream().stream_id for _ in range(64)}) == 32
    assert stream.query()
    stream.synchronize()
    torch.simdev.synchronize()


@with_delegate
def test_events_are_the_delegates() -> None:
    start, end = (torch.simdev.Event(enable_timing=True) for _ in range(2))
    assert start.event_id == 0 and start.query()
    start.record()
    torch.simdev._sleep(20)
    end.record(torch.simdev.Stream())
    end.synchronize()
    end.wait()
    assert start.event_id != 0 and 15 < start.elapsed_time(end) < 2000
    with pytest.raises(ValueError):
        torch.simdev.Event().elapsed_time(end)


@with_delegate
def test_pinned_memory() -> None:
    pinned = torch.ones(100).pin_memory()
    assert pinned.is_pinned() and not torch.ones(100).is_pinned()
    assert torch.equal(pinned.to("simdev", non_blocking=True).cpu(), pinned)


# --- torch.compile ------------------------------------------------------------------------------------------


@pytest.fixture
def compiled() -> Callable[..., Callable[..., object]]:
    torch._dynamo.reset()
    return torch.compile


@with_delegate
@pytest.mark.parametrize("backend", ["inductor", "simdev"])
def test_compiled_graphs_are_those_of_the_device_underneath(backend: str, x: torch.Tensor) -> None:
    from torch._inductor import metrics

    torch._dynamo.reset()
    metrics.reset()
    function = torch.compile(lambda t: torch.sin(t) * torch.cos(t) + torch.tanh(t), backend=backend)
    result = function(x)
    assert result.device == x.device and result.untyped_storage().device == x.device
    host = x.cpu()
    torch.testing.assert_close(result.cpu(), host.sin() * host.cos() + host.tanh())
    assert metrics.generated_kernel_count == 1


@with_delegate
def test_compiled_training(compiled: Callable[..., Callable[..., torch.Tensor]]) -> None:
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU(), torch.nn.Linear(16, 4)
    )
    ours = copy.deepcopy(model).to("simdev")
    fast = compiled(ours)
    data = torch.randn(6, 8)
    for _ in range(3):
        expected = model(data).square().mean()
        expected.backward()
        loss = fast(data.to("simdev")).square().mean()
        loss.backward()
        torch.testing.assert_close(loss.cpu(), expected)
    for (name, mine), theirs in zip(ours.named_parameters(), model.parameters()):
        assert mine.grad.device == mine.device, name
        torch.testing.assert_close(mine.grad.cpu(), theirs.grad)
    torch.testing.assert_close(ours[1].running_mean.cpu(), model[1].running_mean)


@with_delegate
def test_compiled_functions_of_many_kinds(compiled: Callable[..., Callable[..., torch.Tensor]]) -> None:
    dynamic = compiled(lambda t: (t * 2).sum(0), dynamic=True)
    for rows in (2, 3, 5):
        assert dynamic(torch.ones(rows, 3, device="simdev")).tolist() == [2.0 * rows] * 3

    def mutate(t: torch.Tensor) -> torch.Tensor:
        t.add_(1)
        return t * 2

    tensor = torch.zeros(3, device="simdev")
    assert compiled(mutate)(tensor).tolist() == [2, 2, 2] and tensor.tolist() == [1, 1, 1]

    def makes(t: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, int]:
        return t + torch.arange(3, device="simdev") + torch.ones(3, device=t.device), t.cpu() + 1, t.shape[0]

    ours, host, number = compiled(makes)(tensor)
    assert ours.device.type == "simdev" and host.device.type == "cpu" and number == 3
    assert ours.tolist() == [2, 3, 4] and host.tolist() == [2, 2, 2]

    def casts(t: torch.Tensor) -> torch.Tensor:
        with torch.autocast("simdev", dtype=torch.bfloat16):
            return t.outer(t) @ t.outer(t)

    assert compiled(casts)(tensor).dtype == torch.bfloat16
    with torch.autocast("simdev", dtype=torch.bfloat16):
        assert compiled(lambda t: t.outer(t) @ t.outer(t))(tensor).dtype == torch.bfloat16
    assert compiled(lambda t: t * 2)(torch.ones(2)).device.type == "cpu"


@with_delegate
def test_relabelling_takes_over_results_that_nobody_else_holds() -> None:
    kept = torch.arange(4.0)  # as a CUDA graph keeps the tensors that each replay returns
    graph = _C._relabelled_boxed(lambda inputs: [inputs[0] + 1, kept, kept[1:], inputs[0], 7, None])
    x = torch.ones(3, device="simdev")
    arguments = [x]
    fresh, ours, view, same, number, nothing = graph(arguments)
    assert arguments == [] and (number, nothing) == (7, None)
    assert {t.device.type for t in (fresh, ours, view, same)} == {"simdev"}
    assert kept.device.type == kept.untyped_storage().device.type == "cpu"
    assert ours.data_ptr() == kept.data_ptr() and view.data_ptr() == kept.data_ptr() + 4
    assert same.data_ptr() == x.data_ptr() and fresh.tolist() == [2, 2, 2]
    kept.fill_(9)  # the next replay
    assert ours.tolist() == [9] * 4


@with_delegate
def test_relabelled_results_accumulate_as_gradients_do() -> None:
    replayed = torch.zeros(3)
    graph = _C._relabelled_boxed(lambda inputs: [replayed.fill_(len(inputs))])

    class Graph(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, leaf: torch.Tensor) -> torch.Tensor:
            return leaf * 2

        @staticmethod
        def backward(ctx: object, grad: torch.Tensor) -> torch.Tensor:
            return graph([grad, grad])[0]

    leaf = torch.ones(3, device="simdev", requires_grad=True)
    leaf.grad = torch.zeros(3, device="simdev")
    for _ in range(3):
        Graph.apply(leaf).sum().backward()
    assert leaf.grad.tolist() == [6, 6, 6] and replayed.tolist() == [2, 2, 2]


@with_delegate
def test_without_a_code_generator_graphs_run_operator_by_operator(
    compiled: Callable[..., Callable[..., torch.Tensor]], monkeypatch: pytest.MonkeyPatch, x: torch.Tensor
) -> None:
    from torch._inductor import metrics

    from torch_simdev.compile import relabel

    monkeypatch.setattr(relabel, "_can_generate_code", lambda target: False)
    metrics.reset()
    x.requires_grad_()
    result = compiled(lambda t: torch.sin(t) * 2)(x)
    result.sum().backward()
    assert metrics.generated_kernel_count == 0 and result.device == x.device
    torch.testing.assert_close(x.grad.cpu(), 2 * x.detach().cpu().cos())


@with_delegate
def test_compiled_optimizers(compiled: Callable[..., Callable[..., torch.Tensor]]) -> None:
    ours = torch.nn.Linear(3, 3).to("simdev")
    theirs = copy.deepcopy(ours).cpu()
    for net in (ours, theirs):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        step = compiled(optimizer.step) if net is ours else optimizer.step
        for _ in range(2):
            net.zero_grad()
            net(torch.ones(2, 3, device=net.weight.device)).sum().backward()
            step()
    torch.testing.assert_close(ours.weight.cpu(), theirs.weight)


# --- Fork ---------------------------------------------------------------------------------------------------


@with_delegate
def test_a_forked_child_is_told_and_does_not_hang(run_python: RunPython) -> None:
    code = """
import os, sys, torch
assert torch.simdev.is_available()
x = torch.ones(3, device="simdev") if {before} else None
if os.fork() == 0:
    try:
        print("value", (x + 1 if x is not None else torch.ones(1, device="simdev")).sum().item(), flush=True)
    except RuntimeError as error:
        print("error", error, flush=True)
    os._exit(0)
os.wait()
"""
    assert "Cannot re-initialize simdev in forked subprocess" in run_python(code.format(before=True)).stdout
    assert "value 1.0" in run_python(code.format(before=False)).stdout
