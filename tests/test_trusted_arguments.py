"""Arguments that ATen's kernels for the CPU trust: there a wrong one ends the process, or never returns."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence
from torch.quasirandom import SobolEngine

from tests.conformance.compare import check_same

DEV = "simdev"
ATEN = torch.ops.aten


def trunc(x: Tensor, y: Tensor | int) -> Tensor:
    return torch.div(x, y, rounding_mode="trunc")


# Each with what it gives for the least integer and -1, as on CUDA; None for the least integer, its own negative.
DIVISIONS: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], int | None]] = {
    "div, trunc": (trunc, None),
    "div, trunc, a number": (lambda x, y: trunc(x, -1), None),
    "div, trunc, into another tensor": (
        lambda x, y: torch.div(x, y, rounding_mode="trunc", out=torch.empty_like(x)),
        None,
    ),
    "div_, trunc": (lambda x, y: x.clone().div_(y, rounding_mode="trunc"), None),
    "div, floor": (lambda x, y: torch.div(x, y, rounding_mode="floor"), None),
    "//": (lambda x, y: x // y, None),
    "// of a number": (lambda x, y: x // -1, None),
    "//=": (lambda x, y: x.clone().floor_divide_(y), None),
    "%": (lambda x, y: x % y, 0),
    "% of a number": (lambda x, y: x % -1, 0),
    "%=": (lambda x, y: x.clone().remainder_(y), 0),
    "fmod": (torch.fmod, 0),
}


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.int8])
def test_the_least_integer_divided_by_minus_one_wraps_around(dtype: torch.dtype, compiled: bool) -> None:
    least = torch.iinfo(dtype).min
    x = torch.tensor([least, 7, -7, least + 1, 0] * 9, dtype=dtype)
    y = torch.full_like(x, -1)

    def divide(x: Tensor, y: Tensor) -> list[Tensor]:
        return [operator(x, y) for operator, _ in DIVISIONS.values()]

    function = torch.compile(divide) if compiled else divide
    for device_result, (name, (_, of_least)) in zip(function(x.to(DEV), y.to(DEV)), DIVISIONS.items()):
        expected = [least, -7, 7, -(least + 1), 0] if of_least is None else [0] * 5
        assert device_result.tolist() == expected * 9, name


def test_the_greatest_byte_is_not_minus_one() -> None:
    x, y = torch.arange(200, 256, dtype=torch.uint8), torch.full((56,), 255, dtype=torch.uint8)
    function = lambda x, y: (trunc(x, y), x // y, x % y, trunc(x, y[:1]))
    for device_function in (function, torch.compile(function)):
        for actual, expected in zip(device_function(x.to(DEV), y.to(DEV)), function(x, y)):
            check_same(actual, expected)


def test_a_compiled_quotient_by_different_divisors() -> None:
    """Vectors whose elements differ, of numbers and by numbers, and those in which no divisor is -1."""
    least = torch.iinfo(torch.int64).min
    x = torch.tensor([least, least, 7, -9, least, 100, 5, 6, 7, 8, 9] * 3)
    y = torch.tensor([-1, 2, -1, -2, 1, -1, 1, 2, 3, 4, 5] * 3)
    function = lambda x, y: (trunc(x, y), x // y, x % y, trunc(x, y[:1]), least // y, trunc(x, -1))
    actual = torch.compile(function)(x.to(DEV), y.to(DEV))
    wrapped = [least] * 2 + [-7, 9, least, -100, -5, -6, -7, -8, -9]
    assert actual[0].tolist() == [least, least // 2, -7, 4, least, -100, 5, 3, 2, 2, 1] * 3
    assert actual[1].tolist() == [least, least // 2, -7, 4, least, -100, 5, 3, 2, 2, 1] * 3
    assert actual[2].tolist() == [0, 0, 0, -1, 0, 0, 0, 0, 1, 0, 4] * 3
    assert actual[3].tolist() == actual[5].tolist() == wrapped * 3
    assert actual[4].tolist() == [least if n == -1 else least // n for n in y.tolist()]


def test_truncating_division_broadcasts_promotes_and_reports_zeros() -> None:
    x, y = torch.arange(-6, 6).view(3, 4), torch.tensor([2, -3, 4, -1], dtype=torch.int32)
    check_same(trunc(x.to(DEV), y.to(DEV)), trunc(x, y))
    check_same(trunc(x.t().to(DEV), 4), trunc(x.t(), 4))
    with pytest.raises(torch.AcceleratorError, match="ZeroDivisionError"):
        trunc(x.to(DEV), 0).cpu()


@pytest.mark.parametrize("sizes", [[3, -1], [2, -500000], [2, 5], [-1, -1], [3, 1, 2]])
def test_packed_sequences_do_not_grow(sizes: list[int]) -> None:
    packed = PackedSequence(torch.ones(10, 3, device=DEV), torch.tensor(sizes))
    with pytest.raises(RuntimeError, match="batch_sizes must be non-negative and must not increase"):
        pad_packed_sequence(packed)


def test_gradients_pass_through_padding() -> None:
    data = torch.randn(6, 2)
    grads = []
    for device in ("cpu", DEV):
        leaf = data.detach().to(device).requires_grad_()
        padded, lengths = pad_packed_sequence(PackedSequence(leaf, torch.tensor([3, 2, 1])), total_length=4)
        assert lengths.tolist() == [3, 2, 1]
        (padded * torch.arange(24.0).view(4, 3, 2).to(device)).sum().backward()
        grads.append(leaf.grad)
    check_same(grads[1], grads[0])


def sobol(device: str) -> list[Tensor]:
    """What a scrambled engine does, with its state on `device`."""
    state = torch.zeros(3, SobolEngine.MAXBIT, dtype=torch.long, device=device)
    torch._sobol_engine_initialize_state_(state, 3)
    matrices = torch.randint(2, (3, SobolEngine.MAXBIT, SobolEngine.MAXBIT), generator=torch.manual_seed(0))
    torch._sobol_engine_scramble_(state, matrices.tril().to(device), 3)
    last = torch.zeros(3, dtype=torch.long, device=device)
    points, next_last = torch._sobol_engine_draw(last, 5, state, 3, 0, torch.float32)
    torch._sobol_engine_ff_(last, 6, state, 3, 2)
    return [state, points, next_last, last]


def test_compositions_that_read_memory() -> None:
    for actual, expected in zip(sobol(DEV), sobol("cpu")):
        check_same(actual, expected)
    weights, mask = torch.randn(5, 3), torch.tensor([True, False, True, True, False])
    images, grid = torch.randn(1, 2, 5, 5), torch.rand(1, 3, 3, 2) * 2 - 1
    calls: list[tuple[Callable[..., tuple[Tensor, ...]], tuple[Tensor, ...]]] = [
        (lambda w, m: torch._rowwise_prune(w, m, torch.int32), (weights, mask)),
        (lambda w: (torch._saturate_weight_to_fp16(w),), (weights * 1e5,)),
        (lambda w: torch.choose_qparams_optimized(w, 15, 200, 0.16, 8), (weights,)),
        (lambda x, g: (torch._grid_sampler_2d_cpu_fallback(x, g, 0, 0, False),), (images, grid)),
        (
            lambda x, g: ATEN._grid_sampler_2d_cpu_fallback_backward(x[..., :3, :3], x, g, 0, 1, True),
            (images, grid),
        ),
    ]
    for call, arguments in calls:
        for actual, expected in zip(call(*(a.to(DEV) for a in arguments)), call(*arguments), strict=True):
            check_same(actual, expected)


@pytest.mark.parametrize("name", ["pack_gemm_matrix_fp16", "linear_quantize_weight", "pack_quantized_matrix"])
def test_packing_for_quantized_products_is_refused(name: str) -> None:
    with pytest.raises(NotImplementedError, match="no quantized tensors on simdev"):
        getattr(torch, f"fbgemm_{name}")(torch.ones(64, 64, device=DEV))


def numbers(*shape: int, dtype: torch.dtype = torch.long) -> Tensor:
    return torch.ones(shape, dtype=dtype, device=DEV)


FLOAT = torch.float32
STATE = "state of a Sobol sequence"
WEIGHTS = (4, 64)
WRONG: dict[str, tuple[Callable[[], object], str]] = {
    "Sobol, dimensions": (
        lambda: torch._sobol_engine_draw(numbers(3), 4, numbers(3, 30), 300000, 0, torch.float32),
        STATE,
    ),
    "Sobol, bits": (lambda: torch._sobol_engine_ff_(numbers(3), 50, numbers(3, 3), 3, 0), STATE),
    "Sobol, last point": (
        lambda: torch._sobol_engine_ff_(numbers(1), 50, numbers(3, 30), 3, 0),
        "last point of a Sobol sequence of 3",
    ),
    "Sobol, points": (
        lambda: torch._sobol_engine_draw(numbers(3), 4, numbers(3, 30), 3, 2**30 - 4, torch.float32),
        "fewer than",
    ),
    "Sobol, points before": (lambda: torch._sobol_engine_ff_(numbers(3), 4, numbers(3, 30), 3, -7), "-7"),
    "Sobol, initialisation": (
        lambda: torch._sobol_engine_initialize_state_(numbers(30000, 30), 30000),
        STATE,
    ),
    "Sobol, matrices": (
        lambda: torch._sobol_engine_scramble_(numbers(3, 30), numbers(3, 3, 3), 3),
        "matrices of 30",
    ),
    "int4 weights, groups": (
        lambda: torch._weight_int4pack_mm_for_cpu(
            numbers(4, 6400, dtype=FLOAT),
            numbers(16, 3200, dtype=torch.uint8),
            32,
            numbers(2, 16, 2, dtype=FLOAT),
        ),
        "groups of 32 among 6400 weights, but got 2",
    ),
    "int4 weights, dimensions": (
        lambda: torch._weight_int4pack_mm_for_cpu(
            numbers(*WEIGHTS, dtype=FLOAT),
            numbers(32, 32, 0, dtype=torch.uint8),
            32,
            numbers(2, 32, 2, dtype=FLOAT),
        ),
        "weights of 2 dimensions, but got 3",
    ),
    "int8 weights, dimensions": (
        lambda: torch._weight_int8pack_mm(
            numbers(*WEIGHTS, dtype=FLOAT),
            numbers(16, 64, 0, dtype=torch.int8),
            numbers(16, dtype=FLOAT),
        ),
        "weights of 2 dimensions, but got 3",
    ),
    "int8 weights, rows of bfloat16": (
        lambda: torch._weight_int8pack_mm(
            numbers(4, 20, dtype=torch.bfloat16),
            numbers(16, 20, dtype=torch.int8),
            numbers(16, dtype=torch.bfloat16),
        ),
        "multiple of 16",
    ),
    "int8 weights, scales": (
        lambda: torch._weight_int8pack_mm(
            numbers(*WEIGHTS, dtype=FLOAT),
            numbers(16, 64, dtype=torch.int8),
            numbers(1, dtype=FLOAT).expand(16),
        ),
        "scales of weights to be contiguous",
    ),
    "weight_norm": (
        lambda: torch._weight_norm_interface(numbers(4000, 3, dtype=FLOAT), numbers(2, 1, dtype=FLOAT)),
        "expected 4000 norms of weights, but got 2",
    ),
    "weight_norm's backward": (
        lambda: ATEN._weight_norm_interface_backward(
            numbers(4000, 3, dtype=FLOAT),
            numbers(4000, 3, dtype=FLOAT),
            numbers(4000, 1, dtype=FLOAT),
            numbers(2, 1, dtype=FLOAT),
            0,
        ),
        "expected 4000 norms of weights, but got 2",
    ),
    "a fused optimizer's gradients": (
        lambda: torch._fused_sgd_(
            [numbers(4000, dtype=FLOAT)],
            [numbers(4, dtype=FLOAT)],
            [],
            weight_decay=0.0,
            momentum=0.0,
            lr=0.1,
            dampening=0.0,
            nesterov=False,
            maximize=False,
            is_first_step=False,
        ),
        "sizes of an optimizer's parameters",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_sizes_are_errors(name: str) -> None:
    call, words = WRONG[name]
    with pytest.raises(RuntimeError, match=words):
        call()
        torch.simdev.synchronize()
    assert numbers(3).tolist() == [1, 1, 1]


def test_a_count_that_is_no_number_gives_none() -> None:
    count = torch.tensor([math.nan, 20.0, math.nan, 0.0], device=DEV)
    drawn = torch.binomial(count, torch.full((4,), 0.5, device=DEV)).tolist()
    assert math.isnan(drawn[0]) and 0 <= drawn[1] <= 20 and math.isnan(drawn[2]) and drawn[3] == 0
