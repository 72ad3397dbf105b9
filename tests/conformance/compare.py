"""Sample inputs, moving them to the device exactly as they are, and comparing what comes back with the CPU's.

Used by the tests (a slice) and by the full sweep (``python -m tests.conformance.sweep``).
"""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map

import torch_simdev  # noqa: F401 - where the entry point is not installed

DEVICE = "simdev"
# Positions of tensors that stay on the host, on every device, by operator.
_HOST_ARGUMENTS = {"tensor_split": 1}


def to_device(tensor: torch.Tensor, device: str = DEVICE) -> torch.Tensor:
    """A copy on ``device`` with the same strides, storage offset and lazy bits; a leaf if ``tensor`` is one.

    ``Tensor.to`` would make non-dense tensors contiguous and hide what the operator must cope with.
    """
    if tensor.is_meta:
        return tensor
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_nested:
        return tensor.detach().to(device, copy=True).requires_grad_(tensor.requires_grad)
    plain = tensor.detach()
    if conj := plain.is_conj():
        plain = plain.conj()
    if neg := plain.is_neg():
        plain = torch._neg_view(plain)
    raw = torch.empty(0, dtype=torch.uint8).set_(plain.untyped_storage())
    storage = raw.to(device, copy=True).untyped_storage()
    result = torch.empty(0, dtype=plain.dtype, device=device)
    result.set_(storage, plain.storage_offset(), plain.size(), plain.stride())
    if neg:
        result = torch._neg_view(result)
    if conj:
        result = result.conj()
    return result.requires_grad_(tensor.requires_grad)


def move(tree: Any, device: str = DEVICE) -> Any:
    """``to_device`` for every tensor of a tree; the string "cpu" and CPU devices become ``device``."""

    def one(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return to_device(leaf, device)
        if leaf == "cpu" or leaf == torch.device("cpu"):
            return torch.device(device)
        if isinstance(leaf, torch.Generator):
            return torch.Generator(device).manual_seed(leaf.initial_seed())
        return leaf

    return tree_map(one, tree)


def samples(
    op: Any, dtype: torch.dtype, count: int | None = None, *, requires_grad: bool = False
) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """(args, kwargs) on the CPU of an operator's first `count` samples, or of all."""
    for sample in itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=requires_grad), count):
        yield (sample.input, *sample.args), dict(sample.kwargs)


def move_sample(
    op: Any, sample: tuple[tuple[Any, ...], dict[str, Any]], device: str = DEVICE
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """`sample` as the operator wants it on `device`; without tensors it is a factory's, which is told."""
    args, kwargs = move(sample, device)
    if not tensors(sample) and op.name != "broadcast_shapes":
        kwargs.setdefault("device", device)
    if host := _HOST_ARGUMENTS.get(op.name):
        args = (*args[:host], sample[0][host], *args[host + 1 :])
    return args, kwargs


def copy_inputs(tree: Any) -> Any:
    """CPU inputs for the reference run, detached from those that were moved."""
    return tree_map(lambda leaf: to_device(leaf, "cpu") if isinstance(leaf, torch.Tensor) else leaf, tree)


def tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_flatten(tree)[0] if isinstance(leaf, torch.Tensor)]


def check_same(
    actual: Any, expected: Any, *, values: bool = True, strides: bool = True, **tolerance: float
) -> None:
    """Raises AssertionError unless ``actual`` is what the CPU returned, in structure, metadata and values."""
    flat_actual, spec_actual = tree_flatten(actual)
    flat_expected, spec_expected = tree_flatten(expected)
    assert len(flat_actual) == len(flat_expected), f"structure {spec_actual} instead of {spec_expected}"
    for index, (a, e) in enumerate(zip(flat_actual, flat_expected)):
        where = f"result {index}: "
        assert type(a) is type(e), f"{where}{type(a)} instead of {type(e)}"
        if not isinstance(e, torch.Tensor):
            if values:
                assert a == e or (a != a and e != e) or abs(a - e) < 1e-3, f"{where}{a} instead of {e}"
            continue
        assert a.device.type == DEVICE, f"{where}on {a.device}"
        for name in ("dtype", "layout", "is_nested"):
            got, want = getattr(a, name), getattr(e, name)
            assert got == want, f"{where}{name} {got} instead of {want}"
        if e.is_nested:
            check_same(a.unbind(), e.unbind(), values=values, strides=strides, **tolerance)
            continue
        assert a.shape == e.shape, f"{where}shape {a.shape} instead of {e.shape}"
        if e.layout == torch.strided:
            if strides and e.numel() > 1:
                squeezed_a = [s for s, n in zip(a.stride(), a.shape) if n > 1]
                squeezed_e = [s for s, n in zip(e.stride(), e.shape) if n > 1]
                assert squeezed_a == squeezed_e, f"{where}strides {a.stride()} instead of {e.stride()}"
            assert a.is_conj() == e.is_conj() and a.is_neg() == e.is_neg(), (
                f"{where}conjugate or negative bit differs"
            )
        if values:
            host = a.detach().cpu()
            torch.testing.assert_close(
                host, e.detach(), equal_nan=True, msg=lambda m, where=where: where + m, **tolerance
            )


@contextlib.contextmanager
def recorded_warnings() -> Iterator[set[str]]:
    """What is warned of in the block, as category and text, and also what PyTorch warns of once only."""
    always = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    seen: set[str] = set()
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield seen
    finally:
        torch.set_warn_always(always)
    seen.update(f"{w.category.__name__}: {w.message}" for w in caught)


def gradients(
    function: Callable[..., Any], args: Any, kwargs: Any, cotangents: list[torch.Tensor] | None
) -> Any:
    """(outputs, gradients of the differentiable inputs or None if there are none, cotangents used).

    Cotangents are drawn on the CPU once and given back to the caller, so that both devices use the same.
    """
    outputs = function(*args, **kwargs)
    inputs = [t for t in tensors((args, kwargs)) if t.requires_grad]
    roots = [t for t in tensors(outputs) if t.requires_grad and (t.is_floating_point() or t.is_complex())]
    roots = [t.clone().values() if t.is_nested else t for t in roots]
    if not inputs or not roots:
        return outputs, None, None
    if cotangents is None:
        cotangents = [torch.randn(t.shape, dtype=t.dtype) for t in roots]
    grads = torch.autograd.grad(
        roots, inputs, [c.to(t.device) for c, t in zip(cotangents, roots)], allow_unused=True
    )
    return outputs, list(grads), cotangents
