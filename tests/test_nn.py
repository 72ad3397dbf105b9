"""torch.nn on the device: values, gradients and layouts are the CPU's; nothing is computed on the host."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils._pytree import tree_flatten, tree_map

from tests.conformance.compare import check_same, to_device

DEV = torch.device("simdev", 0)
TOLERANCES = {
    torch.float32: {"rtol": 2e-5, "atol": 2e-5},
    torch.float64: {"rtol": 1e-9, "atol": 1e-9},
    torch.float16: {"rtol": 2e-3, "atol": 2e-3},
    torch.bfloat16: {"rtol": 1.6e-2, "atol": 1.6e-2},
}


@pytest.fixture(autouse=True)
def nothing_runs_on_the_host() -> Iterator[None]:
    torch.simdev.reset_fallbacks()
    yield
    assert torch.simdev.fallbacks() == {}


def tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_flatten(tree)[0] if isinstance(leaf, torch.Tensor)]


def move(tree: Any) -> Any:
    return tree_map(lambda leaf: to_device(leaf) if isinstance(leaf, torch.Tensor) else leaf, tree)


def run(function: Callable[..., Any], *args: Any) -> tuple[Any, list[torch.Tensor]]:
    """What ``function`` returns, and the gradients of a weighted sum of it with respect to its arguments."""
    outputs = function(*args)
    total: Any = 0
    for output in tensors(outputs):
        if output.requires_grad:
            weights = torch.linspace(-1, 1, output.numel(), dtype=torch.float64).view(output.shape)
            total = total + (output * weights.to(output.dtype).to(output.device)).sum()
    if isinstance(total, torch.Tensor):
        total.backward()
    return outputs, [t.grad for t in tensors(args) if t.grad is not None]


def check_function(
    function: Callable[..., Any], *args: Any, strides: bool = True, **tolerance: float
) -> None:
    """``function`` does the same on both devices, and so does its gradient with respect to ``args``."""
    device_args = move(args)
    expected, expected_gradients = run(function, *args)
    actual, gradients = run(function, *device_args)
    dtype = next((t.dtype for t in tensors(args) if t.is_floating_point()), torch.float32)
    tolerance = tolerance or TOLERANCES[dtype]
    check_same(actual, expected, strides=strides, **tolerance)
    assert len(gradients) == len(expected_gradients)
    check_same(gradients, expected_gradients, strides=strides, **tolerance)


def check_module(module: nn.Module, *args: Any, strides: bool = True, **tolerance: float) -> None:
    """``check_function`` for a module, with its parameters' gradients and its buffers."""
    module.zero_grad()
    twin = copy.deepcopy(module).to(DEV)
    device_args = move(args)
    expected, expected_gradients = run(module, *args)
    actual, gradients = run(twin, *device_args)
    dtype = next((t.dtype for t in tensors(args) if t.is_floating_point()), torch.float32)
    tolerance = tolerance or TOLERANCES[dtype]
    check_same(actual, expected, strides=strides, **tolerance)
    check_same(gradients, expected_gradients, strides=strides, **tolerance)
    for (name, parameter), other in zip(module.named_parameters(), twin.parameters(), strict=True):
        assert (parameter.grad is None) == (other.grad is None), name
        if parameter.grad is not None:
            check_same(other.grad, parameter.grad, strides=strides, **tolerance)
    check_same(dict(twin.named_buffers()), dict(module.named_buffers()), **tolerance)


def leaf(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, dtype=dtype, requires_grad=True)


# --- Convolution --------------------------------------------------------------------------------------------

