"""Kernels that torch.compile generates in the forms that are easy to get wrong: two-dimensional tiles and their tails.

Each function compiles into a form of kernel that once computed something else than eager.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._inductor.utils import run_and_get_code

# Each compiles C++: run by `make conformance`.
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("fresh_dynamo")]


def masked(y: Tensor) -> Tensor:
    """Selections enough that a kernel does not vectorise its tails."""
    return torch.where(y > 0.5, torch.where(y > 1, torch.where(y > 2, 1.0, 2.0), y), 0.0)


def scatter_by_row(x: Tensor, y: Tensor) -> Tensor:
    index = torch.arange(x.numel(), device=x.device).view(x.shape) // 2
    return torch.zeros(x.numel(), device=x.device).index_put((index,), x + y.t(), accumulate=True)


# A tile is transposed for y.t() and goes through an index that depends on its row, or through a scalar tail.
TILED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "index_of_row": lambda x, y: x + y.t() * (torch.arange(x.shape[0], device=x.device) % 3).unsqueeze(1),
    "scatter_by_row": scatter_by_row,
    "sum_of_rows": lambda x, y: (x + y.t()).sum(1),
    "sum_of_rows_with_scalar_tail": lambda x, y: (x + masked(y.t())).sum(1),
    "sum_of_columns_with_scalar_tail": lambda x, y: (x + masked(y.t())).sum(0),
    "scatter_with_scalar_tail": lambda x, y: scatter_by_row(x, masked(y)),
}


@pytest.mark.parametrize("name", TILED)
@pytest.mark.parametrize("shape", [(18, 34), (33, 50)])
def test_two_dimensional_tiles(name, shape):
    x, y = torch.randn(shape), torch.randn(shape[::-1])
    actual = torch.compile(TILED[name])(x.to("simdev"), y.to("simdev"))
    torch.testing.assert_close(actual.cpu(), TILED[name](x, y), atol=1e-4, rtol=1e-4)


def test_cross_entropy_over_the_channels_of_a_convolution():
    x, weight = torch.randn(1, 8, 64), torch.randn(32, 8, 1)
    target = torch.randint(0, 32, (64,))
    loss = lambda x, w, t: F.cross_entropy(F.conv1d(x, w).transpose(1, 2).flatten(0, 1), t)
    gradients = []
    for function, device in ((loss, "cpu"), (torch.compile(loss), "simdev")):
        leaves = [t.to(device).requires_grad_() for t in (x, weight)]
        gradients.append(torch.autograd.grad(function(*leaves, target.to(device)), leaves))
    for expected, actual in zip(*gradients):
        torch.testing.assert_close(actual.cpu(), expected, atol=1e-5, rtol=1e-4)


def test_truth_of_indices():
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        counted = torch.arange(40, device=x.device)
        return counted.any(-1, keepdim=True), counted.logical_not().masked_fill(x > 0, True)

    x = torch.linspace(-2, 2, 40)
    for actual, expected in zip(torch.compile(function)(x.to("simdev")), function(x), strict=True):
        assert actual.tolist() == expected.tolist()


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int8])
def test_only_what_is_selected_is_divided(dtype):
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        quotients = x // y
        padded = F.pad((x % y).view(3, 4), (1, 1, 1, 1))
        return F.pad(quotients, (2, 3), value=7), padded, torch.slice_scatter(x, quotients[2:5], 0, 1, 4)

    x, y = torch.arange(12, dtype=dtype), torch.arange(12, dtype=dtype) % 5 + 1
    for actual, expected in zip(torch.compile(function)(x.to("simdev"), y.to("simdev")), function(x, y)):
        assert actual.tolist() == expected.tolist()
    zero = torch.zeros_like(y, device="simdev")
    with pytest.raises(torch.AcceleratorError, match="ZeroDivisionError"):
        torch.compile(function)(x.to("simdev"), zero)[0].cpu()


@pytest.mark.parametrize("length", [0, 1])
def test_kernels_without_vectors(length):
    function = lambda x: (x.tanh() * 2).sum(0)
    x = torch.randn(5, 20)
    compiled = torch.compile(function, options={"cpp.simdlen": length})
    torch.testing.assert_close(compiled(x.to("simdev")).cpu(), function(x))


@pytest.mark.parametrize("affine", ["weight and bias", "weight", "neither"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_group_norm_reads_one_factor_and_one_summand_per_channel(affine, dtype):
    weight = torch.randn(32, dtype=dtype) if "weight" in affine else None
    bias = torch.randn(32, dtype=dtype) if "bias" in affine else None
    x = torch.randn(2, 32, 6, 7, dtype=dtype).to(memory_format=torch.channels_last)
    tensors = [t for t in (x, weight, bias) if t is not None]

    def function(x: Tensor, *affine: Tensor) -> Tensor:
        given = iter(affine)
        return F.silu(F.group_norm(x, 8, *(None if t is None else next(given) for t in (weight, bias))))

    outcomes = []
    for compiled, device in ((function, "cpu"), (torch.compile(function), "simdev")):
        leaves = [t.detach().to(device).requires_grad_() for t in tensors]
        result = compiled(*leaves)
        outcomes.append((result, *torch.autograd.grad(result.float().square().sum(), leaves)))
    tolerance = 1e-4 if dtype == torch.float32 else 5e-2
    for expected, actual in zip(*outcomes, strict=True):
        assert actual.dtype == expected.dtype
        distance = (actual.cpu().double() - expected.double()).norm() / expected.double().norm()
        assert distance < tolerance
    with torch.no_grad():
        _, (code,) = run_and_get_code(torch.compile(function), *(t.to("simdev") for t in tensors))
    assert "div_floor_integer" not in code  # of a channel's group, for each vector
