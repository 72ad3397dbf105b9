"""The workarounds in torch_simdev/compile/patches.py: each is needed, and does what it says.

A patch names its test here.  The test runs with the patch; when upstream has made a patch unnecessary, the test still
passes without it, and both can go.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._inductor.utils import run_and_get_code

# Each compiles C++: run by `make conformance`.
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("fresh_dynamo")]


def test_every_patch_names_a_test_of_this_file():
    from torch_simdev.compile.patches import PATCHES

    assert PATCHES
    for patch in PATCHES:
        assert patch.test in globals()
        assert patch.reason


def test_softmax_and_batch_norm_schedule():
    def function(x: Tensor) -> Tensor:
        return F.softmax(F.batch_norm(x, None, None, training=True).flatten(1), -1)

    x = torch.randn(8, 4, 6, 6)
    torch.testing.assert_close(torch.compile(function)(x.to("simdev")).cpu(), function(x))


def test_what_is_dear_is_computed_once():
    # Each part of the exponential is a kernel of its own, since the parts have other sizes; both would compute it.
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        value = x.exp()
        return value[1:] + 1, value[:, 1:] * 2

    x = torch.randn(40, 50, device="simdev")
    results, (code,) = run_and_get_code(torch.compile(function), x)
    assert code.count(".exp()") == 1
    torch.testing.assert_close(results, function(x))


def test_variance_of_short_rows_takes_two_passes():
    function = lambda x: F.layer_norm(x, (96,))
    x = torch.randn(100, 96) + 10
    result, (code,) = run_and_get_code(torch.compile(function), x.to("simdev"))
    assert "welford" not in code
    torch.testing.assert_close(result.cpu(), function(x), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "function",
    [lambda x, y: torch.cat([x * 2, y], 1).relu(), lambda x, y: F.pad(x * 2, (0, 3)).relu() + y[:, :1]],
    ids=["cat", "pad"],
)
def test_parts_of_a_concatenation_are_loops_of_their_own(function):
    x, y = torch.randn(40, 50), torch.randn(40, 60)
    result, (code,) = run_and_get_code(torch.compile(function), x.to("simdev"), y.to("simdev"))
    assert "mask" not in code
    torch.testing.assert_close(result.cpu(), function(x, y))


def test_convolutions_add_their_bias():
    function = lambda x, w, b: F.conv2d(x, w, b).flatten(1)
    tensors = torch.randn(2, 8, 9, 9), torch.randn(16, 8, 3, 3), torch.randn(16)
    result, (code,) = run_and_get_code(torch.compile(function), *(t.to("simdev") for t in tensors))
    [call] = [line for line in code.splitlines() if "extern_kernels.convolution(" in line]
    assert "bias=None" not in call
    assert "aten.add" not in code
    torch.testing.assert_close(result.cpu(), function(*tensors), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_argmax_of_permuted_tensor(name):
    function = lambda x: getattr(x.permute(2, 0, 1), name)()
    x = torch.randn(3, 4, 5)
    assert torch.compile(function)(x.to("simdev")).item() == function(x).item()


@pytest.mark.parametrize(
    "bytes_",
    [torch.arange(20, 59, dtype=torch.int8) - 100, torch.arange(20, 59, dtype=torch.uint8)],
    ids=["int8", "uint8"],
)
def test_smallest_and_largest_byte(bytes_):
    def function(x: Tensor) -> tuple[Tensor, ...]:
        return x.amin(-1), x.amax(-1), x.argmin(-1), x.argmax(-1), *x.min(-1), *x.max(-1), x.min(), x.max()

    x = torch.stack((bytes_, bytes_.flip(0)))
    for actual, expected in zip(torch.compile(function)(x.to("simdev")), function(x), strict=True):
        assert actual.dtype == expected.dtype
        assert actual.tolist() == expected.tolist()


def test_streams_inside_of_a_graph():
    def function(x: Tensor) -> Tensor:
        stream = torch.Stream(device="simdev")
        stream.wait_stream(torch.accelerator.current_stream())
        with stream:
            y = x * x
        torch.accelerator.current_stream().wait_stream(stream)
        return y + 1

    x = torch.full((5,), 3.0, device="simdev")
    assert torch.compile(function)(x).tolist() == [10.0] * 5


def test_a_device_without_index_is_the_current_one():
    for device in (0, 1, 0):
        torch._dynamo.reset()
        with torch.simdev.device(device):
            result = torch.compile(lambda: torch.ones(2, device="simdev") * 2)()
        assert (result.device.index, result.tolist()) == (device, [2.0, 2.0])


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("kind", ["Adam", "NAdam", "RAdam", "ASGD", "Adamax"])
def test_compiled_optimizers_are_capturable(kind, begun):
    weights = {device: torch.ones(4, device=device, requires_grad=True) for device in ("cpu", "simdev")}
    optimizers = {device: getattr(torch.optim, kind)([weight], lr=0.1) for device, weight in weights.items()}
    compiled = torch.compile(optimizers["simdev"].step)
    for number in range(3):
        gradient = torch.randn(4)
        for device, weight in weights.items():
            weight.grad = gradient.to(device)
        optimizers["cpu"].step()
        (optimizers["simdev"].step if begun and number == 0 else compiled)()
    torch.testing.assert_close(weights["simdev"].cpu(), weights["cpu"])
    [state] = optimizers["simdev"].state.values()
    assert {value.device.type for value in state.values() if isinstance(value, Tensor)} == {"simdev"}


@pytest.mark.parametrize("dimensions", [1, 2, 3])
@pytest.mark.parametrize("channels_last", [False, True])
def test_convolutions_keep_channels_last(dimensions, channels_last):
    from torch._subclasses.fake_tensor import FakeTensorMode

    convolution = getattr(F, f"conv{dimensions}d")

    def strides(device: str) -> list[tuple[int, ...]]:
        sizes = [6] * dimensions
        x = torch.ones(2, 4, *sizes, device=device)
        weight = torch.ones(8, 4, *[3] * dimensions, device=device, requires_grad=True)
        if channels_last and dimensions > 1:
            x = x.to(memory_format=torch.channels_last if dimensions == 2 else torch.channels_last_3d)
        x.requires_grad_()
        y = convolution(x, weight, padding=1)
        assert y.device.type == device
        return [t.stride() for t in (y, *torch.autograd.grad(y.sum(), (x, weight)))]

    expected = strides("cpu")
    assert strides("simdev") == expected
    with FakeTensorMode():
        assert strides("simdev") == expected


def test_compiled_convolution_of_channels_last():
    function = lambda x, w, v: F.conv2d(F.conv2d(x, w).relu(), v).flatten(1) * 2
    tensors = torch.randn(2, 8, 9, 9), torch.randn(16, 8, 3, 3), torch.randn(8, 16, 1, 1)
    on_device = [t.to(memory_format=torch.channels_last).to("simdev") for t in tensors]
    actual = torch.compile(function)(*on_device)
    torch.testing.assert_close(actual.cpu(), function(*tensors), atol=1e-3, rtol=1e-3)


@pytest.mark.skipif(
    torch.__version__ < "2.13", reason="older releases do not trace all of a stream's methods"
)
def test_streams_inside_of_a_trained_graph():
    stream = torch.Stream(device="simdev")
    current = torch.accelerator.current_stream

    def function(x: Tensor, w: Tensor) -> Tensor:
        first = (x @ w).sin()
        stream.wait_stream(current())
        with stream:
            second = (x @ w).cos() * 2
        current().wait_stream(stream)
        return (first * second).sum()

    outcomes = []
    for run in (function, torch.compile(function, backend="aot_eager", fullgraph=True)):
        torch.manual_seed(0)
        leaves = [torch.randn(64, 64, device="simdev").requires_grad_() for _ in range(2)]
        result = run(*leaves)
        outcomes.append([result, *torch.autograd.grad(result, leaves)])
    for expected, actual in zip(*outcomes, strict=True):
        torch.testing.assert_close(actual, expected, atol=1e-3, rtol=1e-3)


def test_flex_attention():
    from torch.nn.attention.flex_attention import flex_attention

    def causal(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return torch.where(i >= j, score, -float("inf"))

    q = torch.randn(1, 2, 128, 16)
    compiled = torch.compile(lambda q: flex_attention(q, q, q, score_mod=causal))
    expected = F.scaled_dot_product_attention(q, q, q, is_causal=True)
    torch.testing.assert_close(compiled(q.to("simdev")).cpu(), expected, atol=1e-4, rtol=1e-4)


def test_generated_cpp_includes_our_headers():
    compiled = torch.compile(lambda x: x.sin() + 1, options={"cpp_wrapper": True})
    x = torch.randn(5)
    torch.testing.assert_close(compiled(x.to("simdev")).cpu(), x.sin() + 1)


def test_optional_tensors_of_a_package(tmp_path):
    class Select(torch.nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return x[x > 0] * 2, x[:, x[0] > 0]  # the latter's indices begin with None

    x = torch.tensor([[1.0, -2.0, 3.0], [-4.0, 5.0, 6.0]], device="simdev")
    exported = torch.export.export(Select(), (x,))
    path = torch._inductor.aoti_compile_and_package(exported, package_path=str(tmp_path / "model.pt2"))
    flat, columns = torch._inductor.aoti_load_package(path)(x)
    assert flat.tolist() == [2.0, 6.0, 10.0, 12.0]
    assert columns.tolist() == [[1.0, 3.0], [-4.0, 6.0]]
