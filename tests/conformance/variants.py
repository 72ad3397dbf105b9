"""Other ways to call an operator of the OpInfo database: in-place, out=, odd strides, errors."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch.utils._pytree import tree_map

from tests.conformance.compare import check_same, copy_inputs, move, move_sample, samples, tensors
from tests.conformance.sweep import RANDOM, UNDETERMINED, op_key

_REFUSALS = (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError)


def _stretch(tree: Any) -> Any:
    """Every tensor replaced by an equal one with gaps between its elements and an offset."""

    def one(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or leaf.dim() == 0 or leaf.layout != torch.strided:
            return leaf
        wide = torch.zeros((*leaf.shape[:-1], 2 * leaf.shape[-1] + 3), dtype=leaf.dtype)
        view = wide[..., 3::2][..., : leaf.shape[-1]]
        view.copy_(leaf.detach())
        return view

    return tree_map(one, tree)


def _permute(tree: Any) -> Any:
    """Every tensor replaced by an equal one whose elements lie in the opposite order of dimensions."""

    def one(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or leaf.layout != torch.strided:
            return leaf
        order = list(reversed(range(leaf.dim())))
        return leaf.detach().permute(order).contiguous().permute(order)

    return tree_map(one, tree)


def check_strides(op: Any, dtype: torch.dtype = torch.float32, count: int = 8) -> None:
    """Inputs with gaps and offsets, and inputs of another order of dimensions in memory."""
    if op.name in UNDETERMINED:
        return
    for sample in samples(op, dtype, count):
        for change in (_stretch, _permute):
            args, kwargs = change(sample)
            try:
                expected = op.op(*copy_inputs(args), **copy_inputs(kwargs))
            except _REFUSALS:
                continue
            dev_args, dev_kwargs = move_sample(op, (args, kwargs))
            try:
                check_same(op.op(*dev_args, **dev_kwargs), expected, values=op.name not in RANDOM)
            except AssertionError as error:
                raise AssertionError(f"{change.__name__}: {error}") from error


def check_inplace(op: Any, dtype: torch.dtype = torch.float32, count: int = 2) -> None:
    """The method with an underscore: returns its input, which holds the value."""
    inplace = op.inplace_variant
    if inplace is None or op.name in RANDOM | UNDETERMINED:
        return
    for args, kwargs in samples(op, dtype, count):
        cpu_args = copy_inputs(args)
        try:
            inplace(*cpu_args, **copy_inputs(kwargs))
        except _REFUSALS:
            continue
        dev_args, dev_kwargs = move((args, kwargs))
        result = inplace(*dev_args, **dev_kwargs)
        assert result is dev_args[0], "does not return its input"
        check_same(dev_args[0], cpu_args[0])


def check_out(op: Any, dtype: torch.dtype = torch.float32, count: int = 1) -> None:
    """out= of the right size, empty, too small (with the warning), and a view with gaps."""
    if not op.supports_out or op.name in RANDOM | UNDETERMINED:
        return
    for args, kwargs in samples(op, dtype, count):
        try:
            reference = tensors(op.op(*copy_inputs(args), **copy_inputs(kwargs)))
        except _REFUSALS:
            continue
        if not reference or any(t.layout != torch.strided for t in reference):
            continue
        kinds = {
            "right": lambda t: torch.full_like(t, 7, memory_format=torch.contiguous_format),
            "empty": lambda t: torch.empty(0, dtype=t.dtype),
            "wrong": lambda t: torch.full((t.numel() + 3,), 7, dtype=t.dtype),
            "gaps": lambda t: torch.full((*t.shape, 2), 7, dtype=t.dtype)[..., 0],
        }
        for kind, make in kinds.items():
            outs = [make(t) for t in reference]
            dev_outs = move(outs)
            results = []
            for inputs, out in ((copy_inputs((args, kwargs)), outs), (move((args, kwargs)), dev_outs)):
                target = out[0] if len(out) == 1 else tuple(out)
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    try:
                        op.op(*inputs[0], **inputs[1], out=target)
                        torch.simdev.synchronize()
                        outcome: Any = any("resized" in str(w.message) for w in caught)
                    except _REFUSALS as error:
                        outcome = type(error)
                results.append(outcome)
            where = f"out= {kind}: "
            assert results[0] == results[1], f"{where}{results[1]} instead of {results[0]}"
            if isinstance(results[0], bool):
                try:
                    check_same(dev_outs, outs)
                except AssertionError as error:
                    raise AssertionError(where + str(error)) from error


def check_errors(op: Any) -> list[str]:
    """Bad inputs raise what they raise on the CPU.  Returns those that surface at synchronisation only."""
    late = []
    if op.error_inputs_func is None:
        return late
    for index, error_input in enumerate(op.error_inputs("cpu")):
        sample = error_input.sample_input
        args, kwargs = (sample.input, *sample.args), dict(sample.kwargs)
        try:
            op.op(*copy_inputs(args), **copy_inputs(kwargs))
        except Exception as error:
            expected = error
        else:
            continue
        dev_args, dev_kwargs = move((args, kwargs))
        called = False
        try:
            op.op(*dev_args, **dev_kwargs)
            called = True
            torch.simdev.synchronize()
        except type(expected):
            if called:
                late.append(f"{op_key(op)}[{index}]")
        except Exception as error:
            message = (
                f"error input {index}: {type(error).__name__}: {error} instead of {type(expected).__name__}"
            )
            raise AssertionError(f"{message}: {expected}") from error
        else:
            raise AssertionError(
                f"error input {index}: accepted, the CPU raises {type(expected).__name__}: {expected}"
            )
    return late


CHECKS = {"strides": check_strides, "inplace": check_inplace, "out": check_out, "errors": check_errors}