CONVOLUTIONS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "1d": (nn.Conv1d(3, 5, 3, stride=2, padding=1), (2, 3, 11)),
    "1d circular": (nn.Conv1d(4, 4, 3, padding=1, padding_mode="circular"), (2, 4, 9)),
    "1d depthwise": (nn.Conv1d(4, 8, 3, groups=4, dilation=2), (2, 4, 12)),
    "1d transposed": (nn.ConvTranspose1d(3, 4, 3, stride=2, output_padding=1), (2, 3, 7)),
    "2d": (nn.Conv2d(3, 8, 3), (4, 3, 10, 12)),
    "2d without bias": (nn.Conv2d(3, 8, (3, 2), bias=False), (4, 3, 10, 12)),
    "2d same": (nn.Conv2d(3, 4, 3, padding="same", dilation=2), (2, 3, 9, 8)),
    "2d 1x1": (nn.Conv2d(8, 16, 1), (2, 8, 5, 5)),
    "2d strided": (nn.Conv2d(3, 6, 5, stride=(2, 3), padding=(2, 1)), (2, 3, 15, 16)),
    "2d grouped": (nn.Conv2d(6, 9, 3, groups=3), (2, 6, 8, 8)),
    "2d depthwise": (nn.Conv2d(6, 6, 3, groups=6, padding=1), (2, 6, 8, 8)),
    "2d dilated": (nn.Conv2d(3, 4, 3, dilation=2), (2, 3, 12, 12)),
    "2d reflect": (nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect"), (2, 3, 6, 6)),
    "2d unbatched": (nn.Conv2d(3, 4, 3), (3, 8, 8)),
    "2d empty batch": (nn.Conv2d(3, 4, 3), (0, 3, 8, 8)),
    "2d transposed": (nn.ConvTranspose2d(4, 3, 3, stride=2, padding=1, output_padding=1), (2, 4, 5, 6)),
    "2d transposed grouped": (nn.ConvTranspose2d(4, 6, 3, groups=2, dilation=2), (2, 4, 5, 6)),
    "3d": (nn.Conv3d(2, 4, 3, padding=1), (2, 2, 5, 6, 7)),
    "3d dilated": (nn.Conv3d(2, 4, 2, dilation=2), (2, 2, 5, 6, 7)),
    "3d grouped": (nn.Conv3d(4, 4, 2, groups=2), (2, 4, 4, 4, 4)),
    "3d transposed": (nn.ConvTranspose3d(3, 2, 2, stride=2), (2, 3, 3, 4, 2)),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_convolution(name: str, dtype: torch.dtype) -> None:
    module, shape = CONVOLUTIONS[name]
    check_module(copy.deepcopy(module).to(dtype), leaf(*shape, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", [name for name in CONVOLUTIONS if name.startswith("2d")])
def test_channels_last_convolution(name: str, dtype: torch.dtype) -> None:
    module, shape = CONVOLUTIONS[name]
    if len(shape) != 4:
        pytest.skip("needs a batch")
    for module_format, input_format in itertools.product(
        [torch.contiguous_format, torch.channels_last], repeat=2
    ):
        twin = copy.deepcopy(module).to(dtype=dtype, memory_format=module_format)
        x = torch.randn(shape, dtype=dtype).to(memory_format=input_format)
        check_module(twin, x.requires_grad_())


def test_convolution_of_strided_views() -> None:
    x = torch.randn(9, 2, 3, 10).permute(1, 2, 3, 0)[:, :, ::2].requires_grad_()
    weight = torch.randn(3, 3, 3, 5).permute(3, 0, 1, 2).requires_grad_()
    check_function(lambda x, w: F.conv2d(x, w), x, weight)


@pytest.mark.parametrize("needs", [(True, False, False), (False, True, False), (False, False, True)])
def test_convolution_computes_only_the_gradients_asked_for(needs: tuple[bool, bool, bool]) -> None:
    args = [
        torch.randn(s).requires_grad_(n)
        for s, n in zip([(2, 3, 6, 6), (4, 3, 3, 3), (4,)], needs, strict=True)
    ]
    check_function(F.conv2d, *args)


def test_convolution_double_backward() -> None:
    def function(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        y = F.conv2d(x, w, b, stride=2, padding=1)
        gradients = torch.autograd.grad(y.square().sum(), (x, w, b), create_graph=True)
        return sum(g.square().sum() for g in gradients)

    check_function(
        function, leaf(2, 3, 6, 6, dtype=torch.double), leaf(4, 3, 3, 3, dtype=torch.double),
        leaf(4, dtype=torch.double),
    )  # fmt: skip


def test_complex_convolution() -> None:
    args = [torch.randn(s, dtype=torch.cfloat) for s in ((2, 3, 6, 6), (4, 3, 3, 3), (4,))]
    check_function(F.conv2d, *args, rtol=2e-5, atol=2e-5)


CONVOLUTION_ERRORS = {
    "channels": (lambda d: F.conv2d(torch.ones(1, 3, 5, 5, device=d), torch.ones(2, 4, 3, 3, device=d)),
                 "expected input.* to have 4 channels, but got 3"),
    "kernel": (lambda d: F.conv2d(torch.ones(1, 3, 2, 2, device=d), torch.ones(2, 3, 3, 3, device=d)),
               "Kernel size can't be greater than actual input size"),
    "dtype": (lambda d: F.conv2d(torch.ones(1, 3, 5, 5, device=d), torch.ones(2, 3, 3, 3, device=d).double()),
              "should be the same|but found Double"),
    "bias size": (lambda d: F.conv2d(torch.ones(1, 3, 5, 5, device=d), torch.ones(2, 3, 3, 3, device=d),
                                     torch.ones(3, device=d)), "expected bias to be 1-dimensional with 2"),
}  # fmt: skip


@pytest.mark.parametrize("name", CONVOLUTION_ERRORS)
def test_convolution_errors(name: str) -> None:
    call, message = CONVOLUTION_ERRORS[name]
    for device in ("cpu", "simdev"):
        with pytest.raises(RuntimeError, match=message):
            call(device)


def test_convolution_of_mixed_devices_is_refused() -> None:
    x, w = torch.ones(1, 3, 5, 5), torch.ones(2, 3, 3, 3)
    for args in (
        (x.to(DEV), w),
        (x, w.to(DEV)),
        (x.to(DEV), w.to("simdev:1")),
        (x.to(DEV), w.to(DEV), torch.ones(2)),
    ):
        with pytest.raises(RuntimeError, match=r"should be the same|same device"):
            F.conv2d(*args)


# --- Normalisation ------------------------------------------------------------------------------------------

NORMALISATIONS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "batch 1d": (nn.BatchNorm1d(6), (9, 6)),
    "batch 1d sequence": (nn.BatchNorm1d(6), (9, 6, 5)),
    "batch 2d": (nn.BatchNorm2d(6), (3, 6, 5, 4)),
    "batch 2d cumulative": (nn.BatchNorm2d(6, momentum=None), (3, 6, 5, 4)),
    "batch 2d without statistics": (nn.BatchNorm2d(6, track_running_stats=False), (3, 6, 5, 4)),
    "batch 2d without affine": (nn.BatchNorm2d(6, affine=False), (3, 6, 5, 4)),
    "batch 3d": (nn.BatchNorm3d(6), (3, 6, 5, 4, 2)),
    "layer": (nn.LayerNorm(7), (3, 4, 7)),
    "layer 2d": (nn.LayerNorm((4, 7)), (3, 4, 7)),
    "layer without affine": (nn.LayerNorm(7, elementwise_affine=False), (3, 4, 7)),
    "layer without bias": (nn.LayerNorm(7, bias=False), (3, 4, 7)),
    "group": (nn.GroupNorm(3, 6), (3, 6, 5, 4)),
    "group without affine": (nn.GroupNorm(2, 6, affine=False), (3, 6, 5)),
    "instance 1d": (nn.InstanceNorm1d(6), (3, 6, 5)),
    "instance 2d": (nn.InstanceNorm2d(6, affine=True, track_running_stats=True), (3, 6, 5, 4)),
    "local response": (nn.LocalResponseNorm(2), (3, 6, 5, 4)),
    "rms": (nn.RMSNorm(7), (3, 4, 7)),
}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", NORMALISATIONS)
def test_normalisation(name: str, dtype: torch.dtype, training: bool) -> None:
    module, shape = NORMALISATIONS[name]
    if name == "local response" and dtype == torch.bfloat16:
        pytest.skip("the CPU's 3-d pooling has no bfloat16")
    module = copy.deepcopy(module).to(dtype).train(training)
    for parameter in module.parameters():
        nn.init.uniform_(parameter, -1, 1)
    check_module(module, leaf(*shape, dtype=dtype))
    if len(shape) == 4:
        check_module(
            module, torch.randn(shape, dtype=dtype).to(memory_format=torch.channels_last).requires_grad_()
        )
    if len(shape) == 3:
        check_module(module, torch.randn(shape[::-1], dtype=dtype).permute(2, 1, 0).requires_grad_())


@pytest.mark.parametrize("name", ["batch 2d", "layer", "group"])
def test_low_precision_input_with_float_parameters(name: str) -> None:
    module, shape = NORMALISATIONS[name]
    check_module(copy.deepcopy(module), leaf(*shape, dtype=torch.bfloat16))


def test_running_statistics_follow_stream_order() -> None:
    module = nn.BatchNorm1d(4)
    twin = copy.deepcopy(module).to(DEV)
    for step in range(20):
        x = torch.randn(8, 4) * step
        module(x)
        twin(x.to(DEV))
    check_same(dict(twin.state_dict()), dict(module.state_dict()), rtol=1e-5, atol=1e-5)


def test_empty_batch_and_normalisation_errors() -> None:
    check_module(nn.BatchNorm2d(3).eval(), leaf(0, 3, 4, 4))
    check_module(nn.LayerNorm(3), leaf(0, 3))
    check_module(nn.GroupNorm(1, 3), leaf(0, 3, 4))
    for device in ("cpu", "simdev"):
        with pytest.raises(RuntimeError, match="expected input with shape"):
            F.layer_norm(torch.ones(2, 3, device=device), (4,))
        with pytest.raises(RuntimeError, match="mixed dtype"):
            F.layer_norm(
                torch.ones(2, 3, device=device), (3,), torch.ones(3, device=device, dtype=torch.half)
            )
        with pytest.raises(RuntimeError, match="running_mean should contain"):
            F.batch_norm(
                torch.ones(2, 3, device=device), torch.ones(4, device=device), torch.ones(4, device=device)
            )


# --- Recurrent networks -------------------------------------------------------------------------------------

RECURRENT = {
    "tanh": (nn.RNN, {}),
    "relu": (nn.RNN, {"nonlinearity": "relu"}),
    "gru": (nn.GRU, {}),
    "lstm": (nn.LSTM, {}),
    "lstm projected": (nn.LSTM, {"proj_size": 3}),
}
VARIANTS = {
    "plain": {},
    "without bias": {"bias": False},
    "layers": {"num_layers": 2},
    "bidirectional": {"bidirectional": True},
    "deep": {"num_layers": 2, "bidirectional": True, "batch_first": True},
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kind", RECURRENT)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_recurrent(kind: str, variant: str, dtype: torch.dtype) -> None:
    cls, options = RECURRENT[kind]
    module = cls(4, 6, **options, **VARIANTS[variant]).to(dtype)
    check_module(module, leaf(5, 3, 4, dtype=dtype), strides=False)
    # With an initial state, whose gradient is asked for too.
    batch = 5 if module.batch_first else 3
    directions = module.num_layers * (2 if module.bidirectional else 1)
    hidden = leaf(directions, batch, options.get("proj_size", 6), dtype=dtype)
    state = (hidden, leaf(directions, batch, 6, dtype=dtype)) if cls is nn.LSTM else hidden
    check_module(module, leaf(5, 3, 4, dtype=dtype), state, strides=False)
    check_module(module.eval(), leaf(5, 4, dtype=dtype), strides=False)  # unbatched


@pytest.mark.parametrize("kind", RECURRENT)
@pytest.mark.parametrize("bidirectional", [False, True])
def test_packed_sequences(kind: str, bidirectional: bool) -> None:
    cls, options = RECURRENT[kind]

    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = cls(4, 6, num_layers=2, bidirectional=bidirectional, **options)

        def forward(self, x: torch.Tensor) -> Any:
            packed = pack_padded_sequence(x, torch.tensor([3, 5, 1]), enforce_sorted=False)
            output, state = self.rnn(packed)
            return pad_packed_sequence(output)[0], state

    check_module(Packed(), leaf(5, 3, 4), strides=False)


@pytest.mark.parametrize("kind", [nn.RNNCell, nn.GRUCell, nn.LSTMCell])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_cells(kind: type[nn.Module], bias: bool, dtype: torch.dtype) -> None:
    module = kind(4, 6, bias=bias).to(dtype)
    state = leaf(3, 6, dtype=dtype)
    loose = {"rtol": 5e-2, "atol": 5e-2} if dtype == torch.bfloat16 else {}
    check_module(module, leaf(3, 4, dtype=dtype), strides=False, **loose)
    if kind is nn.LSTMCell:
        state = (state, leaf(3, 6, dtype=dtype))
    check_module(module, leaf(3, 4, dtype=dtype), state, strides=False, **loose)
    check_module(module, leaf(4, dtype=dtype), strides=False, **loose)


@pytest.mark.parametrize("output", [0, 1])
def test_lstm_cell_with_one_undefined_gradient(output: int) -> None:
    module = nn.LSTMCell(4, 6)
    function = lambda m: lambda x, h, c: m(x, (h, c))[output]
    x, h, c = leaf(3, 4), leaf(3, 6), leaf(3, 6)
    device_args = move((x, h, c))
    expected = run(function(module), x, h, c)
    check_same(
        run(function(copy.deepcopy(module).to(DEV)), *device_args),
        expected,
        strides=False,
        rtol=1e-5,
        atol=1e-5,
    )


@pytest.mark.parametrize("kind", [nn.GRUCell, nn.LSTMCell])
def test_cell_double_backward(kind: type[nn.Module]) -> None:
    class Norm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = kind(4, 6).double()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.cell(x)
            (gradient,) = torch.autograd.grad(
                (y[0] if isinstance(y, tuple) else y).square().sum(), x, create_graph=True
            )
            return gradient.square().sum()

    check_module(Norm(), leaf(3, 4, dtype=torch.double), strides=False)


def test_a_layer_of_an_lstm_is_one_kernel() -> None:
    module, x = nn.LSTM(4, 6).to(DEV), torch.randn(5, 3, 4, device=DEV, requires_grad=True)

    def nodes(function: Any, found: set[str]) -> set[str]:
        if function is not None and function not in found:
            found.add(function.name())
            for following, _ in function.next_functions:
                nodes(following, found)
        return found

    fused, state = module(x)[0], torch.zeros(1, 3, 6, device=DEV)
    assert "MkldnnRnnLayerBackward0" in nodes(fused.grad_fn, set())
    with torch.backends.mkldnn.flags(enabled=False):
        cells = module(x)[0]
    assert "MkldnnRnnLayerBackward0" not in nodes(cells.grad_fn, set())
    torch.testing.assert_close(fused, cells)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):  # as nn.LSTM's own check would
        torch._VF.lstm(
            x[..., :3], (state, state), list(module.parameters()), True, 1, 0.0, True, False, False
        )
    with torch.autocast(DEV.type, dtype=torch.bfloat16):
        assert module(x)[0].dtype == torch.bfloat16


def test_dropout_between_layers() -> None:
    module = nn.LSTM(4, 6, num_layers=3, dropout=0.5).to(DEV)
    x = torch.randn(5, 3, 4, device=DEV)
    torch.manual_seed(0)
    first = module(x)[0]
    assert (module(x)[0] != first).any().item()
    torch.manual_seed(0)
    assert (module(x)[0] == first).all().item()
    assert (module.eval()(x)[0] == module(x)[0]).all().item()


# --- Embedding ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"padding_idx": 2}, {"scale_grad_by_freq": True}], ids=str)
def test_embedding(options: dict[str, Any]) -> None:
    check_module(nn.Embedding(7, 5, **options), torch.tensor([[1, 2, 6, 1], [0, 2, 2, 5]]))


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_embedding_bag(mode: str) -> None:
    check_module(nn.EmbeddingBag(7, 5, mode=mode), torch.tensor([1, 2, 6, 1, 0]), torch.tensor([0, 2, 2]))
    check_module(nn.EmbeddingBag(7, 5, mode=mode), torch.tensor([[1, 2], [3, 3]]))


# --- Attention ----------------------------------------------------------------------------------------------


def attention_inputs(
    layout: str, dtype: torch.dtype, kv_heads: int = 4, kv_length: int = 7
) -> list[torch.Tensor]:
    shapes = [(2, 4, 5, 8), (2, kv_heads, kv_length, 8), (2, kv_heads, kv_length, 8)]
    if layout == "heads last":  # as most models have them
        return [
            torch.randn(b, n, h, e, dtype=dtype).transpose(1, 2).requires_grad_() for b, h, n, e in shapes
        ]
    return [leaf(*s, dtype=dtype) for s in shapes]


MASKS: dict[str, Callable[[torch.dtype], torch.Tensor | None]] = {
    "none": lambda dtype: None,
    "bool": lambda dtype: torch.rand(5, 7) > 0.3,
    "bool per head": lambda dtype: torch.rand(2, 4, 5, 7) > 0.3,
    "float": lambda dtype: torch.randn(5, 7, dtype=dtype),
    "float per batch": lambda dtype: torch.randn(2, 1, 1, 7, dtype=dtype),
    "all masked": lambda dtype: torch.arange(5)[:, None].expand(5, 7) > 1,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("layout", ["heads first", "heads last"])
@pytest.mark.parametrize("mask", MASKS)
def test_attention_with_masks(mask: str, layout: str, dtype: torch.dtype) -> None:
    low = dtype in (torch.bfloat16, torch.float16)
    tolerance = {"rtol": 2e-2, "atol": 2e-2} if low else {}
    check_function(
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m), *attention_inputs(layout, dtype),
        MASKS[mask](dtype), strides=False, **tolerance,
    )  # fmt: skip


@pytest.mark.parametrize("options", [
    {"is_causal": True}, {"scale": 0.5}, {"is_causal": True, "scale": 2.0},
], ids=str)  # fmt: skip
def test_attention_options(options: dict[str, Any]) -> None:
    function = lambda q, k, v: F.scaled_dot_product_attention(q, k, v, **options)
    for layout in ("heads first", "heads last"):
        check_function(function, *attention_inputs(layout, torch.float32), strides=False)
        check_function(function, *attention_inputs(layout, torch.float32, kv_length=5), strides=False)


@pytest.mark.parametrize("kv_heads", [1, 2])
def test_grouped_query_attention(kv_heads: int) -> None:
    check_function(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True),
        *attention_inputs("heads last", torch.float32, kv_heads), strides=False,
    )  # fmt: skip


def test_attention_that_is_composed() -> None:
    """What the fused kernel does not do: 3-d, unequal head sizes, empty, a mask with a gradient, strides."""
    attention = F.scaled_dot_product_attention
    check_function(attention, leaf(4, 5, 8), leaf(4, 7, 8), leaf(4, 7, 8))
    check_function(attention, leaf(2, 4, 5, 8), leaf(2, 4, 7, 8), leaf(2, 4, 7, 6))
    check_function(attention, *attention_inputs("heads first", torch.float32), leaf(5, 7))
    check_function(attention, leaf(2, 4, 0, 8), leaf(2, 4, 7, 8), leaf(2, 4, 7, 8))
    transposed = [torch.randn(2, 4, 8, n).transpose(2, 3).requires_grad_() for n in (5, 7, 7)]
    check_function(attention, *transposed, strides=False)


def test_attention_backend_choice() -> None:
    q = torch.randn(2, 4, 5, 8, device=DEV)
    choose = lambda *args: SDPBackend(torch._fused_sdp_choice(q, q, q, *args))
    assert choose() == SDPBackend.OVERRIDEABLE
    assert choose(None, 0.5) == SDPBackend.MATH
    expected = F.scaled_dot_product_attention(q, q, q)
    for backend in (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION, SDPBackend.OVERRIDEABLE):
        with sdpa_kernel(backend):
            assert choose() == backend
            torch.testing.assert_close(F.scaled_dot_product_attention(q, q, q), expected)
    with sdpa_kernel(SDPBackend.OVERRIDEABLE), pytest.raises(RuntimeError, match="No viable backend"):
        F.scaled_dot_product_attention(q, q, q, dropout_p=0.5)
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION), pytest.raises(RuntimeError, match="No viable backend"):
        F.scaled_dot_product_attention(q, q, q)


def test_attention_mask_on_the_host_is_refused() -> None:
    q = torch.randn(2, 4, 5, 8, device=DEV)
    with pytest.raises(RuntimeError, match="same device"):
        F.scaled_dot_product_attention(q, q, q, torch.zeros(5, 5))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("options", [
    {}, {"batch_first": True}, {"bias": False}, {"kdim": 6, "vdim": 10},
    {"add_bias_kv": True, "add_zero_attn": True},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("need_weights", [True, False])
def test_multihead_attention(options: dict[str, Any], training: bool, need_weights: bool) -> None:
    module = nn.MultiheadAttention(8, 2, **options).train(training)
    key = torch.randn(5, 3, options.get("kdim", 8))
    value = torch.randn(5, 3, options.get("vdim", 8))
    query = torch.randn(5, 3, 8)

    class Wrapper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = module

        def forward(self, *args: Any) -> Any:
            return self.attention(
                *args[:3], key_padding_mask=args[3], attn_mask=args[4], need_weights=need_weights
            )

    batch, length = (5, 3) if options.get("batch_first") else (3, 5)
    padding = torch.zeros(batch, length, dtype=torch.bool)
    padding[:, -1] = True
    causal = torch.triu(torch.ones(length, length, dtype=torch.bool), 1)
    check_module(Wrapper(), query, key, value, None, None, strides=False)
    for masks in ((padding, None), (None, causal), (padding, causal)):
        check_module(Wrapper(), query.clone().requires_grad_(), key, value, *masks, strides=False)
    with torch.no_grad():
        if not options.get("kdim"):
            same = query.clone()
            twin = copy.deepcopy(module).to(DEV)
            for masks in ({}, {"key_padding_mask": padding}, {"attn_mask": causal}):
                expected = module(same, same, same, need_weights=need_weights, **masks)
                x = to_device(same)
                actual = twin(x, x, x, need_weights=need_weights, **move(masks))
                check_same(actual, expected, strides=False, rtol=2e-5, atol=2e-5)


# --- Transformer --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_transformer_encoder(training: bool, norm_first: bool, activation: str) -> None:
    layer = nn.TransformerEncoderLayer(
        8, 2, 16, dropout=0.0, activation=activation, batch_first=True, norm_first=norm_first
    )
    module = nn.TransformerEncoder(layer, 2, enable_nested_tensor=not norm_first).train(training)
    x = torch.randn(3, 5, 8)
    padding = torch.arange(5) >= torch.tensor([5, 3, 2])[:, None]
    causal = nn.Transformer.generate_square_subsequent_mask(5)
    for masks in ((None, None), (causal, None), (None, padding)):
        check_module(module, x.clone().requires_grad_(), *masks, strides=False)
        # Without gradients evaluation takes PyTorch's fused path.
        with torch.no_grad():
            expected = module(x, *masks)
            actual = copy.deepcopy(module).to(DEV)(to_device(x), *move(masks))
            check_same(actual, expected, strides=False, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("training", [True, False])
def test_transformer(training: bool) -> None:
    module = nn.Transformer(8, 2, 2, 2, 16, dropout=0.0).train(training)
    causal = nn.Transformer.generate_square_subsequent_mask(4)

    class Wrapper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.transformer = module

        def forward(self, source: torch.Tensor, target: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return self.transformer(source, target, tgt_mask=mask, tgt_is_causal=True)

    check_module(Wrapper(), leaf(5, 3, 8), leaf(4, 3, 8), causal, strides=False)
    with torch.no_grad():
        check_module(Wrapper(), torch.randn(5, 3, 8), torch.randn(4, 3, 8), causal, strides=False)


def test_transformer_trains_with_dropout() -> None:
    module = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.3).to(DEV)
    x = torch.randn(5, 3, 8, device=DEV)
    torch.manual_seed(0)
    first = module(x)
    assert (module(x) != first).any().item()
    torch.manual_seed(0)
    assert (module(x) == first).all().item()
    first.sum().backward()
    assert all(p.grad.isfinite().all().item() for p in module.parameters())


# --- Losses, activations, pooling and the like --------------------------------------------------------------

CLASSES = torch.tensor([1, 0, 3, 2])
LOSSES: dict[str, tuple[nn.Module, Callable[[], tuple[torch.Tensor, ...]]]] = {
    "l1": (nn.L1Loss(), lambda: (leaf(4, 5), torch.randn(4, 5))),
    "mse": (nn.MSELoss(reduction="sum"), lambda: (leaf(4, 5), leaf(4, 5))),
    "cross entropy": (nn.CrossEntropyLoss(), lambda: (leaf(4, 5), CLASSES)),
    "cross entropy smoothed": (
        nn.CrossEntropyLoss(torch.rand(5), ignore_index=3, label_smoothing=0.1, reduction="sum"),
        lambda: (leaf(4, 5), CLASSES),
    ),
    "cross entropy soft": (nn.CrossEntropyLoss(), lambda: (leaf(4, 5), torch.rand(4, 5).softmax(1))),
    "cross entropy 2d": (
        nn.CrossEntropyLoss(reduction="none"), lambda: (leaf(4, 5, 3), CLASSES[:, None].expand(4, 3)),
    ),
    "nll": (nn.NLLLoss(), lambda: (leaf(4, 5).log_softmax(1).detach().requires_grad_(), CLASSES)),
    "ctc": (
        nn.CTCLoss(),
        lambda: (torch.randn(9, 2, 5).log_softmax(2).requires_grad_(), torch.tensor([[1, 2, 3], [4, 1, 2]]),
                 torch.tensor([9, 8]), torch.tensor([3, 2])),
    ),
    "poisson": (nn.PoissonNLLLoss(), lambda: (leaf(4, 5), torch.rand(4, 5))),
    "gaussian": (nn.GaussianNLLLoss(), lambda: (leaf(4, 5), torch.randn(4, 5), torch.rand(4, 5))),
    "kl": (nn.KLDivLoss(reduction="batchmean"), lambda: (leaf(4, 5), torch.rand(4, 5))),
    "bce": (nn.BCELoss(), lambda: (torch.rand(4, 5).requires_grad_(), torch.rand(4, 5))),
    "bce logits": (nn.BCEWithLogitsLoss(pos_weight=torch.rand(5)), lambda: (leaf(4, 5), torch.rand(4, 5))),
    "margin ranking": (nn.MarginRankingLoss(), lambda: (leaf(4), leaf(4), torch.tensor([1.0, -1, 1, -1]))),
    "hinge": (nn.HingeEmbeddingLoss(), lambda: (leaf(4), torch.tensor([1.0, -1, 1, -1]))),
    "multi label": (
        nn.MultiLabelMarginLoss(), lambda: (leaf(2, 4), torch.tensor([[1, 3, -1, 0], [0, -1, 1, 2]])),
    ),
    "huber": (nn.HuberLoss(), lambda: (leaf(4, 5), torch.randn(4, 5))),
    "smooth l1": (nn.SmoothL1Loss(), lambda: (leaf(4, 5), torch.randn(4, 5))),
    "soft margin": (nn.SoftMarginLoss(), lambda: (leaf(4), torch.tensor([1.0, -1, 1, -1]))),
    "multi label soft": (nn.MultiLabelSoftMarginLoss(), lambda: (leaf(2, 4), torch.rand(2, 4).round())),
    "cosine": (nn.CosineEmbeddingLoss(), lambda: (leaf(2, 4), leaf(2, 4), torch.tensor([1, -1]))),
    "multi margin": (nn.MultiMarginLoss(), lambda: (leaf(4, 5), CLASSES)),
    "triplet": (nn.TripletMarginLoss(), lambda: (leaf(2, 4), leaf(2, 4), leaf(2, 4))),
}  # fmt: skip


@pytest.mark.parametrize("name", LOSSES)
def test_loss(name: str) -> None:
    module, make = LOSSES[name]
    check_module(copy.deepcopy(module), *make(), strides=False)


LAYERS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    **{
        cls.__name__: (cls(), (3, 4, 6))
        for cls in (
            nn.ReLU, nn.ReLU6, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Sigmoid, nn.Tanh,
            nn.Softplus, nn.Hardswish, nn.Hardsigmoid, nn.Hardtanh, nn.LeakyReLU, nn.LogSigmoid, nn.PReLU,
            nn.Softsign, nn.Softshrink, nn.Hardshrink, nn.Tanhshrink, nn.GLU,
        )
    },
    "softmax": (nn.Softmax(1), (3, 4, 6)),
    "log softmax": (nn.LogSoftmax(-1), (3, 4, 6)),
    "linear": (nn.Linear(6, 5), (3, 4, 6)),
    "identity": (nn.Identity(), (3, 4)),
    "max pool 2d": (nn.MaxPool2d(2), (2, 3, 6, 7)),
    "max pool with indices": (nn.MaxPool2d(3, 1, return_indices=True), (2, 3, 6, 7)),
    "avg pool 1d": (nn.AvgPool1d(2), (2, 3, 7)),
    "avg pool 2d": (nn.AvgPool2d(3, 2, 1), (2, 3, 6, 7)),
    "avg pool 3d": (nn.AvgPool3d(2), (2, 3, 4, 6, 7)),
    "adaptive avg pool": (nn.AdaptiveAvgPool2d((2, 3)), (2, 3, 6, 7)),
    "adaptive max pool": (nn.AdaptiveMaxPool2d(2), (2, 3, 6, 7)),
    "lp pool": (nn.LPPool2d(2, 2), (2, 3, 6, 7)),
    "pad": (nn.ReflectionPad2d(1), (2, 3, 6, 7)),
    "replication pad": (nn.ReplicationPad1d(2), (2, 3, 6)),
    "constant pad": (nn.ConstantPad2d(1, 2.5), (2, 3, 6, 7)),
    "upsample nearest": (nn.Upsample(scale_factor=2), (2, 3, 4, 5)),
    "upsample bilinear": (nn.Upsample(size=(7, 9), mode="bilinear"), (2, 3, 4, 5)),
    "upsample bicubic": (nn.Upsample(size=(7, 9), mode="bicubic"), (2, 3, 4, 5)),
    "pixel shuffle": (nn.PixelShuffle(2), (2, 8, 3, 3)),
    "unfold": (nn.Unfold(2), (2, 3, 4, 5)),
    "fold": (nn.Fold((4, 5), 2), (2, 12, 12)),
    "flatten": (nn.Flatten(), (2, 3, 4)),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
def test_layer(name: str) -> None:
    module, shape = LAYERS[name]
    check_module(copy.deepcopy(module), leaf(*shape), strides=False)


# --- With the device as the default -------------------------------------------------------------------------

SMALL_MODELS: dict[str, Callable[[], tuple[nn.Module, tuple[torch.Tensor, ...]]]] = {
    "convolution": lambda: (
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                      nn.LazyLinear(3)),
        (torch.randn(2, 1, 8, 8),),
    ),
    "lstm": lambda: (nn.LSTM(4, 6, 2, bidirectional=True), (torch.randn(5, 3, 4),)),
    "gru": lambda: (nn.GRU(4, 6), (torch.randn(5, 3, 4),)),
    "attention": lambda: (nn.MultiheadAttention(8, 2), tuple(torch.randn(3, 5, 2, 8))),
    "transformer": lambda: (nn.Transformer(8, 2, 1, 1, 16), (torch.randn(5, 3, 8), torch.randn(4, 3, 8))),
    "embedding": lambda: (nn.Sequential(nn.Embedding(5, 4), nn.LayerNorm(4)), (torch.randint(5, (3, 4)),)),
    "groups": lambda: (nn.Sequential(nn.GroupNorm(2, 4), nn.Dropout(0.5)), (torch.randn(2, 4, 3),)),
}  # fmt: skip


@pytest.mark.parametrize("name", SMALL_MODELS)
@pytest.mark.parametrize("how", ["set_default_device", "context"])
def test_models_made_and_trained_on_the_default_device(name: str, how: str) -> None:
    def train() -> list[float]:
        torch.manual_seed(0)
        model, inputs = SMALL_MODELS[name]()
        assert all(t.device == DEV for t in [*model.parameters(), *inputs])
        model(*inputs)  # makes lazy parameters
        optimizer = torch.optim.Adam(model.parameters(), 0.01)
        losses = []
        for _ in range(3):
            optimizer.zero_grad()
            loss = sum(t.square().mean() for t in tensors(model(*inputs)))
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    if how == "context":
        with DEV:
            losses = train()
            assert losses == train()
    else:
        torch.set_default_device(DEV)
        try:
            losses = train()
            assert losses == train()
        finally:
            torch.set_default_device(None)
    assert losses[-1] != losses[0]


@pytest.mark.parametrize(
    ("optimizer", "options"),
    [
        (torch.optim.SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
        (torch.optim.Adam, {"amsgrad": True}),
        (torch.optim.AdamW, {"weight_decay": 0.1}),
        (torch.optim.Adagrad, {"lr_decay": 0.1}),
    ],
)
def test_fused_optimizers_step_as_on_the_cpu(
    optimizer: type[torch.optim.Optimizer], options: dict[str, float | bool]
) -> None:
    generator = torch.Generator().manual_seed(0)
    initial = [torch.randn(size, generator=generator) for size in (5, 1000, 70000)]
    grads = [[torch.randn(p.shape, generator=generator) for p in initial] for _ in range(3)]
    results = []
    for device in ("cpu", "simdev"):
        parameters = [p.to(device, copy=True).requires_grad_() for p in initial]
        stepper = optimizer(parameters, lr=0.01, fused=True, **options)  # type: ignore[call-arg]
        for step in grads:
            for parameter, grad in zip(parameters, step):
                parameter.grad = grad.to(device)
            stepper.step()
        results.append([p.detach().cpu() for p in parameters])
    for expected, actual in zip(*results):
        assert torch.equal(actual, expected)
