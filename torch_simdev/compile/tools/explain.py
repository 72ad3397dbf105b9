"""What torch.compile made of a function: graphs, breaks, guards, kernels, and what each kernel saves."""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from torch._functorch import config as functorch_config
from torch._inductor import config as inductor_config
from torch._inductor import ir
from torch._inductor.codegen.cpp import CppScheduling
from torch._inductor.codegen.triton import TritonScheduling
from torch._inductor.scheduler import BaseSchedulerNode, Scheduler
from torch._inductor.utils import Placeholder
from torch._inductor.virtualized import V
from torch.utils import _pytree as pytree

from ... import fallback
from ..scheduling import SimdevScheduling
from .graphs import Graph, GraphTool
from .statistics import bytes_moved, is_view

_SHOWN_GUARDS = 12


@dataclass(frozen=True)
class KernelExplanation:
    """One launch of a generated kernel."""

    name: str
    operators: list[str]  # that it fuses, as eager would call them
    bytes_read: int  # of each buffer that it reads from memory, once
    bytes_written: int
    eager_bytes: int  # that those of its operators move in eager which no kernel before it has begun
    source: str

    @property
    def bytes_moved(self) -> int:
        return self.bytes_read + self.bytes_written

    def __str__(self) -> str:
        return (
            f"{self.name}: fuses {len(self.operators)} ({', '.join(self.operators)}); "
            f"moves {self.bytes_moved:,} bytes, eager {self.eager_bytes:,}"
        )


@dataclass
class GraphExplanation:
    """What became of one ATen graph."""

    title: str
    kernels: list[KernelExplanation] = field(default_factory=list)  # in the order of their launches
    # Operators that are called, not fused: those that Inductor calls for their speed, such as matrix products, and
    # those that it has no lowering for.
    called: Counter[str] = field(default_factory=Counter)
    not_lowered: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        lines = [f"{self.title}; kernels: {len(self.kernels)}", *(f"  {kernel}" for kernel in self.kernels)]
        for what, counts in (("calls", self.called), ("calls, for want of a lowering,", self.not_lowered)):
            if counts:
                lines.append(f"  {what} {', '.join(f'{name} x{n}' for name, n in sorted(counts.items()))}")
        return "\n".join(lines)


@dataclass
class Explanation:
    """The answer of `explain`; prints as a report."""

    dynamo: Any  # what torch._dynamo.explain returns
    graphs: list[GraphExplanation]
    fallbacks: dict[str, int]  # operators that ran on the host during one call, see torch.simdev.fallbacks()

    @property
    def graph_count(self) -> int:
        return self.dynamo.graph_count

    @property
    def breaks(self) -> list[str]:
        """The reason for each graph break, with the place in the program."""
        return [_break(reason) for reason in self.dynamo.break_reasons]

    @property
    def guards(self) -> list[str]:
        """What is checked before compiled code is used again."""
        return _guards(self.dynamo.out_guards or ())

    @property
    def kernels(self) -> list[KernelExplanation]:
        return [kernel for graph in self.graphs for kernel in graph.kernels]

    def __str__(self) -> str:
        guards = self.guards
        lines = [f"Dynamo's graphs: {self.graph_count}, breaks: {len(self.breaks)}, guards: {len(guards)}"]
        lines += [f"  break: {reason}" for reason in self.breaks]
        lines += [f"  guard: {guard[:100]}" for guard in guards[:_SHOWN_GUARDS]]
        if len(guards) > _SHOWN_GUARDS:
            lines.append(f"  and {len(guards) - _SHOWN_GUARDS} more")
        lines += [str(graph) for graph in self.graphs]
        ran = ", ".join(f"{name} x{n}" for name, n in sorted(self.fallbacks.items()))
        lines.append(f"on the host: {ran or 'nothing'}")
        return "\n".join(lines)


def explain(function: Callable[..., Any], **options: Any) -> Callable[..., Explanation]:
    """Tells what torch.compile makes of a function on given arguments: `print(explain(f)(x))`.

    The returned function runs `function` on its arguments three times: by torch._dynamo.explain, which tells graphs,
    breaks and guards; compiled anew, past all caches, which tells the kernels; and warm, which tells what ran on the
    host.  When results need gradients, the backward pass is compiled and run too, without leaving gradients behind.
    Resets Dynamo before and after.

    Arguments:
        function: a function or module, uncompiled.
        options: of torch.compile, except the backend: `dynamic`, `fullgraph`, `mode`, `options`.

    Returns a function that takes the arguments and returns an `Explanation`.  It raises what compiling raises.
    """

    @functools.wraps(function)
    def explained(*args: Any, **kwargs: Any) -> Explanation:
        dynamo = torch._dynamo.explain(function)(*args, **kwargs)
        recorder = _Recorder()
        compiled = torch.compile(function, backend=recorder, **options)
        with recorder.recording():
            _forward_and_backward(compiled, function, args, kwargs)
            before = Counter(fallback.fallbacks())
            _forward_and_backward(compiled, function, args, kwargs)
        fallbacks = Counter(fallback.fallbacks()) - before
        torch._dynamo.reset()
        return Explanation(dynamo, recorder.graphs, dict(fallbacks))

    return explained


