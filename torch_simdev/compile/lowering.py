"""Lowerings from ATen to Inductor's loop IR that are ours for simdev and upstream's for every other device."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._inductor import ir, lowering

from .._utils import DEVICE_TYPE
from .flex_attention import lower_inference


def _dispatch(target: Any, ours: Callable[..., Any]) -> None:
    """Lowers `target` with `ours` where its first tensor is on simdev."""
    upstream = lowering.lowerings[target]

    @functools.wraps(upstream)
    def lower(*args: Any, **kwargs: Any) -> Any:
        tensor = next((arg for arg in args if isinstance(arg, ir.TensorBox)), None)
        on_simdev = tensor is not None and ir.get_device_type(tensor) == DEVICE_TYPE
        return (ours if on_simdev else upstream)(*args, **kwargs)

    lowering.lowerings[target] = lower


def install() -> None:
    """Puts our lowerings in place; called once, when the code generator is registered."""
    try:
        from torch._inductor.kernel.flex import flex_cpu
    except ImportError:  # torch 2.11
        from torch._inductor.kernel import flex_cpu

    # For other devices than the CPU the lowering is a Triton template.
    _dispatch(torch.ops.higher_order.flex_attention, functools.partial(lower_inference, flex_cpu.lower_cpu))
