"""Counting what a graph does: calls, floating-point operations and bytes, operator by operator.

The formulas of floating-point operations are those of torch.utils.flop_counter, which counts matrix products,
convolutions and attention.  Bytes are what the operators of a graph would move if each ran alone, as in eager.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils.flop_counter import flop_registry

from .graphs import Graph, GraphTool, operator_name


def _number(value: Any) -> int:
    """A size as a number: of a dynamic one, that of the inputs it was traced with."""
    if isinstance(value, torch.SymInt):
        hint = value.node.hint
        return 0 if hint is None else int(hint)
    return int(value)


def _bytes(value: Any) -> int:
    """The bytes of a result's tensors; an expanded dimension is in memory once."""
    total = 0
    for tensor in pytree.tree_leaves(value):
        if isinstance(tensor, torch.Tensor):
            elements = 1
            for size, stride in zip(tensor.shape, tensor.stride()):
                elements *= _number(size) if _number(stride) != 0 or _number(size) == 0 else 1
            total += elements * tensor.element_size()
    return total


def is_view(target: Any) -> bool:
    """Returns whether an operator gives another view of its argument's memory and moves nothing."""
    if not isinstance(target, torch._ops.OpOverload):
        return False
    aliases = [result.alias_info for result in target._schema.returns]
    return bool(aliases) and all(alias is not None and not alias.is_write for alias in aliases)


def bytes_moved(nodes: Iterable[torch.fx.Node]) -> tuple[int, int]:
    """Returns the bytes that a set of an ATen graph's nodes reads from outside and writes for outside of the set."""
    inside = set(nodes)
    reads = {source: None for node in inside for source in node.all_input_nodes if source not in inside}
    writes = [node for node in inside if not node.users or any(user not in inside for user in node.users)]
    return sum(_bytes(node.meta.get("val")) for node in reads), sum(
        _bytes(node.meta.get("val")) for node in writes
    )


@dataclass
class OperatorCount:
    """What one operator does in a graph."""

    calls: int = 0
    flops: int = 0
    bytes_read: int = 0
    bytes_written: int = 0


@dataclass
class GraphStatistics:
    """What a graph does, by operator."""

    title: str
    operators: dict[str, OperatorCount] = field(default_factory=dict)

    @property
    def calls(self) -> int:
        return sum(count.calls for count in self.operators.values())

    @property
    def flops(self) -> int:
        return sum(count.flops for count in self.operators.values())

    @property
    def bytes_moved(self) -> int:
        return sum(count.bytes_read + count.bytes_written for count in self.operators.values())

    def __str__(self) -> str:
        lines = [f"{self.title}: {self.calls} calls, {self.flops:,} FLOPs, {self.bytes_moved:,} bytes"]
        by_bytes = lambda item: (-item[1].bytes_read - item[1].bytes_written, item[0])
        for name, count in sorted(self.operators.items(), key=by_bytes):
            lines.append(
                f"  {name:<44} {count.calls:>4} {count.flops:>14,} FLOPs {count.bytes_read:>12,} B in "
                f"{count.bytes_written:>12,} B out"
            )
        return "\n".join(lines)


def count_operators(gm: torch.fx.GraphModule, title: str = "graph") -> GraphStatistics:
    """Counts what an ATen graph does.

    Arguments:
        gm: a graph of ATen operators whose nodes carry example results (`meta["val"]`), as AOTAutograd and
            torch.export make them.
        title: what the statistics are called.

    Returns the counts by operator.  Views count as calls and move nothing.  Sizes that are dynamic count as what they
    were when the graph was traced.
    """
    value_of = lambda node: node.meta.get("val")
    statistics = GraphStatistics(title)
    for node in gm.graph.nodes:
        if node.op != "call_function" or node.target is operator.getitem:
            continue
        count = statistics.operators.setdefault(operator_name(node), OperatorCount())
        count.calls += 1
        formula = flop_registry.get(getattr(node.target, "_overloadpacket", node.target))
        if formula is not None:
            args, kwargs = torch.fx.map_arg((node.args, node.kwargs), value_of)
            count.flops += _number(formula(*args, **kwargs, out_val=value_of(node)))
        if not is_view(node.target):
            read, written = bytes_moved([node])
            count.bytes_read += read
            count.bytes_written += written
    return statistics


class Statistics(GraphTool):
    """A backend that counts what each ATen graph does, and keeps that in `graphs` in the order of compilation.

    Arguments:
        backend: what compiles them, see GraphTool: with "aot_eager" the operators are those that eager would run, with
            "simdev" and "inductor" those that Inductor lowers.
    """

    def __init__(self, backend: str | Callable[..., Any] = "aot_eager"):
        super().__init__(backend)
        self.graphs: list[GraphStatistics] = []

    def at_aten(self, graph: Graph) -> None:
        self.graphs.append(count_operators(graph.module, graph.title))

    def __str__(self) -> str:
        return "\n".join(str(graph) for graph in self.graphs)
