"""Handing whole graphs to an optimiser outside of PyTorch's compiler."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch

from .graphs import GraphCompiler, aten_compiler


def hand_over(optimiser: GraphCompiler) -> Any:
    """Returns a backend that gives each ATen graph, backward ones too, to an optimiser and runs what it returns.

        torch.compile(f, backend=hand_over(my_optimiser))

    Arguments:
        optimiser: takes the graph, whose nodes carry example results in `meta["val"]`, and its example inputs; returns
            a function of the inputs, one by one, to a tuple of the graph's outputs.  What it raises comes out of the
            first call, as a backend's errors do; `compose` it with another backend to go on there.
    """
    return aten_compiler(lambda direction, gm, inputs: optimiser(gm, inputs))


def torchscript(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
    """Has TorchScript optimise an ATen graph: inlined, constants folded, frozen.  An optimiser for `hand_over`."""
    from torch._functorch.compilers import ts_compile

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its end, and of annotations in GraphModule
        return ts_compile(torch.fx.GraphModule(gm, gm.graph), example_inputs)  # it cannot script lazy modules
