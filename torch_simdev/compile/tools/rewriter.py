"""Changing a graph on its way through the compiler, with the proof that the change did what it should."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch.utils import _pytree as pytree

from .graphs import Graph, GraphTool, operator_name


@dataclass(frozen=True)
class Proof:
    """What a rewritten function gave, beside the original and what was predicted."""

    replaced: int  # nodes
    original: Any
    rewritten: Any
    predicted: Any

    def __str__(self) -> str:
        return f"nodes replaced: {self.replaced}; the result changed, and is the predicted one"


class Rewriter(GraphTool):
    """A backend that replaces operators by others with the same arguments, and goes on with the changed graph.

        torch.compile(f, backend=Rewriter({torch.ops.aten.sin.default: torch.ops.aten.cos.default}))

    Works at the level at which the operator appears: an OpOverload in ATen graphs, a Python function such as torch.sin
    in Dynamo's.  For patterns of several nodes, use torch.fx.subgraph_rewriter in a GraphTool of your own.

    Arguments:
        replacements: from operator to operator.
        backend: what compiles the changed graph, see GraphTool.

    Compiling raises ValueError where the replacement of an ATen operator returns another shape, dtype or device.
    """

    def __init__(
        self,
        replacements: Mapping[Callable[..., Any], Callable[..., Any]],
        backend: str | Callable[..., Any] = "simdev",
    ):
        super().__init__(backend)
        self.replacements = dict(replacements)
        self.replaced = 0

    def _rewrite(self, graph: Graph) -> None:
        replaced = 0
        for node in graph.module.graph.nodes:
            if node.op != "call_function" or node.target not in self.replacements:
                continue
            name, node.target = operator_name(node), self.replacements[node.target]
            if graph.level == "aten":
                _update_example(node, name)
            replaced += 1
        if replaced:
            self.replaced += replaced
            graph.module.recompile()

    at_dynamo = _rewrite
    at_aten = _rewrite

    def prove(self, function: Callable[..., Any], predicted: Callable[..., Any], *args: Any) -> Proof:
        """Compiles `function` with the replacements and shows that its result changed as predicted.

        Arguments:
            function: what is compiled; it must not change its arguments.
            predicted: computes, uncompiled, what the rewritten function should return.
            args: the arguments of both.

        Raises AssertionError where nothing was replaced, where the result is the original's, or where it is not what
        `predicted` returns within the tolerances of torch.testing.assert_close.
        """
        before = self.replaced
        original = function(*args)
        rewritten = torch.compile(function, backend=self)(*args)
        proof = Proof(self.replaced - before, original, rewritten, predicted(*args))
        if proof.replaced == 0:
            raise AssertionError("no node was replaced: the graph has none of the operators")
        if _equal(rewritten, original):
            raise AssertionError(
                f"{proof.replaced} nodes were replaced, and the result is still the original's"
            )
        torch.testing.assert_close(rewritten, proof.predicted)
        return proof


def _equal(a: Any, b: Any) -> bool:
    left, right = pytree.tree_leaves(a), pytree.tree_leaves(b)
    return len(left) == len(right) and all(
        torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y for x, y in zip(left, right)
    )


def _update_example(node: torch.fx.Node, replaced: str) -> None:
    """Gives a node the example result of its new operator; the next stations go by it."""
    example = lambda source: source.meta.get("val")
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), example)
    old = node.meta["val"]
    with detect_fake_mode((old, args, kwargs)):
        new = node.target(*args, **kwargs)
    if _kinds(new) != _kinds(old):
        raise ValueError(
            f"{operator_name(node)} returns {_kinds(new)} where {replaced} returned {_kinds(old)}"
        )
    node.meta["val"] = new


def _kinds(value: Any) -> list[Any]:
    return [
        (tuple(leaf.shape), leaf.dtype, leaf.device) if isinstance(leaf, torch.Tensor) else type(leaf)
        for leaf in pytree.tree_leaves(value)
    ]