def _forward_and_backward(compiled: Callable[..., Any], function: Any, args: Any, kwargs: Any) -> None:
    results = pytree.tree_leaves(compiled(*args, **kwargs))
    needing = [value for value in results if isinstance(value, torch.Tensor) and value.requires_grad]
    leaves = [
        value
        for value in pytree.tree_leaves((args, kwargs))
        if isinstance(value, torch.Tensor) and value.requires_grad
    ]
    if isinstance(function, torch.nn.Module):
        leaves += [parameter for parameter in function.parameters() if parameter.requires_grad]
    if needing and leaves:
        torch.autograd.grad(needing, leaves, [torch.ones_like(value) for value in needing], allow_unused=True)


class _Recorder(GraphTool):
    """The simdev backend, with notes of what the schedulers of its graphs do."""

    def __init__(self) -> None:
        super().__init__("simdev")
        self.graphs: list[GraphExplanation] = []
        self._eager: dict[tuple[Any, ...], int] = {}  # bytes of the operators that no kernel has begun
        self._order: dict[tuple[Any, ...], int] = {}  # of operators in the graph
        self._backward = False

    def at_aten(self, graph: Graph) -> None:
        self.graphs.append(GraphExplanation(graph.title))
        self._backward = graph.direction == "backward"
        operators: dict[tuple[Any, ...], list[torch.fx.Node]] = {}
        for node in graph.module.graph.nodes:
            if (key := self._operator(node)) is not None:
                operators.setdefault(key, []).append(node)
        self._eager = {key: sum(bytes_moved(nodes)) for key, nodes in operators.items()}
        self._order = {key: position for position, key in enumerate(operators)}

    def _operator(self, node: torch.fx.Node) -> tuple[Any, ...] | None:
        """Which call of an operator in eager a node is a part of; None for views, and for what eager does not do."""
        operator = node.meta.get("original_aten")
        if operator is None or is_view(operator):
            return None
        if (
            self._backward and node.meta.get("partitioner_tag") == "is_forward"
        ):  # computed again, to save memory
            return None
        # A decomposed operator's nodes share its number; operators that autograd does not number tell their origin.
        origin = [source.name for source in node.meta.get("from_node", ())[:1]]
        return (str(getattr(operator, "_overloadpacket", operator)), node.meta.get("seq_nr"), *origin)

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Compiles past all caches meanwhile, and notes each kernel and each call."""
        with (
            functorch_config.patch(enable_autograd_cache=False),
            inductor_config.patch(fx_graph_cache=False, fx_graph_remote_cache=False),
            contextlib.ExitStack() as stack,
        ):
            for scheduling in (SimdevScheduling, CppScheduling, TritonScheduling):
                stack.enter_context(self._after(scheduling, "define_kernel", self._kernel))
            stack.enter_context(self._after(Scheduler, "codegen_extern_call", self._call))
            yield

    @staticmethod
    def _after(owner: type, name: str, note: Callable[..., None]) -> Any:
        upstream = getattr(owner, name)

        @functools.wraps(upstream)
        def noted(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = upstream(self, *args, **kwargs)
            note(result, *args)
            return result

        return mock.patch.object(owner, name, noted)

    def _kernel(self, name: str, source: str, schedule: Sequence[Any], *_: Any) -> None:
        nodes = [
            node for entry in schedule if isinstance(entry, BaseSchedulerNode) for node in entry.get_nodes()
        ]
        origins = [origin for node in nodes for origin in getattr(node.node, "origins", ())]
        found = {key for origin in origins if (key := self._operator(origin)) is not None}
        keys = sorted(found, key=lambda key: self._order.get(key, -1))
        read, written = _accesses(nodes, reads=True), _accesses(nodes, reads=False)
        self.graphs[-1].kernels.append(
            KernelExplanation(
                name,
                [key[0] for key in keys],
                sum(size for buffer, size in read.items() if buffer not in written),
                sum(written.values()),
                sum(self._eager.pop(key, 0) for key in keys),
                source.replace(str(Placeholder.KERNEL_NAME), name),
            )
        )

    def _call(self, _: Any, scheduler_node: BaseSchedulerNode) -> None:
        node: Any = scheduler_node.node
        if isinstance(node, ir.MultiOutput):  # takes a result apart
            return
        # Of the last kind are copies between devices and conditionals.
        name = str(node.op_overload or node.try_get_kernel_name() or type(node).__name__)
        counts = (
            self.graphs[-1].not_lowered if isinstance(node, ir.FallbackKernel) else self.graphs[-1].called
        )
        counts[name] += 1


def _accesses(nodes: Iterable[BaseSchedulerNode], reads: bool) -> dict[str, int]:
    """The bytes of each buffer in memory that nodes read, or write; a buffer counts once."""
    sizes: dict[str, int] = {}
    for node in nodes:
        for buffer, size in node.get_read_write_buffer_accesses(
            include_reads=reads, include_writes=not reads
        ).items():
            if buffer not in V.graph.removed_buffers:
                sizes[buffer] = max(sizes.get(buffer, 0), size)
    return sizes


def _break(reason: Any) -> str:
    text = reason.reason.splitlines()[0]
    if not reason.user_stack:
        return text
    frame = reason.user_stack[-1]
    return f"{text} at {frame.filename}:{frame.lineno}"


def _guards(guards: Iterable[Any]) -> list[str]:
    texts: dict[str, None] = {}
    for guard in sorted(guards):
        what = f"{guard.create_fn_name()} {guard.name}".strip()
        texts[": ".join([what, *(["; ".join(guard.code_list)] if guard.code_list else [])])] = None
    return list(texts)
