"""Seeing each graph: what Dynamo captured, and what AOTAutograd made of it, forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .graphs import Graph, GraphTool


@dataclass(frozen=True)
class ObservedGraph:
    """A graph as it was when it passed."""

    title: str
    number: int
    level: str
    direction: str
    operators: list[str]
    code: str  # readable Python, with shapes and where in the program each line comes from

    def __str__(self) -> str:
        return f"--- {self.title}: {len(self.operators)} calls ---\n{self.code}"


class Observer(GraphTool):
    """A backend that prints each graph and keeps it in `graphs`, in the order of compilation.

        torch.compile(f, backend=Observer())

    Arguments:
        backend: what compiles them, see GraphTool.
        show: called with each `ObservedGraph`; print unless given.
    """

    def __init__(
        self, backend: str | Callable[..., Any] = "simdev", show: Callable[[ObservedGraph], Any] = print
    ):
        super().__init__(backend)
        self.show = show
        self.graphs: list[ObservedGraph] = []

    def _observe(self, graph: Graph) -> None:
        # Kept as text: the module goes on, and the next stations change it.
        code = graph.module.print_readable(print_output=False)
        observed = ObservedGraph(
            graph.title, graph.number, graph.level, graph.direction, graph.operators, code.strip()
        )
        self.graphs.append(observed)
        self.show(observed)

    at_dynamo = _observe
    at_aten = _observe
