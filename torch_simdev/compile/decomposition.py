"""Decompositions of ATen operators that are ours for simdev and upstream's for every other device."""

from __future__ import annotations

import functools

import torch
from torch import Tensor
from torch._prims_common import get_computation_dtype

from .._utils import DEVICE_TYPE

aten = torch.ops.aten


def native_group_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    batch: int,
    channels: int,
    inner: int,
    groups: int,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Group normalisation as one multiplication and one addition for each element of `input` (batch, channels, ...).

    The factor and the summand of each channel are tensors of their own.  In one formula with the elements, a kernel
    whose innermost loop is over the channels would gather each group's statistics for every vector.

    Returns the result, and mean and reciprocal standard deviation of shape (batch, groups), all in `input`'s dtype.
    """
    values = input.to(get_computation_dtype(input.dtype))
    grouped = values.reshape(batch, groups, channels // groups, inner)
    variance, mean = torch.var_mean(grouped, dim=(2, 3), correction=0, keepdim=True)
    rstd = torch.rsqrt(variance + eps)
    factor = rstd if weight is None else rstd * weight.view(1, groups, -1, 1)
    summand = -mean * factor
    if bias is not None:
        summand = summand + bias.view(1, groups, -1, 1)

    def of_channels(x: Tensor) -> Tensor:
        stored = x.expand(batch, groups, channels // groups, 1).contiguous()
        # as_strided is what Inductor does not look through.
        strided = stored.as_strided((batch, channels), (channels, 1))
        return strided.view(batch, channels, *[1] * (input.dim() - 2))

    result = values * of_channels(factor) + of_channels(summand)
    return result.to(input.dtype), *(x.to(input.dtype).reshape(batch, groups) for x in (mean, rstd))


def register() -> None:
    """Puts our decompositions into Inductor's table; called once, when that is imported."""
    from torch._inductor.decomposition import decompositions

    operator = aten.native_group_norm.default
    upstream = decompositions[operator]

    @functools.wraps(upstream)
    def decompose(input: Tensor, *args, **kwargs):
        ours = input.device.type == DEVICE_TYPE
        return (native_group_norm if ours else upstream)(input, *args, **kwargs)

    decompositions[operator] = decompose
