"""Graphs: work of a stream that is captured once and replayed, with the signatures of torch.cuda.

`torch.accelerator.Graph` (from PyTorch 2.13 on) records the same graphs.  Lives here: the classes and
functions of `torch.simdev`.  Does not live here: capture and replay (csrc/runtime/graph.h), and what
`mode="reduce-overhead"` makes of them (compile/graph.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch.utils import _pytree as pytree

from . import _C
from .backing import runs_on_cuda
from .devices import synchronize
from .memory import empty_cache
from .streams import Stream
from .streams import stream as stream_context

PoolId = tuple[int, int]


def is_current_stream_capturing() -> bool:
    """Returns whether work of the current stream is being captured.  Starts no device."""
    return _C._is_stream_capturing(-1)


def graph_pool_handle() -> PoolId:
    """Returns the id of a new memory pool, which graphs can share if they are replayed in the order of their
    capture and none of them is needed any more when the next one is replayed."""
    return torch.cuda.graph_pool_handle() if runs_on_cuda() else _C._new_pool_id()


class Graph(_C._Graph):
    """Work of a stream, captured once and replayed as often as wanted, at the cost of one launch.

    Arguments:
        keep_graph: keeps the captured graph beside what is replayed, for `debug_dump`; then `instantiate` is
            left to the caller, or to the first `replay`.

    Replays work on the memory that was used at the capture: inputs are changed in place before, and outputs
    hold the latest replay's values.  Memory that was allocated at the capture belongs to the graph's pool,
    which lives as long as the graph or a tensor in it.  Each replay draws new random numbers, from every
    generator that was drawn from.

    While a stream is captured, nothing may wait for it: `synchronize`, `item`, copies to pageable memory,
    operators that run on the host.  Such a call raises, and `capture_end` then raises too; the device is none
    the worse for it.
    """

    def __new__(cls, keep_graph: bool = False) -> Graph:
        """With the CUDA driver, a torch.cuda.CUDAGraph."""
        return cast(Graph, torch.cuda.CUDAGraph(keep_graph)) if runs_on_cuda() else super().__new__(cls)

    def __init__(self, keep_graph: bool = False):
        super().__init__(keep_graph)

    def capture_begin(self, pool: PoolId | None = None, capture_error_mode: str = "global") -> None:
        """Begins to capture the current stream, and the streams that wait for its events from now on.

        Arguments:
            pool: of `graph_pool_handle`, or another graph's `pool()`; default: a pool of the graph's own.
            capture_error_mode: "global", "thread_local" or "relaxed".  Of what they tell apart in CUDA
                nothing is unsafe here, so that all are "relaxed".

        Raises RuntimeError on the default stream, for another mode, and if the object holds a graph already.
        """
        super().capture_begin(pool, capture_error_mode)

    def capture_end(self) -> None:
        """Ends the capture.  Raises RuntimeError if it was invalidated, or if a stream was forked and not
        joined."""
        super().capture_end()

    def instantiate(self) -> None:
        """Makes the captured graph ready to be replayed; for `keep_graph=True`."""
        super().instantiate()

    def replay(self) -> None:
        """Runs the captured work in the current stream; the host does not wait."""
        super().replay()

    def reset(self) -> None:
        """Gives the graph up, and its pool.  The object can capture another one."""
        super().reset()

    def pool(self) -> PoolId:
        """Returns the id of the graph's memory pool, for the captures of other graphs."""
        return super().pool()

    def register_generator_state(self, generator: torch.Generator) -> None:
        """Does nothing: a generator takes part as soon as captured work draws from it."""

    def enable_debug_mode(self) -> None:
        """Makes all graphs captured from now on keep what `debug_dump` needs, until it is called."""
        super().enable_debug_mode()

    def debug_dump(self, debug_path: str) -> None:
        """Writes the captured graph as DOT to a file.  Warns unless `keep_graph` or the debug mode is on."""
        super().debug_dump(debug_path)


