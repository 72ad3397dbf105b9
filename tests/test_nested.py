"""Nested tensors: the jagged layout by PyTorch's own database, the strided layout against the CPU's."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.conformance import sweep
from tests.conformance.compare import DEVICE, check_same, tensors

JAGGED = sweep.operators("njt", torch.float32)
SLICE = list(JAGGED)[::6]
COMPONENTS = [torch.randn(length, 8) for length in (3, 5, 1)]
WEIGHT, BIAS = torch.randn(8, 8), torch.randn(8)

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def nothing_runs_on_the_host() -> Iterator[None]:
    with torch.simdev.fallback_policy("error"):
        yield


def check_jagged(key: str, count: int | None) -> None:
    torch.manual_seed(0)
    with torch.simdev.fallback_policy("allow"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        reason = sweep.check_op(JAGGED[key], torch.float32, count, backward=True)
    assert reason is None, reason


@pytest.mark.parametrize("key", SLICE)
def test_jagged(key: str) -> None:
    check_jagged(key, count=12)


@pytest.mark.slow
@pytest.mark.parametrize("key", JAGGED)
def test_jagged_all(key: str) -> None:
    check_jagged(key, count=None)


def heads(nested: Tensor) -> Tensor:
    return nested.view(3, -1, 2, 4).transpose(1, 2)


def blank(nested: Tensor) -> Tensor:
    return torch.zeros_like(nested.detach())


def project(nested: Tensor, *, need_weights: bool, same: bool = True) -> Any:
    x = nested.detach()
    others = (x, x) if same else (x.clone(), x.clone())
    w, b = WEIGHT.to(x.device), BIAS.to(x.device)
    qkv, bias = torch.cat([w, w.t(), w + 1]), torch.cat([b, b, b])
    return torch._native_multi_head_attention(x, *others, 8, 2, qkv, bias, w, b, None, need_weights)


STRIDED: dict[str, Callable[[Tensor], Any]] = {
    "clone": lambda t: t.clone(),
    "unary": lambda t: F.gelu(t.relu()) + F.silu(t) - t.sin() * t.cos().abs(),
    "binary": lambda t: (t + t * 2.0) * t / 2,
    "comparison": lambda t: (t > 0).logical_not(),
    "dropout": lambda t: F.dropout(t, 1.0),
    "softmax": lambda t: t.softmax(-1),
    "linear": lambda t: F.linear(t, WEIGHT.to(t.device), BIAS.to(t.device)),
    "bmm": lambda t: torch.bmm(t, t.transpose(1, 2)),
    "matmul": lambda t: heads(t) @ heads(t).transpose(-1, -2),
    "matmul out": lambda t: torch.matmul(
        t.detach(), t.detach().transpose(1, 2), out=blank(t.bmm(t.transpose(1, 2)))
    ),
    "layer_norm": lambda t: F.layer_norm(t, (8,), BIAS.to(t.device), BIAS.to(t.device)),
    "sum": lambda t: t.sum(-1, keepdim=True),
    "padding": lambda t: t.to_padded_tensor(0.5),
    "unbind": lambda t: t.unbind(),
    "select": lambda t: t[1],
    "transpose": lambda t: t.transpose(1, 2).contiguous(),
    "reshape": lambda t: t.reshape(3, -1, 2, 4),
    "chunk": lambda t: t.detach().chunk(2, -1),
    "cat": lambda t: torch.cat([t.detach(), t.detach()]),
    "attention": lambda t: F.scaled_dot_product_attention(*3 * [heads(t).contiguous()]),
    "multi-head attention": lambda t: project(t, need_weights=True),
    "multi-head attention of three": lambda t: project(t, need_weights=False, same=False),
    "to another dtype": lambda t: t.double(),
    "to the host and back": lambda t: t.cpu().to(t.device),
    "in place": lambda t: t.clone().add_(t).mul_(2.0).zero_(),
    "factories": lambda t: (torch.zeros_like(t), torch.ones_like(t), torch.empty_like(t).fill_(2.0)),
    "from padding": lambda t: torch._nested_from_padded(
        t.detach().to_padded_tensor(0), torch.tensor([[3, 8], [5, 8], [1, 8]])
    ),
    "values": lambda t: t.values(),
}


@pytest.mark.parametrize("name", STRIDED)
def test_strided(name: str) -> None:
    results = []
    for device in ("cpu", DEVICE):
        nested = torch.nested.nested_tensor(COMPONENTS, device=device, requires_grad=True)
        out = STRIDED[name](nested)
        parts = [p for t in tensors(out) if t.requires_grad for p in (t.unbind() if t.is_nested else [t])]
        if parts:
            torch.stack([p.square().sum() for p in parts]).sum().backward()
        results.append((out, nested.grad))
    check_same(results[1], results[0], rtol=1e-4, atol=1e-5)


def test_strided_is_made_without_waiting() -> None:
    before = torch.simdev.Event()
    components = [c.to(DEVICE) for c in COMPONENTS]
    torch.simdev._sleep(200)
    before.record()
    nested = torch.nested.as_nested_tensor(components)
    F.layer_norm(F.linear(nested, components[1][:, :8].t() @ components[1]), (8,), *2 * [components[2][0]])
    assert not before.query()


def test_what_the_cpu_refuses_is_refused_alike() -> None:
    for device in ("cpu", DEVICE):
        nested = torch.nested.nested_tensor(COMPONENTS, device=device)
        with pytest.raises(RuntimeError, match="a nested self and non-nested other"):
            nested @ WEIGHT.to(device)
        with pytest.raises(NotImplementedError, match="aten::sum"):
            nested.sum()
        with pytest.raises(RuntimeError, match="last dimension"):
            nested.sum(1, keepdim=True)


def test_encoder_with_a_padding_mask_makes_nested_tensors() -> None:
    """The fast path of inference: what is padding on the way in is zero on the way out."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2).eval()
    x, mask = torch.randn(3, 6, 16), torch.arange(6) >= torch.tensor([[6], [4], [2]])
    with torch.inference_mode():
        expected = encoder(x, src_key_padding_mask=mask)
        actual = encoder.to(DEVICE)(x.to(DEVICE), src_key_padding_mask=mask.to(DEVICE))
    assert not expected[mask].any()
    torch.testing.assert_close(actual.cpu(), expected, rtol=1e-4, atol=1e-5)


def test_layer_norm_without_a_weight_is_refused_as_on_the_cpu() -> None:
    for device in ("cpu", DEVICE):
        nested = torch.nested.nested_tensor(COMPONENTS, device=device)
        with pytest.raises(ValueError, match="requires weight and bias"):
            F.layer_norm(nested, (8,))
