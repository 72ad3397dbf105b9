"""Lowerings from ATen to Inductor's loop IR that are ours for simdev and upstream's for every other device."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch._inductor import ir, lowering
from torch._inductor.virtualized import V

from .._utils import DEVICE_TYPE


def _dispatch(target: Any, ours: Callable[..., Any]) -> None:
    """Lowers `target` with `ours` where its first tensor is on simdev."""
    upstream = lowering.lowerings[target]

    @functools.wraps(upstream)
    def lower(*args: Any, **kwargs: Any) -> Any:
        tensor = next((arg for arg in args if isinstance(arg, ir.TensorBox)), None)
        on_simdev = tensor is not None and ir.get_device_type(tensor) == DEVICE_TYPE
        return (ours if on_simdev else upstream)(*args, **kwargs)

    lowering.lowerings[target] = lower


def _flex_attention(lower_cpu: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Inductor's C++ template, which computes the attention alone, without the statistics that training needs."""
    node = V.graph.current_node
    if any(user.target is operator.getitem and user.args[1] > 0 and user.users for user in node.users):
        raise NotImplementedError(
            "compiled flex_attention on simdev returns neither logsumexp nor maxima, and has no backward. Call it "
            "without torch.compile, or without gradients."
        )
    position = 6  # of kernel_options
    options = {**args[position], "OUTPUT_LOGSUMEXP": False}
    return lower_cpu(*args[:position], options, *args[position + 1 :], **kwargs)


def _flex_attention_backward(*args: Any, **kwargs: Any) -> Any:
    raise NotImplementedError(
        "flex_attention has no compiled backward on simdev. Call it without torch.compile, or without gradients."
    )


def install() -> None:
    """Puts our lowerings in place; called once, when the code generator is registered."""
    try:
        from torch._inductor.kernel.flex import flex_cpu
    except ImportError:  # torch 2.11
        from torch._inductor.kernel import flex_cpu

    # For other devices than the CPU the lowering is a Triton template.
    _dispatch(torch.ops.higher_order.flex_attention, functools.partial(_flex_attention, flex_cpu.lower_cpu))
    _dispatch(torch.ops.higher_order.flex_attention_backward, _flex_attention_backward)