class graph:
    """Context manager that captures the work inside into a `Graph`.

    Arguments:
        simdev_graph: takes the work.
        pool: see `Graph.capture_begin`.
        stream: is current inside (default: one stream that all captures share).
        capture_error_mode: see `Graph.capture_begin`.

    What the block raises comes out of it; the graph is empty then.
    """

    default_capture_stream: Stream | None = None

    def __init__(
        self,
        simdev_graph: Graph,
        pool: PoolId | None = None,
        stream: torch.Stream | None = None,
        capture_error_mode: str = "global",
    ):
        if stream is None and graph.default_capture_stream is None:
            graph.default_capture_stream = Stream()
        self.simdev_graph = simdev_graph
        self.pool = pool
        self.capture_stream = graph.default_capture_stream if stream is None else stream
        self.capture_error_mode = capture_error_mode

    def __enter__(self) -> None:
        synchronize()
        empty_cache()
        self._context = stream_context(self.capture_stream)
        self._context.__enter__()
        try:
            self.simdev_graph.capture_begin(pool=self.pool, capture_error_mode=self.capture_error_mode)
        except BaseException:
            self._context.__exit__()
            raise

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        try:
            # What the block met tells more than that the capture is no good for it.
            with contextlib.nullcontext() if kind is None else contextlib.suppress(RuntimeError):
                self.simdev_graph.capture_end()
            if kind is not None:
                self.simdev_graph.reset()
        finally:
            self._context.__exit__(kind, *rest)


