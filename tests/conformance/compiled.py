"""An operator through torch.compile against the same call without it: values, metadata and gradients.

A check of the sweep: ``python -m tests.conformance.sweep --check compiled``.  Both run on simdev, with the
operator's first
float32 sample.  With SIMDEV_COMPILED_ON=cpu both run on the CPU, which says what Inductor itself can do.
"""

from __future__ import annotations

import os
from typing import Any

import torch
import torch._dynamo

from tests.conformance import compare
from tests.conformance.compare import copy_inputs, gradients, move, tensors, to_device

ON = os.environ.get("SIMDEV_COMPILED_ON", "simdev")


def first_sample(op: Any) -> tuple[Any, Any]:
    """(args, kwargs) of the first sample, on the CPU."""
    wants_grad = torch.float32 in op.supported_backward_dtypes("cpu") and op.supports_autograd
    sample = next(iter(op.sample_inputs("cpu", torch.float32, requires_grad=wants_grad)))
    return (sample.input, *sample.args), dict(sample.kwargs)


def check(op: Any, values: bool) -> None:
    """Raises what went wrong; passes where the operator does not run without torch.compile either."""
    inputs = first_sample(op)

    def fresh() -> tuple[Any, Any]:
        args, kwargs = copy_inputs(inputs) if ON == "cpu" else move(inputs, ON)
        if ON != "cpu" and op.name == "tensor_split":  # wants its indices on the host, on every device
            args = (args[0], *inputs[0][1:])
        if not tensors(inputs):
            kwargs.setdefault("device", ON)  # a factory, as nearly all without tensors are
        return args, kwargs

    try:
        torch.manual_seed(0)
        expected, expected_grads, cotangents = gradients(op.op, *fresh(), None)
    except Exception:
        return
    if any(t.device.type != ON for t in tensors(expected)):
        return
    torch._dynamo.reset()
    torch.manual_seed(0)
    compiled = torch.compile(lambda *args, **kwargs: op.op(*args, **kwargs))
    actual, actual_grads, _ = gradients(compiled, *fresh(), cotangents)
    tolerance = {"rtol": 1e-4, "atol": 2e-5}
    compare.DEVICE = ON
    to_host = lambda tree: torch.utils._pytree.tree_map_only(
        torch.Tensor, lambda t: to_device(t.detach(), "cpu"), tree
    )
    compare.check_same(actual, to_host(expected), values=values, **tolerance)
    if expected_grads is not None and values:
        assert actual_grads is not None, "not differentiable"
        compare.check_same(actual_grads, to_host(expected_grads), strides=False, **tolerance)
