"""PyTorch's OpInfo database on simdev over another device of PyTorch, against that device itself.

``SIMDEV_DRIVER=cuda python -m tests.conformance.delegate_sweep`` compares with CUDA, ``SIMDEV_DRIVER=delegate`` with
the CPU.  The same kernels run on both sides, so that values are equal, and not only close, unless a kernel is not
deterministic.  Works in child processes: a crash, a hang or a device that a failed assertion has broken costs one
operator and is reported as such.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import pathlib
import sys
import types
import unittest
import warnings
from typing import Any

# PyTorch's test library imports it; a machine that only runs this need not have it.
if importlib.util.find_spec("expecttest") is None:
    sys.modules["expecttest"] = types.ModuleType("expecttest")
    sys.modules["expecttest"].TestCase = unittest.TestCase  # type: ignore[attr-defined]

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

from tests.conformance.sweep import RANDOM, UNDETERMINED, op_key
from tests.conformance.workers import Died, ask_all

SECONDS_PER_OPERATOR = 60
# They tell host tensors from others by device type, which does not work where the reference is the host.
NOT_OVER_THE_CPU = {"inner", "tensor_split"}
# Inputs that copies() leaves where they are (sparse), and torch.cuda's own operators.
NOT_COMPARED = ("sparse.mm.reduce", "sparse.sampled_addmm", "jiterator_")
# Atomic additions in an order that changes from run to run, or sums split over another number of blocks.
TOLERANCE = {"rtol": 2e-4, "atol": 2e-4}


def reference_device() -> str:
    """The device underneath simdev, as PyTorch names it."""
    device = torch.simdev._C._delegate_type()
    assert device is not None, "set SIMDEV_DRIVER to cuda or delegate"
    return device


def copies(values: Any, ours: bool) -> Any:
    """Fresh leaves with the sizes, strides and values of the tensors in `values`; on simdev if `ours`."""
    memory: dict[int, torch.Tensor] = {}

    def copy(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
            return value
        if id(value) not in memory:
            detached = value.detach()
            # A clone of the whole storage keeps strides, offsets and overlaps.
            base = detached.new_empty(0).set_(detached.untyped_storage()).clone()
            clone = base.as_strided(value.size(), value.stride(), value.storage_offset())
            if (
                ours
                and value.device.type == reference_device()
                and not (value.device.type == "cpu" and value.dim() == 0)
            ):
                clone = torch.simdev.from_backing(clone)
            if detached.is_conj():
                clone = clone.conj()
            if detached.is_neg():
                clone = torch._neg_view(clone)
            memory[id(value)] = clone.requires_grad_(value.requires_grad)
        return memory[id(value)]

    return pytree.tree_map(copy, values)


def run(op: Any, args: Any, kwargs: Any) -> tuple[Any, list[Any]]:
    """The operator's result, and the gradients of its inputs for a cotangent of ones."""
    torch.manual_seed(0)
    result = op.op(*args, **kwargs)
    result = result if op.output_func is None else op.output_func(result)
    outputs = [
        t
        for t in pytree.tree_leaves(result)
        if isinstance(t, torch.Tensor) and t.requires_grad and t.layout == torch.strided
    ]
    inputs = [
        t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor) and t.requires_grad
    ]
    if not outputs or not inputs:
        return result, []
    return result, list(
        torch.autograd.grad(outputs, inputs, [torch.ones_like(t) for t in outputs], allow_unused=True)
    )


def compare(theirs: Any, ours: Any, values: bool) -> None:
    """Raises AssertionError unless both have the same structure, metadata and, if `values`, elements."""
    expected, structure = pytree.tree_flatten(theirs)
    actual, other = pytree.tree_flatten(ours)
    assert structure == other, f"{other} instead of {structure}"
    for a, b in zip(expected, actual):
        if not isinstance(a, torch.Tensor):
            assert type(a) is type(b), f"{type(b)} instead of {type(a)}"
            continue
        assert (b.device.type == "simdev") == (
            a.device.type == reference_device()
        ) or a.device.type == "cpu", b.device
        assert (a.shape, a.dtype, a.layout) == (b.shape, b.dtype, b.layout), f"{b.shape} {b.dtype} {b.layout}"
        if a.layout != torch.strided:
            continue
        assert a.stride() == b.stride() and a.is_conj() == b.is_conj() and a.is_neg() == b.is_neg(), (
            b.stride()
        )
        if values:
            torch.testing.assert_close(
                b.detach().cpu().resolve_conj(), a.detach().cpu().resolve_conj(), equal_nan=True, **TOLERANCE
            )


def check(op: Any, samples: int) -> str:
    """ "ok", or what went wrong with the first sample that is not the same on both sides."""
    device = reference_device()
    backward = op.supports_autograd and torch.float32 in op.supported_backward_dtypes(device)
    if torch.float32 not in op.supported_dtypes(device):
        return "ok"
    for index, sample in enumerate(op.sample_inputs(device, torch.float32, requires_grad=backward)):
        if index >= samples:
            break
        given = ((sample.input, *sample.args), dict(sample.kwargs))
        try:
            theirs, error = run(op, *copies(given, ours=False)), None
        except Exception as exception:
            theirs, error = None, exception
        try:
            ours = run(op, *copies(given, ours=True))
        except Exception as exception:
            if error is not None and isinstance(exception, type(error)):
                continue
            return f"sample {index}: {type(exception).__name__}: {exception}"[:600]
        if error is not None:
            return f"sample {index}: no {type(error).__name__}: {error}"[:600]
        try:
            compare(theirs, ours, values=op.name not in RANDOM | UNDETERMINED)
        except AssertionError as difference:
            return f"sample {index}: {difference}"[:600]
    return "ok"


def work(samples: int) -> None:
    """Reads names of operators, and answers each with a line of JSON."""
    warnings.simplefilter("ignore")
    operators = {op_key(op): op for op in op_db}
    for line in sys.stdin:
        name = line.strip()
        try:
            answer = check(operators[name], samples)
        except Exception as exception:
            answer = f"{type(exception).__name__}: {exception}"[:600]
        print(json.dumps(answer), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--samples", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) // 2))
    parser.add_argument("--match", default="", help="only operators whose name contains this")
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    if options.worker:
        work(options.samples)
        return 0
    left_out = NOT_OVER_THE_CPU if reference_device() == "cpu" else set()
    wanted = [
        op_key(op)
        for op in op_db
        if options.match in op_key(op)
        and op_key(op) not in left_out
        and not op_key(op).startswith(NOT_COMPARED)
    ]
    results: dict[str, str] = {}

    def answered(name: str, answer: Any) -> bool:
        results[name] = str(answer) if isinstance(answer, Died) else answer
        return "device-side assert" not in results[name]  # which leaves CUDA unusable in that process

    command = [
        sys.executable,
        "-m",
        "tests.conformance.delegate_sweep",
        "--worker",
        "--samples",
        str(options.samples),
    ]
    ask_all(wanted, command, SECONDS_PER_OPERATOR, options.jobs, answered)
    failures = {name: answer for name, answer in sorted(results.items()) if answer != "ok"}
    if options.json:
        options.json.write_text(json.dumps({"operators": len(wanted), "failures": failures}, indent=1))
    for name, answer in failures.items():
        print(f"{name}: {answer}")
    print(f"{len(wanted) - len(failures)} of {len(wanted)} operators agree")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
