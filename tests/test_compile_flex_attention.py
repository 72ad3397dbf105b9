"""flex_attention compiled, above all for training: what it returns and its gradients, against eager."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

# Each compiles C++: run by `make conformance`.
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("fresh_dynamo")]


def causal(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return i >= j


def causal_score(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return torch.where(i >= j, score, -float("inf"))


def with_bias(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    return flex_attention(q, k, v, score_mod=lambda score, b, h, i, j: score * 0.5 + bias[h, i])


def with_block_mask(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    mask = create_block_mask(causal, 1, 1, q.shape[2], k.shape[2], device=q.device)
    return flex_attention(q, k, v, block_mask=mask, enable_gqa=True)


QUERY, FEWER_HEADS = (2, 4, 128, 16), (2, 2, 128, 16)
CASES: dict[str, tuple[Callable[..., Tensor | tuple[Tensor, Tensor]], list[tuple[int, ...]]]] = {
    "score_mod": (lambda q, k, v: flex_attention(q, k, v, score_mod=causal_score), [QUERY] * 3),
    "captured_bias": (with_bias, [QUERY, QUERY, QUERY, (4, 128)]),
    "block_mask_and_grouped_heads": (with_block_mask, [QUERY, FEWER_HEADS, FEWER_HEADS]),
    "logsumexp": (lambda q, k, v: flex_attention(q, k, v, return_lse=True), [QUERY] * 3),
    "transposed": (
        lambda q, k, v: flex_attention(q.mT.sin(), k.mT, v.mT).cos(),
        [(2, 4, 16, 128)] * 3,
    ),
}


def results_and_gradients(function: Callable, leaves: list[Tensor]) -> list[Tensor]:
    returned = function(*leaves)
    results = returned if isinstance(returned, tuple) else (returned,)
    weighted = [(r * torch.linspace(-1, 1, r.numel(), device=r.device).view(r.shape)).sum() for r in results]
    return [*results, *torch.autograd.grad(sum(weighted), leaves)]


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("name", CASES)
def test_training(name):
    function, shapes = CASES[name]
    leaves = [torch.randn(shape, device="simdev", requires_grad=True) for shape in shapes]
    actual = results_and_gradients(torch.compile(function), leaves)
    for a, e in zip(actual, results_and_gradients(function, leaves), strict=True):
        assert a.stride() == e.stride()
        torch.testing.assert_close(a.cpu(), e.cpu(), atol=1e-5, rtol=1e-4)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_inference_with_a_captured_bias():
    tensors = [torch.randn(shape) for shape in (QUERY, QUERY, QUERY, (4, 128))]
    actual = torch.compile(with_bias)(*(tensor.to("simdev") for tensor in tensors))
    torch.testing.assert_close(actual.cpu(), with_bias(*tensors), atol=1e-5, rtol=1e-4)


def test_training_of_changing_length():
    compiled = torch.compile(lambda q: flex_attention(q, q, q, score_mod=causal_score), dynamic=True)
    for length in (128, 256, 130):
        q = torch.randn(1, 2, length, 16, device="simdev", requires_grad=True)
        actual = results_and_gradients(compiled, [q])
        expected = results_and_gradients(lambda q: flex_attention(q, q, q, score_mod=causal_score), [q])
        torch.testing.assert_close(
            [a.cpu() for a in actual], [e.cpu() for e in expected], atol=1e-5, rtol=1e-4
        )
