"""Timing each operator of a graph on the device, by nodes that record events around it."""

from __future__ import annotations

import operator
from dataclasses import dataclass

import torch

from .graphs import Graph, GraphTool, operator_name
from .statistics import is_view


class _RecordEvent(torch.nn.Module):
    """A node's module: records a timing event on the current stream each time it is reached."""

    def __init__(self, device: torch.device):
        super().__init__()
        self.device = device
        self.events: list[torch.Event] = []

    def forward(self) -> None:
        event = torch.Event(self.device, enable_timing=True)
        event.record()
        self.events.append(event)


@dataclass(frozen=True)
class OperatorTime:
    """What one node of a graph took."""

    title: str  # of the graph
    node: str
    operator: str
    calls: int
    milliseconds: float  # of device time, all calls together

    def __str__(self) -> str:
        return f"{self.milliseconds:>9.3f} ms {self.calls:>4} calls  {self.operator:<40} {self.node} ({self.title})"


class Profiler(GraphTool):
    """A backend that runs ATen graphs operator by operator and times each on the device, backward too.

        profiler = Profiler()
        torch.compile(f, backend=profiler)(x)
        print(profiler)

    Around each operator whose result is on an accelerator it inserts two nodes that record events on the current
    stream.  A time is that between the events: it includes the wait for the host where the device had nothing to do,
    so short operators look longer than they are.  Views are not timed.
    """

    def __init__(self) -> None:
        super().__init__("aot_eager")
        self._timed: list[tuple[str, str, str, _RecordEvent, _RecordEvent]] = []

    def at_aten(self, graph: Graph) -> None:
        module = graph.module
        for node in list(module.graph.nodes):
            device = _accelerator_of(node)
            if device is None:
                continue
            position = len(self._timed)
            begin, end = _RecordEvent(device), _RecordEvent(device)
            for name, record, inserting in (
                (f"record_begin_{position}", begin, module.graph.inserting_before),
                (f"record_end_{position}", end, module.graph.inserting_after),
            ):
                module.add_module(name, record)
                with inserting(node):
                    module.graph.call_module(name)
            self._timed.append((graph.title, node.name, operator_name(node), begin, end))
        module.recompile()

    def times(self) -> list[OperatorTime]:
        """Waits for the device and returns the time of each operator so far, the longest first."""
        torch.accelerator.synchronize()
        times = [
            OperatorTime(
                title,
                node,
                name,
                len(end.events),
                sum(first.elapsed_time(last) for first, last in zip(begin.events, end.events)),
            )
            for title, node, name, begin, end in self._timed
        ]
        return sorted(times, key=lambda time: -time.milliseconds)

    def reset(self) -> None:
        """Forgets the times, for instance those of the first call."""
        for *_, begin, end in self._timed:
            begin.events.clear()
            end.events.clear()

    def __str__(self) -> str:
        return "\n".join(str(time) for time in self.times() if time.calls)


def _accelerator_of(node: torch.fx.Node) -> torch.device | None:
    if node.op != "call_function" or node.target is operator.getitem or is_view(node.target):
        return None
    for value in torch.utils._pytree.tree_leaves(node.meta.get("val")):
        if isinstance(value, torch.Tensor) and value.device.type not in ("cpu", "meta"):
            return value.device
    return None
