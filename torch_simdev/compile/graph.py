"""`mode="reduce-overhead"`: a compiled graph is captured into one of the device's graphs and replayed.

Why not `torch._inductor.cudagraph_trees`, which does this for CUDA: it is built upon CUDA's allocator state,
streams and graphs by name, and most of it makes captures share one memory pool, so that what a replay
returned must not be used after the next one of its generation.  Here each recording has a pool of its own.
That takes more memory, and buys that recordings may be replayed in any order and that outputs need no rules:
the graph's memory is lent to its holder, and not replayed into before it is given back
(csrc/runtime/graph_outputs.h).  Everything else follows the trees: what is recorded, what is skipped, and how
skips are counted.

The life of a compiled graph, for each combination of the sizes that vary:

1. The first call runs it as it is.  Operators learn their shapes, and the addresses of the inputs are noted.
2. The second call captures it and replays the recording.  An input whose address will be the same again
   (a parameter, `mark_static_address`, the result of another recording) is read where it is; any other gets a
   buffer.
3. Later calls copy the other inputs into their buffers and replay.  Another address where one was expected
   leads to another recording.  So does an output that somebody still holds: the new recording copies it out.

What cannot be recorded goes on as it was, once per reason counted in
`torch._dynamo.utils.counters["inductor"]["cudagraph_skips"]` and told in `TORCH_LOGS=cudagraphs`;
recordings are counted in `counters["inductor"]["simdev_graphs_recorded"]`.
"""

from __future__ import annotations

import functools
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._dynamo.utils import counters
from torch._inductor.cudagraph_utils import log_cudagraph_skip_and_bump_counter

from .. import _C
from .._utils import DEVICE_TYPE
from ..devices import device as device_context
from ..graphs import Graph, is_current_stream_capturing
from ..streams import Stream, current_stream, stream

Model = Callable[[list[Any]], Any]

# Inputs that move from call to call are copied after the second recording; more than a few of them would mean
# that something else is wrong.
MAX_RECORDINGS = 8
# As many combinations of sizes are recorded, each with its memory; further ones run as they are.
MAX_SIZES = 16


class Unsuitable(Exception):
    """What is called cannot be recorded; the message says why."""


@functools.cache
def _capture_stream(device: int) -> Stream:
    return Stream(device)


_capturing = threading.Lock()  # of the capture streams


