"""torch.compile on simdev: what comes out equals eager on the CPU, forward and backward, with the same strides."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

torch._dynamo = pytest.importorskip("torch._dynamo")
from torch._dynamo.testing import CompileCounterWithBackend  # noqa: E402
from torch._inductor.utils import run_and_get_code  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

BACKENDS = ["inductor", "simdev"]

# Each compiles C++: run by `make conformance`.
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("fresh_dynamo")]


def seed_function(x: Tensor) -> Tensor:
    return torch.sin(x) * torch.cos(x) + torch.tanh(x)


def to(device: Any, value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone().to(device).requires_grad_(value.requires_grad)
    return value


def flat(value: Any) -> list[Tensor]:
    return [leaf for leaf in torch.utils._pytree.tree_leaves(value) if isinstance(leaf, Tensor)]


def check(function: Callable[..., Any], *args: Any, tolerance: float = 1e-4, **options: Any) -> None:
    """Compares a call on the CPU with the compiled call on simdev: results, strides, mutated inputs, gradients."""
    host_args = [to("cpu", arg) for arg in args]
    device_args = [to("simdev", arg) for arg in args]
    expected = flat(function(*host_args))
    actual = flat(torch.compile(function, **options)(*device_args))
    assert len(actual) == len(expected)
    close = lambda a, e: torch.testing.assert_close(
        a.detach().cpu(), e.detach(), atol=tolerance, rtol=tolerance
    )
    for a, e in zip(actual, expected):
        assert a.device == torch.device("simdev", 0)
        assert a.stride() == e.stride()
        close(a, e)
    for a, e in zip(device_args, host_args):
        if isinstance(e, Tensor):
            close(a, e)
    if any(isinstance(arg, Tensor) and arg.requires_grad for arg in args):
        sum(e.square().sum() for e in expected if e.requires_grad).backward()
        sum(a.square().sum() for a in actual if a.requires_grad).backward()
        for a, e in zip(device_args, host_args):
            if isinstance(e, Tensor) and e.grad is not None:
                torch.testing.assert_close(a.grad.cpu(), e.grad, atol=10 * tolerance, rtol=10 * tolerance)


def R(*shape: int) -> Tensor:
    return torch.randn(shape)


def G(*shape: int) -> Tensor:
    return torch.randn(shape, requires_grad=True)


# --- The seed function --------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_seed_function_is_one_kernel_and_one_launch(backend):
    x = torch.randn(64, 64)
    compiled = torch.compile(seed_function, backend=backend)
    result, (code,) = run_and_get_code(compiled, x.to("simdev"))
    torch.testing.assert_close(result.cpu(), seed_function(x))
    assert code.count("SIMDEV_KERNEL_ENTRY") == 1
    launches = re.findall(r"^ +(simdev_fused_\w+)\(arg0_1, buf0\)$", code, re.MULTILINE)
    assert len(launches) == 1
    fuses = re.search(r"^# Fuses (.*)$", code, re.MULTILINE)
    assert fuses is not None
    assert set(fuses[1].split(", ")) == {"aten.sin", "aten.cos", "aten.mul", "aten.tanh", "aten.add"}


def test_launch_returns_before_the_kernel_has_run():
    compiled = torch.compile(seed_function)
    x = torch.randn(64, device="simdev")
    compiled(x)
    torch.simdev.synchronize()
    torch.simdev._sleep(1000)
    result = compiled(x)
    assert not torch.simdev.current_stream().query()
    torch.testing.assert_close(result.cpu(), seed_function(x.cpu()))


def test_memory_comes_from_the_caching_allocator():
    compiled = torch.compile(seed_function)
    x = torch.randn(1024, 1024, device="simdev")
    compiled(x)
    before = torch.simdev.memory_allocated()
    torch.simdev.reset_peak_memory_stats()
    result = compiled(x)
    assert torch.simdev.memory_allocated() == before + result.nbytes
    assert torch.simdev.max_memory_allocated() == before + result.nbytes  # no temporaries


def test_kernels_run_on_the_current_stream():
    compiled = torch.compile(seed_function)
    x = torch.randn(64, device="simdev")
    compiled(x)
    torch.simdev.synchronize()
    stream = torch.simdev.Stream()
    torch.simdev._sleep(300)  # on the default stream
    with torch.simdev.stream(stream):
        result = compiled(x)
    stream.synchronize()
    assert not torch.simdev.default_stream().query()
    torch.simdev.synchronize()
    torch.testing.assert_close(result.cpu(), seed_function(x.cpu()))


# --- Many functions -----------------------------------------------------------------------------------------


def update_view(x: Tensor) -> Tensor:
    part = x[1:, ::2]
    part.mul_(3)
    return part + 1


def accumulate(x: Tensor, index: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    y = x.clone()
    y.index_put_((index,), values, accumulate=True)
    return y, x.scatter_add(0, index.unsqueeze(1).expand(-1, x.shape[1]), values)


def foreach(a: Tensor, b: Tensor) -> Any:
    results = torch._foreach_add([a, b], 1.0)
    torch._foreach_mul_(results, 2.0)
    return results


def reductions(x: Tensor) -> Any:
    over_all = (x.sum(), x.std(), x.norm(), x.transpose(0, 1).argmin())
    over_rows = (x.mean(0), x.prod(0), (x > 0).all(0))
    over_columns = (x.amax(1), x.var(1), x.argmax(1), x.any(1), x.logsumexp(1))
    return (*over_all, *over_rows, *over_columns)


def factories(x: Tensor) -> Tensor:
    device = x.device
    return torch.full((4,), 3.0, device=device) + torch.arange(4, device=device) + x + torch.zeros_like(x)


def integer_division(x: Tensor, y: Tensor) -> Any:
    return x // y, x % y, torch.div(x, y, rounding_mode="trunc"), torch.fmod(x, y), x ^ y, x << 1


FUNCTIONS: dict[str, Callable[[], tuple[Any, ...]]] = {
    "mlp": lambda: (lambda x, a, b, c: F.gelu(F.linear(x, a, b)) @ c, G(16, 32), G(64, 32), G(64), G(64, 8)),
    "layernorm": lambda: (lambda x, w, b: F.gelu(F.layer_norm(x, (64,), w, b)), G(32, 64), G(64), G(64)),
    "softmax": lambda: (lambda x: F.softmax(x, -1), G(32, 100)),
    "log_softmax_dim0": lambda: (lambda x: F.log_softmax(x, 0), G(30, 17)),
    "group_norm": lambda: (lambda x, w, b: F.group_norm(x, 2, w, b), G(2, 4, 5, 5), G(4), G(4)),
    "convolution": lambda: (lambda x, w, b: F.relu(F.conv2d(x, w, b, padding=1)), G(2, 3, 8, 8), G(4, 3, 3, 3), G(4)),
    "channels_last": lambda: (lambda x: x.sigmoid() * 2, R(2, 3, 4, 5).to(memory_format=torch.channels_last)),
    "reductions": lambda: (reductions, R(13, 17)),
    "attention": lambda: (lambda q, k, v: torch.softmax(q @ k.transpose(-1, -2) / 8**0.5, -1) @ v, G(2, 4, 16, 8), G(2, 4, 16, 8), G(2, 4, 16, 8)),  # noqa: E501
    "embedding": lambda: (lambda w, h, i, y: F.cross_entropy(F.embedding(i, w) @ h, y), G(10, 8), G(8, 5), torch.tensor([1, 9, 0]), torch.tensor([0, 4, 2])),  # noqa: E501
    "losses": lambda: (lambda x, y: F.mse_loss(torch.tanh(x), y) + F.huber_loss(x, y) + F.kl_div(F.log_softmax(x, -1), F.softmax(y, -1), reduction="batchmean"), G(7, 9), R(7, 9)),  # noqa: E501
    "in_place": lambda: (lambda x: x.add_(1).mul_(2), R(5, 7)),
    "view_with_offset": lambda: (update_view, R(5, 8)),
    "transposed_in_place": lambda: (lambda x: x.t().mul_(2), R(2, 3)),
    "strided_input": lambda: (lambda x: (x.sin(), x.sum(1)), R(6, 8)[1:, ::2]),
    "cat_stack": lambda: (lambda a, b: (torch.cat([a, b.sin()], 1), torch.stack([a, a * 2])), G(3, 4), G(3, 5)),
    "index": lambda: (lambda x, i: (x[i], x.index_select(1, i), x[:, i] * 2), G(3, 4), torch.tensor([0, 2, 1])),
    "accumulate": lambda: (accumulate, R(4, 5), torch.tensor([0, 2, 1, 0]), R(4, 5)),
    "gather": lambda: (lambda x, i: x.gather(1, i), G(4, 6), torch.randint(6, (4, 3))),
    "sort": lambda: (lambda x: (x.cumsum(1), torch.sort(x, 1)[0], torch.topk(x, 2)[0]), R(5, 9)),
    "where": lambda: (lambda x: (torch.where(x > 0, x, -x.exp()), x.masked_fill(x < 0, 0.0), x.clamp(-0.5, 0.5)), G(6, 7)),  # noqa: E501
    "pad_pool": lambda: (lambda x: (F.pad(x, (1, 2, 0, 1)), F.interpolate(x, scale_factor=2.0), F.max_pool2d(x, 2), F.avg_pool2d(x, 2)), G(2, 3, 6, 6)),  # noqa: E501
    "transpose": lambda: (lambda x: (x.t() + 1).contiguous(), R(64, 48)),
    "half": lambda: (lambda x: (x @ x).relu(), R(16, 16).half()),
    "integers": lambda: (integer_division, torch.randint(-50, 50, (40,)), torch.randint(1, 9, (40,))),
    "small_integers": lambda: (lambda x: (x + 1, x * x, x.float().sum()), torch.arange(100, dtype=torch.uint8)),
    "double": lambda: (lambda x: x.double().sin().sum(0), R(9, 5)),
    "complex": lambda: (lambda x: (x * x.conj()).abs() + torch.view_as_real(x).sum(-1), torch.randn(6, dtype=torch.complex64)),  # noqa: E501
    "fft": lambda: (lambda x: torch.fft.rfft(x).abs(), R(4, 16)),
    "linalg": lambda: (lambda x: torch.linalg.inv(x @ x.t() + 5 * torch.eye(5, device=x.device)), R(5, 5)),
    "factories": lambda: (factories, R(4)),
    "foreach": lambda: (foreach, R(4), R(6)),
    "bucketize": lambda: (torch.bucketize, R(10), torch.tensor([-1.0, 0.0, 1.0])),
    "zero_dim": lambda: (lambda x, y: x * y + 1, R(5), torch.tensor(2.0)),
    "empty": lambda: (lambda x: (x.sin(), x.sum(0), x.sum()), R(0, 3)),
    "python_scalar": lambda: (lambda x, s: x * s + s, R(5), 2.5),
    "constant": lambda: (lambda x: x + torch.tensor([1.0, 2.0, 3.0], device=x.device), R(3)),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_function(name):
    check(*FUNCTIONS[name]())


def test_bfloat16():
    check(lambda x: (x * 2).sin() + x.exp(), R(33, 17).bfloat16(), tolerance=3e-2)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_modes(backend, mode):
    check(lambda x: (x @ x).relu().sum(1), R(32, 32), tolerance=1e-3, backend=backend, mode=mode)


def test_outputs_alias_inputs_as_in_eager():
    x = torch.randn(4, 6, device="simdev")
    a, b = torch.compile(lambda x: (x.view(6, 4), x[1:]))(x)
    assert a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    x.fill_(7)
    assert a.sum().item() == 7 * 24
    assert b.storage_offset() == 6


def test_aliased_inputs():
    def function(x: Tensor, y: Tensor) -> Tensor:
        x.add_(1)
        return y * 2

    base = torch.zeros(8, device="simdev")
    result = torch.compile(function)(base[:6], base[2:])
    assert result.tolist() == [2.0] * 4 + [0.0] * 2


# --- Shapes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_two_compilations_serve_all_sizes(backend):
    function = lambda x: (x.sin() @ x.t()).relu().sum(0) + torch.arange(x.shape[0], device=x.device)
    counter = CompileCounterWithBackend(backend)
    compiled = torch.compile(function, backend=counter, dynamic=True)
    for size in (5, 3, 8, 17, 64, 0, 1):
        x = torch.randn(size, 4)
        torch.testing.assert_close(compiled(x.to("simdev")).cpu(), function(x), atol=1e-4, rtol=1e-4)
    assert counter.frame_count <= 3  # sizes 0 and 1 are special to Dynamo


def test_automatic_dynamic_shapes():
    counter = CompileCounterWithBackend("inductor")
    compiled = torch.compile(lambda x: F.softmax(x * 2, -1), backend=counter)
    for size in (5, 6, 7, 100):
        x = torch.randn(3, size)
        torch.testing.assert_close(compiled(x.to("simdev")).cpu(), F.softmax(x * 2, -1))
    assert counter.frame_count <= 2


def test_sizes_that_depend_on_data():
    function = lambda x: x[x > 0].sum() + torch.nonzero(x).float().mean()
    x = torch.randn(20)
    torch.testing.assert_close(torch.compile(function)(x.to("simdev")).cpu(), function(x))


# --- Training -----------------------------------------------------------------------------------------------


def test_module_trains_as_on_the_cpu():
    make = lambda: nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 1))
    reference, module = make(), make()
    module.load_state_dict(reference.state_dict())
    module.to("simdev")
    optimizers = [torch.optim.AdamW(m.parameters(), lr=0.05) for m in (reference, module)]
    forward = torch.compile(module)
    step = torch.compile(optimizers[1].step)
    for _ in range(4):
        x = torch.randn(4, 8)
        losses = []
        for run, optimizer, data in (
            (reference, optimizers[0], x),
            (forward, optimizers[1], x.to("simdev")),
        ):
            optimizer.zero_grad()
            loss = run(data).square().mean()
            loss.backward()
            losses.append(loss.item())
            (step if run is forward else optimizer.step)()
        assert losses[1] == pytest.approx(losses[0], rel=1e-3, abs=1e-5)


def test_transformer_layer():
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0, batch_first=True).to("simdev")
    x = torch.randn(2, 10, 32, device="simdev")
    expected = layer(x)
    expected.sum().backward()
    gradient = layer.linear1.weight.grad.clone()
    layer.zero_grad()
    actual = torch.compile(layer, fullgraph=True)(x)
    actual.sum().backward()
    torch.testing.assert_close(actual, expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(layer.linear1.weight.grad, gradient, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("training", [False, True])
def test_lstm_inside_of_a_graph(training):
    module = nn.LSTM(4, 5, 2, bidirectional=True, batch_first=True).to("simdev").train(training)
    x = torch.randn(3, 6, 4, device="simdev")
    parameters = list(module.parameters())
    expected = torch.autograd.grad(module(x)[0].square().sum(), parameters)
    with torch._dynamo.config.patch(allow_rnn=True):
        result, _ = torch.compile(module, fullgraph=True)(x)
    actual = torch.autograd.grad(result.square().sum(), parameters)
    torch.testing.assert_close(actual, expected, atol=1e-4, rtol=1e-3)


def test_compiled_autograd():
    module = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1)).to("simdev")
    x = torch.randn(4, 8, device="simdev")
    with torch._dynamo.config.patch(compiled_autograd=True):
        torch.compile(lambda x: module(x).sum().backward())(x)
    gradient = module[0].weight.grad.clone()
    module.zero_grad()
    module(x).sum().backward()
    torch.testing.assert_close(module[0].weight.grad, gradient)


def test_checkpoint_recomputes_with_the_same_dropout_mask():
    weight = torch.randn(16, 16, device="simdev")

    def function(x: Tensor) -> Tensor:
        return checkpoint(lambda x: F.dropout((x @ weight).sin(), 0.5), x, use_reentrant=False)

    x = torch.randn(16, 16, device="simdev", requires_grad=True)
    y = torch.compile(function)(x)
    y.sum().backward()
    mask = (y != 0) * 2.0
    torch.testing.assert_close(x.grad, (mask * torch.cos(x @ weight)) @ weight.t(), atol=1e-4, rtol=1e-4)


def test_random_numbers_follow_the_seed():
    compiled = torch.compile(lambda x: F.dropout(x, 0.5))
    x = torch.ones(1000, device="simdev")
    first, second = compiled(x), compiled(x)
    assert 300 < (first == 0).sum().item() < 700
    assert not torch.equal(first, second)
    torch.manual_seed(3)
    third = compiled(x)
    torch.manual_seed(3)
    assert torch.equal(third, compiled(x))


def test_compiling_leaves_the_generator_alone():
    torch.manual_seed(5)
    expected = torch.rand(4, device="simdev")
    torch.manual_seed(5)
    torch.compile(lambda x: F.softmax(x @ x, -1), mode="max-autotune")(torch.ones(8, 8, device="simdev"))
    assert torch.equal(torch.rand(4, device="simdev"), expected)


def test_autocast():
    def function(x: Tensor, w: Tensor) -> Tensor:
        with torch.autocast("simdev", dtype=torch.bfloat16):
            return F.linear(x, w).relu()

    x, w = torch.randn(8, 16), torch.randn(4, 16)
    result = torch.compile(function, fullgraph=True)(x.to("simdev"), w.to("simdev"))
    assert result.dtype == torch.bfloat16
    torch.testing.assert_close(result.float().cpu(), F.linear(x, w).relu(), atol=0.1, rtol=0.05)


# --- Devices and streams ------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_same_function_on_another_device(backend):
    compiled = torch.compile(lambda x: x.sin() + x @ x, backend=backend)
    for index in (0, 1, 0):
        x = torch.eye(4, device=f"simdev:{index}")
        result = compiled(x)
        assert result.device.index == index
        torch.testing.assert_close(result.cpu(), x.cpu().sin() + x.cpu())
    assert torch.accelerator.current_device_index() == 0


def test_two_devices_in_one_graph():
    compiled = torch.compile(lambda x, y: x.sin() + y.cos().to(x.device))
    x = torch.randn(5)
    result = compiled(x.to("simdev:0"), x.to("simdev:1"))
    torch.testing.assert_close(result.cpu(), x.sin() + x.cos())


def test_host_and_device_in_one_graph():
    compiled = torch.compile(lambda x, y: (x.sin() + y.cos().to(x.device), (x * 2).cpu().sin()))
    x = torch.randn(5)
    on_device, on_host = compiled(x.to("simdev"), x)
    torch.testing.assert_close(on_device.cpu(), x.sin() + x.cos())
    torch.testing.assert_close(on_host, (x * 2).sin())


def test_backend_simdev_compiles_for_other_devices_too():
    x = torch.randn(5)
    result, codes = run_and_get_code(torch.compile(seed_function, backend="simdev"), x)
    torch.testing.assert_close(result, seed_function(x))
    assert any("cpp_fused" in code for code in codes)
    assert not any("SIMDEV_KERNEL" in code for code in codes)


def test_functions_of_the_device_module_are_traced():
    def function(x: Tensor) -> Tensor:
        if torch.simdev.is_available() and torch.simdev.device_count() > 1 and torch.simdev.get_device_name():
            x = x + 1
        return x * 2

    result = torch.compile(function, fullgraph=True)(torch.ones(3, device="simdev"))
    assert result.tolist() == [4.0] * 3


def test_the_current_device_is_part_of_the_graph():
    function = lambda x: x + torch.simdev.current_device()
    compiled = torch.compile(function, fullgraph=True)
    x = torch.zeros(2, device="simdev")
    for device in (0, 1, 0):
        with torch.simdev.device(device):
            assert compiled(x).tolist() == [device] * 2


@pytest.mark.skipif(
    not hasattr(torch._dynamo.variables.ctx_manager, "register_device_context_manager"),
    reason="that Dynamo breaks graphs at contexts of devices that it does not know",
)
def test_a_device_context_is_part_of_the_graph():
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.simdev.device(1):
            y = torch.ones(2, device="simdev") * 2
        return y, x + torch.ones(2, device="simdev")

    y, z = torch.compile(function, fullgraph=True)(torch.ones(2, device="simdev:0"))
    assert (y.device.index, y.tolist()) == (1, [2.0, 2.0])
    assert (z.device.index, z.tolist()) == (0, [2.0, 2.0])
    assert torch.simdev.current_device() == 0


def test_the_profiler_shows_launches_by_the_names_of_kernels():
    compiled = torch.compile(seed_function)
    x = torch.randn(64, device="simdev")
    _, (code,) = run_and_get_code(compiled, x)
    name = re.search(r"^ +(simdev_fused_\w+)\(", code, re.MULTILINE)[1]
    with torch.profiler.profile() as profile:
        compiled(x)
    assert [event.count for event in profile.key_averages() if event.key == name] == [1]


@pytest.mark.skipif(
    torch.__version__.startswith("2.11"), reason="that Dynamo loses events that a graph makes"
)
def test_events_inside_of_a_graph():
    def function(x: Tensor) -> Tensor:
        event = torch.simdev.Event()
        y = x * 2
        event.record()
        event.synchronize()
        return y

    assert torch.compile(function)(torch.ones(3, device="simdev")).tolist() == [2.0] * 3


def test_concurrent_streams_and_threads():
    compiled = torch.compile(seed_function)
    x = torch.randn(2000, device="simdev")
    expected = compiled(x).cpu()
    streams = [torch.simdev.Stream() for _ in range(3)]
    torch.simdev.synchronize()
    results = []
    for _ in range(20):
        for stream in streams:
            with torch.simdev.stream(stream):
                results.append(compiled(x))
    torch.simdev.synchronize()
    assert all(torch.equal(result.cpu(), expected) for result in results)


# --- Control flow and custom operators ----------------------------------------------------------------------


def test_cond():
    compiled = torch.compile(lambda p, x: torch.cond(p, torch.sin, torch.cos, (x,)))
    x = torch.randn(5)
    for value, expected in ((True, x.sin()), (False, x.cos())):
        result = compiled(torch.tensor(value, device="simdev"), x.to("simdev"))
        torch.testing.assert_close(result.cpu(), expected)


def test_training_through_a_cond_on_a_size():
    branches = (lambda x, w: (x @ w).sin(), lambda x, w: (x @ w).cos())
    compiled = torch.compile(lambda x, w: torch.cond(x.shape[0] > 3, *branches, (x, w)), dynamic=True)
    for size in (2, 5, 3, 8):
        x, w = torch.randn(size, 4, device="simdev"), torch.randn(4, 4, device="simdev", requires_grad=True)
        expected = branches[0 if size > 3 else 1](x, w)
        actual = compiled(x, w)
        torch.testing.assert_close(actual, expected, atol=1e-4, rtol=1e-4)
        gradients = [torch.autograd.grad(result.sum(), w)[0] for result in (actual, expected)]
        torch.testing.assert_close(*gradients, atol=1e-4, rtol=1e-4)


def test_while_loop():
    from torch._higher_order_ops.while_loop import while_loop

    compiled = torch.compile(lambda i, x: while_loop(lambda i, x: i < 5, lambda i, x: (i + 1, x * 2), (i, x)))
    i, x = compiled(torch.tensor(0, device="simdev"), torch.ones(3, device="simdev"))
    assert i.item() == 5
    assert x.tolist() == [32.0] * 3


def test_scan():
    from torch._higher_order_ops.scan import scan

    x = torch.randn(6, 3)
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        compiled = torch.compile(
            lambda x: scan(lambda c, a: (c + a, c * a), torch.zeros(3, device=x.device), x)
        )
        carry, _ = compiled(x.to("simdev"))
    torch.testing.assert_close(carry.cpu(), x.sum(0))


def test_custom_operator():
    @torch.library.custom_op("simdev_test::twice", mutates_args=())
    def twice(x: Tensor) -> Tensor:
        return x * 2

    @twice.register_fake
    def _(x: Tensor) -> Tensor:
        return torch.empty_like(x)

    x = torch.randn(5)
    result = torch.compile(lambda x: twice(x.sin()) + 1, fullgraph=True)(x.to("simdev"))
    torch.testing.assert_close(result.cpu(), x.sin() * 2 + 1)


def test_stance():
    compiled = torch.compile(seed_function)
    x = torch.randn(5, device="simdev")
    with torch.compiler.set_stance("force_eager"):
        torch.testing.assert_close(compiled(x), seed_function(x))
    compiled(x)
    with torch.compiler.set_stance("fail_on_recompile"):
        compiled(x)
        with pytest.raises(RuntimeError):
            compiled(torch.randn(5, 5, device="simdev"))


# --- Errors and options -------------------------------------------------------------------------------------


def test_index_out_of_bounds_is_the_device_error():
    compiled = torch.compile(lambda x, i: x[i] + 1)
    x = torch.ones(5, device="simdev")
    with pytest.raises(RuntimeError, match=r"simdev_fused_add_index_0: index out of bounds"):
        compiled(x, torch.tensor([1, 9], device="simdev"))
        torch.simdev.synchronize()
    assert compiled(x, torch.tensor([1, 2], device="simdev")).tolist() == [2.0, 2.0]


DIVISIONS = {
    "floor": lambda x, y: x // y,
    "trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "remainder": lambda x, y: x % y,
    "fmod": torch.fmod,
}


@pytest.mark.parametrize("size", [5, 5000])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int8])
@pytest.mark.parametrize("kind", DIVISIONS)
def test_division_by_zero_is_the_device_error(kind, dtype, size):
    compiled = torch.compile(DIVISIONS[kind])
    x = torch.ones(size, device="simdev", dtype=dtype)
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        compiled(x, torch.zeros_like(x))
        torch.simdev.synchronize()
    x, three = torch.arange(-size, size).to(dtype), torch.full((2 * size,), 3, dtype=dtype)
    assert torch.equal(compiled(x.to("simdev"), three.to("simdev")).cpu(), DIVISIONS[kind](x, three))


def test_unknown_option_is_refused():
    with pytest.raises(RuntimeError, match=r"fats_math.*fast_math"):
        torch.compile(seed_function, backend="simdev", options={"fats_math": True})(
            torch.ones(2, device="simdev")
        )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fast_math": "yes"}, "fast_math, got str should be bool"),
        ({"fallback": "eager"}, "fallback, got str should be list"),
    ],
)
def test_an_option_of_another_type_is_refused(options, message):
    with pytest.raises(RuntimeError, match=f"Unexpected type of attr {message}"):
        torch.compile(seed_function, backend="simdev", options=options)(torch.ones(2, device="simdev"))


def test_options_of_both_kinds():
    options = {"fast_math": True, "epilogue_fusion": False}
    check(lambda x: torch.exp(x) * 2, R(5), backend="simdev", options=options)
