"""An operator through torch.compile against the same call without it: values, metadata and gradients.

A check of the sweep: ``python -m tests.conformance.sweep --check compiled``.  Both run on simdev, with the operator's
first float32 sample.  What fails there runs on the CPU too, since simdev has to manage what Inductor itself can do.
"""

from __future__ import annotations

from typing import Any

import torch
import torch._dynamo
from torch.utils._pytree import tree_map_only

from tests.conformance import compare
from tests.conformance.compare import gradients, move_sample, samples, tensors


class FailsOnTheCpuToo(Exception):
    """Inductor does not compile the operator for the CPU rightly either."""


def check(op: Any, values: bool) -> None:
    """Raises what went wrong on simdev, or FailsOnTheCpuToo with what goes wrong on the CPU."""
    try:
        check_on("simdev", op, values)
    except Exception:
        try:
            check_on("cpu", op, values)
        except Exception as error:
            raise FailsOnTheCpuToo(f"{type(error).__name__}: {error}") from error
        raise


def check_on(device: str, op: Any, values: bool) -> None:
    """Raises what went wrong; passes where the operator does not run without torch.compile either."""
    wants_grad = torch.float32 in op.supported_backward_dtypes("cpu") and op.supports_autograd
    sample = next(samples(op, torch.float32, requires_grad=wants_grad))
    try:
        torch.manual_seed(0)
        expected, expected_grads, cotangents = gradients(op.op, *move_sample(op, sample, device), None)
    except Exception:
        return
    if any(t.device.type != device for t in tensors(expected)):
        return
    torch._dynamo.reset()
    torch.manual_seed(0)
    compiled = torch.compile(lambda *args, **kwargs: op.op(*args, **kwargs))
    actual, actual_grads, _ = gradients(compiled, *move_sample(op, sample, device), cotangents)
    tolerance = {"rtol": 1e-4, "atol": 2e-5}
    compare.DEVICE = device
    # Compiled code computes what eager leaves to be done lazily, a conjugate for one.
    resolve = lambda t: t.detach().resolve_conj().resolve_neg() if t.layout == torch.strided else t.detach()
    ours = lambda tree: tree_map_only(torch.Tensor, resolve, tree)
    host = lambda tree: tree_map_only(torch.Tensor, lambda t: resolve(t).cpu(), tree)
    compare.check_same(ours(actual), host(expected), values=values, strides=False, **tolerance)
    for a, e in zip(tensors(actual), tensors(expected)):
        if e.layout == torch.strided and e.numel() > 1:
            wide = [i for i, n in enumerate(e.shape) if n > 1]
            assert [a.stride(i) for i in wide] == [e.stride(i) for i in wide], (
                f"strides {a.stride()} instead of {e.stride()}"
            )
    if expected_grads is not None and values:
        assert actual_grads is not None, "not differentiable"
        compare.check_same(ours(actual_grads), host(expected_grads), strides=False, **tolerance)