def _distinct(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the part of a tensor that holds every element once, where dimensions are expanded."""
    for dim, (size, stride) in enumerate(zip(tensor.shape, tensor.stride())):
        if stride == 0 and size > 1:
            tensor = tensor.narrow(dim, 0, 1)
    return tensor


def _buffer(tensor: torch.Tensor) -> torch.Tensor:
    buffer = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    if torch._debug_has_internal_overlap(_distinct(buffer)) == 1:
        raise Unsuitable("an input whose elements overlap")
    return buffer


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


@dataclass(frozen=True)
class _Alias:
    """An output that is memory of an input."""

    index: int
    size: torch.Size
    stride: tuple[int, ...]
    offset: int  # elements after the input's first
    same: bool  # it is the input itself

    def of(self, inputs: Sequence[Any]) -> torch.Tensor:
        given = inputs[self.index]
        if self.same:
            return given
        return given.as_strided(self.size, self.stride, given.storage_offset() + self.offset)


class Recording:
    """One captured run of a compiled graph.

    Arguments:
        model: takes a list of inputs, which it clears, and returns a list or tuple of outputs.
        inputs: of the call to capture.
        fixed: indices of the inputs to read where they are.
        kept: indices of the outputs to copy out, as they are held for longer than until the next call.
        constants: storages of tensors that belong to the compiled graph, as `_storage` numbers.
        device: index of the device.

    Capturing runs nothing.  Raises what a capture raises for work that cannot be part of a graph.
    """

    def __init__(
        self,
        model: Model,
        inputs: list[Any],
        fixed: set[int],
        kept: set[int],
        constants: frozenset[int],
        device: int,
    ):
        tensors = {i: value for i, value in enumerate(inputs) if isinstance(value, torch.Tensor)}
        given = list(inputs)
        self.copied = [i for i in tensors if i not in fixed]
        for i in self.copied:
            given[i] = _buffer(tensors[i])
        self.buffers = [_distinct(given[i]) for i in self.copied]
        self.expanded = [
            place for place, i in enumerate(self.copied) if self.buffers[place].shape != tensors[i].shape
        ]
        at = sorted(fixed)
        self.fixed = _C._FixedInputs(at, [tensors[i].data_ptr() for i in at])
        self.device = device
        self.graph = Graph()
        self.lock = threading.Lock()
        self.latest: Stream | None = None  # where it was replayed last
        self.latest_handle = -1

        arguments = list(given)
        with _capturing, device_context(device), stream(_capture_stream(device)):
            self.graph.capture_begin(capture_error_mode="relaxed")
            try:
                outputs = list(model(arguments))
            except BaseException:
                self.graph.reset()
                raise
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a graph of nothing but views is empty, and may be
                self.graph.capture_end()
        self._sort(outputs, given, kept, constants)

    def _sort(self, outputs: list[Any], given: list[Any], kept: set[int], constants: frozenset[int]) -> None:
        """Sorts the outputs: made by the graph, memory of an input, or the same at every run."""
        sources = {_storage(value): i for i, value in enumerate(given) if isinstance(value, torch.Tensor)}
        same = {id(value): i for i, value in enumerate(given) if isinstance(value, torch.Tensor)}
        made: list[torch.Tensor] = []
        self.template: list[Any] = []  # what is not made by the graph
        self.places: list[int] = []  # of what is
        for place, output in enumerate(outputs):
            entry = output
            if isinstance(output, torch.Tensor):
                storage = _storage(output)
                if id(output) in same or storage in sources:
                    index = same.get(id(output), sources.get(storage, -1))
                    source = given[index]
                    offset = output.storage_offset() - source.storage_offset()
                    entry = _Alias(index, output.size(), output.stride(), offset, id(output) in same)
                elif storage not in constants:
                    made.append(output)
                    self.places.append(place)
                    entry = None
            self.template.append(entry)
        self.aliases = [place for place, entry in enumerate(self.template) if isinstance(entry, _Alias)]
        copied = [i for i, place in enumerate(self.places) if place in kept]
        self.outputs = _C._GraphOutputs(made, copied)

    def _follow_stream(self) -> None:
        current = current_stream(self.device)
        if self.latest is not None:
            current.wait_stream(self.latest)  # buffers and outputs are in use there
        for buffer in self.buffers:
            buffer.record_stream(current)
        self.latest, self.latest_handle = current, _C._current_raw_stream(self.device)

    def held(self) -> list[int]:
        """Returns the indices of the outputs whose memory somebody holds."""
        return [self.places[i] for i in self.outputs.held()]

    def run(self, inputs: list[Any]) -> list[Any] | None:
        """Replays it for inputs that `fixed` matches, on the current stream, and clears `inputs`.

        Returns the outputs, or None, with nothing done, if those of an earlier run are still held.
        """
        with self.lock:
            if self.outputs.held():
                return None
            if _C._current_raw_stream(self.device) != self.latest_handle:
                self._follow_stream()
            self.outputs.wait_for_uses(self.device)
            if self.copied:
                given = [inputs[i] for i in self.copied]
                for place in self.expanded:
                    given[place] = _distinct(given[place])
                _C._copy_below_autograd(self.buffers, given)
            results = list(self.template)
            for place in self.aliases:
                results[place] = results[place].of(inputs)
            inputs.clear()
            self.graph.replay()
            for place, output in zip(self.places, self.outputs.take(self.device)):
                results[place] = output
            return results


@dataclass
class _Sizes:
    """The recordings of a compiled graph for one combination of sizes."""

    recordings: list[Recording] = field(default_factory=list)
    made: int = 0  # recordings, those included that were given up
    kept: set[int] = field(default_factory=set)  # outputs that were found to be held
    addresses: dict[int, int] | None = None  # of static inputs at the latest call that was not replayed
    unsuitable: bool = False


class RecordedFunction:
    """A compiled graph that is recorded when it is called.

    Arguments:
        model: the compiled graph's function of a list of inputs, which it clears.
        static: indices of the inputs whose addresses Dynamo or AOTAutograd expect to stay.
        mutated: indices of the inputs that it writes.
        constants: tensors that belong to the compiled graph.
        is_backward: whether it is a backward graph, of which only parameters among the static inputs really
            stay.
        device: index of the device that it was compiled for.
    """

    def __init__(
        self,
        model: Model,
        static: Sequence[int],
        mutated: Sequence[int],
        constants: Sequence[torch.Tensor],
        is_backward: bool,
        device: int,
    ):
        self.model = model
        self.static = frozenset(static)
        self.mutated = tuple(mutated)
        self.constants = frozenset(map(_storage, constants))
        self.is_backward = is_backward
        self.device = device
        self.sizes: dict[tuple[int, ...], _Sizes] = {}

    def __call__(self, inputs: list[Any]) -> Any:
        if is_current_stream_capturing():
            return self.model(inputs)  # becomes part of that graph
        key = tuple(value for value in inputs if isinstance(value, int))
        sizes = self.sizes.get(key)
        if sizes is None:
            sizes = self.sizes[key] = _Sizes()
            if len(self.sizes) > MAX_SIZES:
                self._skip(sizes, f"more than {MAX_SIZES} different sizes")
        for recording in sizes.recordings:
            if recording.fixed.match(inputs):
                results = recording.run(inputs)
                if results is not None:
                    return results
                sizes.kept.update(recording.held())
                sizes.recordings = [other for other in sizes.recordings if other is not recording]
                break
        if sizes.unsuitable:
            return self.model(inputs)
        if sizes.addresses is None:
            sizes.addresses = self._addresses(inputs)
            return self.model(inputs)
        try:
            recording = self._record(inputs, sizes)
        except (Unsuitable, RuntimeError) as error:
            self._skip(sizes, str(error).split("\n")[0])
            return self.model(inputs)
        # What copies least is tried first.
        sizes.recordings = sorted([*sizes.recordings, recording], key=lambda one: len(one.copied))
        results = recording.run(inputs)
        return self.model(inputs) if results is None else results

    def _addresses(self, inputs: list[Any]) -> dict[int, int]:
        return {i: inputs[i].data_ptr() for i in self.static if isinstance(inputs[i], torch.Tensor)}

    def _record(self, inputs: list[Any], sizes: _Sizes) -> Recording:
        if sizes.made >= MAX_RECORDINGS:
            raise Unsuitable(f"inputs and outputs that called for more than {MAX_RECORDINGS} recordings")
        sizes.made += 1
        before, sizes.addresses = sizes.addresses or {}, self._addresses(inputs)
        fixed = set()
        for i, value in enumerate(inputs):
            if not isinstance(value, torch.Tensor):
                continue
            if value.device != torch.device(DEVICE_TYPE, self.device):
                raise Unsuitable(f"an input on {value.device}")
            stays = i in self.static and (not self.is_backward or before.get(i) == value.data_ptr())
            if stays or _C._GraphOutputs.is_lent(value):
                fixed.add(i)
        written = sum(i not in fixed for i in self.mutated)
        if written:
            raise Unsuitable(f"mutated inputs ({written} instances)")
        recording = Recording(self.model, inputs, fixed, sizes.kept, self.constants, self.device)
        counters["inductor"]["simdev_graphs_recorded"] += 1
        return recording

    @staticmethod
    def _skip(sizes: _Sizes, reason: str) -> None:
        sizes.unsuitable = True
        log_cudagraph_skip_and_bump_counter(f"skipping cudagraphs due to {reason}")


def reason_against(devices: dict[torch.device, torch.fx.Node]) -> str | None:
    """Returns why a graph with nodes on these devices cannot be recorded, or None."""
    found = [device for device in devices if device.type != "meta"]
    for device in found:
        if device.type == "cpu":
            return f"cpu device ({devices[device].name})"
    return f"multiple devices: {', '.join(map(repr, found))}" if len(found) > 1 else None


def record(compiled_graph: Any, constants: dict[str, Any]) -> None:
    """Makes a `CompiledFxGraph` on simdev record and replay itself, unless a reason against it is known."""
    reason = compiled_graph.disabled_cudagraphs_reason
    info = compiled_graph.cudagraph_info
    if reason is None and info is not None and info.cudagraph_fail_reasons:
        reason = f"{info.cudagraph_fail_reasons}"
    if reason is not None:
        log_cudagraph_skip_and_bump_counter(f"skipping cudagraphs due to {reason}")
        return
    compiled_graph.current_callable = RecordedFunction(
        compiled_graph.current_callable,
        compiled_graph.fx_kwargs["static_input_idxs"] or (),
        compiled_graph.mutated_input_idxs,
        [value for value in constants.values() if isinstance(value, torch.Tensor)],
        compiled_graph.fx_kwargs["is_backward"],
        next(iter(compiled_graph.device_idxs)),
    )