@dataclass
class _Recording:
    """The forward and backward pass of a callable as graphs over tensors that stay where they are."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    parameters: tuple[torch.nn.Parameter, ...]
    forward: Graph = field(default_factory=Graph)
    backward: Graph = field(default_factory=Graph)
    outputs: list[torch.Tensor] = field(default_factory=list)
    structure: Any = None  # of the outputs
    grad_outputs: list[torch.Tensor | None] = field(default_factory=list)
    grad_inputs: list[torch.Tensor | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.leaves = pytree.tree_leaves(self.arguments)
        if not all(isinstance(leaf, torch.Tensor) for leaf in self.leaves):
            raise AssertionError("sample_args for each callable must contain only Tensors.")
        self.inputs: list[torch.Tensor] = [*self.leaves, *self.parameters]

    def _differentiate(self, outputs: list[torch.Tensor], grads: list[Any], allow_unused: bool) -> list[Any]:
        """Returns the gradients of `inputs`, with None for those that need none."""
        wanted = [tensor for tensor in self.inputs if tensor.requires_grad]
        differentiable = [output for output in outputs if output.requires_grad]
        if not differentiable or not wanted:
            return [None] * len(self.inputs)
        found = iter(
            torch.autograd.grad(
                differentiable,
                wanted,
                [grad for grad in grads if grad is not None],
                allow_unused=allow_unused,
            )
        )
        return [next(found) if tensor.requires_grad else None for tensor in self.inputs]

    def warm_up(self, iterations: int, allow_unused: bool) -> None:
        for _ in range(iterations):
            outputs = pytree.tree_leaves(self.function(*self.arguments))
            grads = [torch.empty_like(output) if output.requires_grad else None for output in outputs]
            self._differentiate(outputs, grads, allow_unused)

    def capture_forward(self, pool: PoolId) -> None:
        with graph(self.forward, pool=pool):
            result = self.function(*self.arguments)
        self.outputs, self.structure = pytree.tree_flatten(result)

    def capture_backward(self, pool: PoolId, allow_unused: bool) -> None:
        self.grad_outputs = [torch.empty_like(o) if o.requires_grad else None for o in self.outputs]
        self.grad_inputs = [None] * len(self.inputs)
        if any(grad is not None for grad in self.grad_outputs):
            with graph(self.backward, pool=pool):
                self.grad_inputs = self._differentiate(self.outputs, self.grad_outputs, allow_unused)
        # What eager mode has recorded is of no more use, and must not meet what the training loop records.
        self.outputs = [output.detach() for output in self.outputs]

    def __call__(self, *arguments: Any) -> Any:
        outputs = _Replay.apply(self, *pytree.tree_leaves(arguments), *self.parameters)
        return pytree.tree_unflatten(outputs, self.structure)


def _assign(target: torch.Tensor, source: torch.Tensor) -> None:
    if target.data_ptr() != source.data_ptr():
        target.copy_(source)


class _Replay(torch.autograd.Function):
    """One node of the autograd graph, whose passes are replays."""

    @staticmethod
    def forward(ctx: Any, recording: _Recording, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.recording = recording
        for leaf, given in zip(recording.leaves, inputs):
            _assign(leaf, given)
        recording.forward.replay()
        return tuple(output.view_as(output) for output in recording.outputs)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        recording: _Recording = ctx.recording
        for static, grad in zip(recording.grad_outputs, grads):
            if static is not None:
                _assign(static, grad)
        recording.backward.replay()
        return (None, *(None if grad is None else grad.detach() for grad in recording.grad_inputs))


def _check_module(module: torch.nn.Module) -> None:
    if module._backward_hooks or module._forward_hooks or module._forward_pre_hooks:
        raise AssertionError("Modules must not have hooks registered at the time they are passed.")
    if any(buffer.requires_grad for buffer in module.buffers()):
        raise AssertionError("Only parameters may be trainable: all buffers must have requires_grad=False.")


def _graphed_module(module: torch.nn.Module, recording: _Recording) -> torch.nn.Module:
    eager, training = module.forward, module.training

    def forward(*args: Any, **kwargs: Any) -> Any:
        return recording(*args, **kwargs) if module.training == training else eager(*args, **kwargs)

    module.forward = forward
    return module


def make_graphed_callables(
    callables: Any,
    sample_args: Any,
    num_warmup_iters: int = 3,
    allow_unused_input: bool = False,
    pool: PoolId | None = None,
) -> Any:
    """Returns callables that replay the forward and backward passes of the given ones, for training loops.

    Arguments:
        callables: a function or module, or a tuple of them in the order in which they will run.  They share a
            pool.
        sample_args: the tensors of one call as a tuple, or a tuple of those for a tuple of callables.
            Shapes, dtypes, places and `requires_grad` are those of all later calls, whose tensors are copied
            into these.
        num_warmup_iters: how often each is run before its capture.
        allow_unused_input: whether an input may have no influence on the outputs.
        pool: see `Graph.capture_begin`.

    A module is returned itself, with another `forward` for as long as it is in the mode (train or eval) that
    it was captured in.  Gradients of gradients are not available.

    Raises AssertionError for modules with hooks or trainable buffers and for arguments that are not tensors,
    RuntimeError under autocast with a cache.
    """
    if torch.is_autocast_enabled("simdev") and torch.is_autocast_cache_enabled():
        raise RuntimeError(
            "make_graphed_callables does not support the autocast caching. Please set `cache_enabled=False`."
        )
    several = isinstance(callables, tuple)
    functions: Sequence[Any] = callables if several else (callables,)
    recordings = []
    for function, arguments in zip(functions, sample_args if several else (sample_args,)):
        parameters: tuple[torch.nn.Parameter, ...] = ()
        if isinstance(function, torch.nn.Module):
            _check_module(function)
            parameters = tuple(function.parameters())
        recordings.append(_Recording(function, arguments, parameters))
    shared = graph_pool_handle() if pool is None else pool

    synchronize()
    with stream_context(Stream()):
        for recording in recordings:
            recording.warm_up(num_warmup_iters, allow_unused_input)
    synchronize()
    # The order in which they will run is the order of capture, as memory of one pass is used again by the
    # next.
    for recording in recordings:
        recording.capture_forward(shared)
    for recording in reversed(recordings):
        recording.capture_backward(shared, allow_unused_input)

    graphed = tuple(
        _graphed_module(function, recording) if isinstance(function, torch.nn.Module) else recording
        for function, recording in zip(functions, recordings)
    )
    return graphed if several else graphed[0]
