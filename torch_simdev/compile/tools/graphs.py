"""What the tools that look at graphs have in common: a backend that is shown each graph at two levels.

Dynamo's graph holds the functions that the program calls.  AOTAutograd makes ATen graphs of it: one for inference, or
a forward and a backward one.  A `GraphTool` sees, and may change, each of them before another backend goes on.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.backends.registry import lookup_backend
from torch._functorch import config as functorch_config
from torch._functorch.aot_autograd import make_boxed_func
from torch._functorch.partitioners import min_cut_rematerialization_partition

# Compiles an ATen graph: (module, example inputs) to a function of the same inputs.
GraphCompiler = Callable[[torch.fx.GraphModule, Sequence[Any]], Callable[..., Any]]


@dataclass(frozen=True)
class Graph:
    """A graph on its way through torch.compile."""

    number: int  # which of Dynamo's graphs it is or was made from, from 0
    level: str  # "dynamo" or "aten"
    direction: str  # of ATen graphs "inference", "forward" or "backward"; of Dynamo's "forward"
    module: torch.fx.GraphModule
    inputs: Sequence[Any]  # fake tensors and symbols

    @property
    def title(self) -> str:
        """Says in a few words which graph it is."""
        level = "Dynamo" if self.level == "dynamo" else f"ATen, {self.direction}"
        return f"graph {self.number}, {level}"

    @property
    def operators(self) -> list[str]:
        """The names of what the graph calls, in order; of submodules and methods with what they belong to."""
        return [operator_name(node) for node in self.module.graph.nodes if node.op.startswith("call_")]


def operator_name(node: torch.fx.Node) -> str:
    """Returns the name of what a node calls: `aten.mul.Tensor`, `torch.sin`, `Tensor.sum`."""
    if node.op == "call_method":
        return f"Tensor.{node.target}"
    if isinstance(node.target, (str, torch._ops.OpOverload, torch._ops.HigherOrderOperator)):
        return str(node.target)
    module = (getattr(node.target, "__module__", None) or "torch").removeprefix("_")
    return f"{module}.{getattr(node.target, '__name__', node.target)}"


def aten_compiler(compile_graph: Callable[[str, torch.fx.GraphModule, Sequence[Any]], Any]) -> Any:
    """Returns a backend that has AOTAutograd make ATen graphs, without decompositions, and compiles each.

    Arguments:
        compile_graph: called with the graph's direction, the graph and its example inputs; returns what runs it, a
            function of the inputs one by one, or of a list of them if it has `_boxed_call`.
    """

    def boxed(direction: str) -> GraphCompiler:
        def compile_boxed(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
            run = compile_graph(direction, gm, inputs)
            return run if getattr(run, "_boxed_call", False) else make_boxed_func(run)

        return compile_boxed

    return aot_autograd(
        fw_compiler=boxed("forward"),
        bw_compiler=boxed("backward"),
        inference_compiler=boxed("inference"),
        partition_fn=min_cut_rematerialization_partition,
        keep_inference_input_mutations=True,
    )


class GraphTool:
    """A backend that is shown each graph before another backend goes on; the base of the tools.

    Arguments:
        backend: "simdev" or "inductor", which show the ATen graphs that Inductor is about to lower, decomposed into
            its operators; "aot_eager", which shows undecomposed ATen graphs and runs them operator by operator; or
            any other backend, by name or itself, before which only Dynamo's graphs are seen.
    """

    def __init__(self, backend: str | Callable[..., Any] = "simdev"):
        self.backend = backend
        self._number = 0

    @property
    def _dynamo_backend_init(self) -> Callable[[], None] | None:
        return getattr(lookup_backend(self.backend), "_dynamo_backend_init", None)

    def at_dynamo(self, graph: Graph) -> None:
        """Called with each of Dynamo's graphs; may change the module in place."""

    def at_aten(self, graph: Graph) -> None:
        """Called with each ATen graph, backward ones too; may change the module in place."""

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **kwargs: Any) -> Any:
        number, self._number = self._number, self._number + 1
        self.at_dynamo(Graph(number, "dynamo", "forward", gm, example_inputs))

        def show(direction: str, module: torch.fx.GraphModule, inputs: Sequence[Any]) -> None:
            self.at_aten(Graph(number, "aten", direction, module, inputs))

        # The cache of AOTAutograd knows Dynamo's graph alone: it would pass over the ATen graphs that it has seen, and
        # keep what a tool made of them for everybody.
        with functorch_config.patch(enable_autograd_cache=False):
            if self.backend in ("simdev", "inductor"):
                return _compile_by_inductor(self.backend == "simdev", show, gm, example_inputs, **kwargs)
            if self.backend == "aot_eager":

                def run_shown(direction: str, module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
                    show(direction, module, inputs)
                    return module.forward

                return aten_compiler(run_shown)(gm, example_inputs, **kwargs)
            return lookup_backend(self.backend)(gm, example_inputs, **kwargs)


def _compile_by_inductor(
    as_simdev: bool,
    show: Callable[[str, torch.fx.GraphModule, Sequence[Any]], None],
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    **kwargs: Any,
) -> Any:
    from torch._inductor.compile_fx import compile_fx, compile_fx_inner

    from ..backend import simdev

    @functools.wraps(compile_fx_inner)
    def inner_compile(module: torch.fx.GraphModule, inputs: Sequence[Any], **options: Any) -> Any:
        if options.get("is_backward"):
            direction = "backward"
        else:
            direction = "inference" if options.get("is_inference") else "forward"
        show(direction, module, inputs)
        return compile_fx_inner(module, inputs, **options)

    return (simdev if as_simdev else compile_fx)(gm, example_inputs, inner_compile=inner_compile, **kwargs)
