"""Device and pinned host memory: statistics, caches, limits, history and pools, as in torch.cuda.memory.

Lives here: the Python side only.  What can be asked of any accelerator goes through torch.accelerator.  A
`device` is an index, a string, a torch.device, or None for the current device; sizes are bytes.
"""

from __future__ import annotations

import collections
import contextlib
import pickle
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch

from . import _C, compat
from ._utils import _get_device_index
from .backing import cudas_own, runs_on_cuda
from .devices import init, is_initialized
from .streams import _as_tuple, current_stream

__all__ = [
    "MemPool",
    "caching_allocator_alloc",
    "caching_allocator_delete",
    "empty_cache",
    "empty_host_cache",
    "get_per_process_memory_fraction",
    "host_memory_stats",
    "host_memory_stats_as_nested_dict",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "memory_stats_as_nested_dict",
    "memory_summary",
    "reset_accumulated_host_memory_stats",
    "reset_accumulated_memory_stats",
    "reset_peak_host_memory_stats",
    "reset_peak_memory_stats",
    "set_per_process_memory_fraction",
    "use_mem_pool",
]


# --- The device allocator -------------------------------------------------------------------------------


@cudas_own
def caching_allocator_alloc(size: int, device: Any = None, stream: torch.Stream | int | None = None) -> int:
    """Allocates device memory for another library and returns its address; 0 for a size of 0.

    Arguments:
        size: bytes.
        device: where (default: the current device).
        stream: the stream that uses it, or its native handle (default: the device's current stream).

    Free it with `caching_allocator_delete`.  Raises torch.OutOfMemoryError, and TypeError for another kind of
    stream or a negative size.
    """
    index = _get_device_index(device, optional=True)
    if stream is None:
        stream = current_stream(index)
    if isinstance(stream, torch.Stream):
        stream = _C._stream_handle(_as_tuple(stream))
    if not isinstance(stream, int):
        raise TypeError(
            "Invalid type for stream argument, must be `torch.simdev.Stream` or `int` representing a pointer "
            f"to an existing stream, but got {type(stream).__name__}"
        )
    return _C._raw_alloc(size, index, stream)


@cudas_own
def caching_allocator_delete(mem_ptr: int) -> None:
    """Frees what `caching_allocator_alloc` returned.  Raises RuntimeError for any other address but 0."""
    _C._raw_delete(mem_ptr)


@cudas_own
def set_per_process_memory_fraction(fraction: float, device: Any = None) -> None:
    """Limits what the allocator may reserve to a fraction (0 to 1) of the device's capacity.

    Allocations beyond that raise torch.OutOfMemoryError.  Raises TypeError if `fraction` is not a float, and
    ValueError if it is out of range.
    """
    if not isinstance(fraction, float):
        raise TypeError("Invalid type for fraction argument, must be `float`")
    _C._set_memory_fraction(fraction, _get_device_index(device, optional=True))


@cudas_own
def get_per_process_memory_fraction(device: Any = None) -> float:
    """Returns the fraction of the device's capacity that the allocator may reserve; 1.0 unless it was set."""
    return _C._get_memory_fraction(_get_device_index(device, optional=True))


def empty_cache() -> None:
    """Gives the allocators' unused device memory back to the driver; before the first use there is none.

    Waits for work that still uses freed memory, and raises its error if it failed.
    """
    torch.accelerator.empty_cache()


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """Returns the bytes of the device that are free, seen from the driver, and its capacity.

    Memory that the allocator keeps for reuse is not free in this sense.
    """
    return torch.accelerator.get_memory_info(_get_device_index(device, optional=True))


def memory_stats(device: Any = None) -> collections.OrderedDict[str, Any]:
    """Returns the allocator's statistics by name; empty before the first use of a device.

    - `"allocation.{all,large_pool,small_pool}.{current,peak,allocated,freed}"`: allocations that are alive.
    - `"allocated_bytes..."`: their sizes, rounded; `"requested_bytes..."`: their sizes as asked for.
    - `"segment..."`, `"reserved_bytes..."`: what the driver was asked for.
    - `"active..."`, `"active_bytes..."`: blocks in use, or freed while another stream still used them.
    - `"inactive_split..."`, `"inactive_split_bytes..."`: free blocks that cannot go back to the driver.
    - `"oversize_allocations.{current,...}"`, `"oversize_segments..."`: those above `"max_split_size"`.
    - `"num_alloc_retries"`: times the cache was flushed because the driver had no more; `"num_ooms"`: times
      that did not help; `"num_sync_all_streams"`: waits for other streams' use of freed memory;
      `"num_device_alloc"`, `"num_device_free"`: calls of the driver.
    - `"reserved_bytes_by_private_pools.{0_1}..."`: by `MemPool.id`.

    `current` is now, `peak` the most since `reset_peak_memory_stats`, `allocated` and `freed` the sums of all
    increases and decreases since `reset_accumulated_memory_stats`.  The small pool serves up to 1 MiB.
    """
    return _flatten(memory_stats_as_nested_dict(device))


def memory_stats_as_nested_dict(device: Any = None) -> dict[str, Any]:
    """Returns `memory_stats` as nested dictionaries: `["allocated_bytes"]["all"]["peak"]`."""
    return _C._memory_stats(_get_device_index(device, optional=True)) if is_initialized() else {}


def reset_accumulated_memory_stats(device: Any = None) -> None:
    """Sets the `allocated` and `freed` statistics, and the counts of retries and OOM errors, to zero."""
    torch.accelerator.reset_accumulated_memory_stats(_get_device_index(device, optional=True))


def reset_peak_memory_stats(device: Any = None) -> None:
    """Sets the `peak` statistics to the current values."""
    torch.accelerator.reset_peak_memory_stats(_get_device_index(device, optional=True))


def memory_allocated(device: Any = None) -> int:
    """Returns the bytes that tensors occupy, each rounded up to a multiple of 512."""
    return memory_stats(device).get("allocated_bytes.all.current", 0)


def max_memory_allocated(device: Any = None) -> int:
    """Returns the most bytes that tensors occupied since the start or `reset_peak_memory_stats`."""
    return memory_stats(device).get("allocated_bytes.all.peak", 0)


def memory_reserved(device: Any = None) -> int:
    """Returns the bytes that the allocator holds from the driver, used or not."""
    return memory_stats(device).get("reserved_bytes.all.current", 0)


def max_memory_reserved(device: Any = None) -> int:
    """Returns the most bytes that the allocator held since the start or `reset_peak_memory_stats`."""
    return memory_stats(device).get("reserved_bytes.all.peak", 0)


# --- Pinned host memory ---------------------------------------------------------------------------------


def empty_host_cache() -> None:
    """Gives unused pinned host memory back to the driver."""
    torch.accelerator.empty_host_cache()


def host_memory_stats() -> collections.OrderedDict[str, Any]:
    """Returns the statistics of the pinned host allocator by name; empty before the first use of a device.

    - `"allocations.{current,peak,allocated,freed}"`, `"allocated_bytes..."`: blocks that the allocator holds.
    - `"active_requests..."`, `"active_bytes..."`: blocks in use, or freed while a copy still used them.
    - `"num_host_alloc"`, `"num_host_free"`: calls of the driver.
    - `"host_alloc_time.{total,max,min,count,avg}"`, `"host_free_time..."`: their times in microseconds.

    Sizes are rounded up to powers of two.  Peaks are sums of the peaks by size, so at least the true ones.
    """
    return _flatten(host_memory_stats_as_nested_dict())


def host_memory_stats_as_nested_dict() -> dict[str, Any]:
    """Returns `host_memory_stats` as nested dictionaries: `["active_bytes"]["peak"]`."""
    return _C._host_memory_stats() if is_initialized() else {}


def reset_accumulated_host_memory_stats() -> None:
    """Sets the sums (`allocated`, `freed`, `total`, `count`) of the pinned host allocator to zero."""
    _C._reset_accumulated_host_memory_stats()


def reset_peak_host_memory_stats() -> None:
    """Sets the `peak` statistics of the pinned host allocator to the current values."""
    _C._reset_peak_host_memory_stats()


# --- Pictures of the memory -----------------------------------------------------------------------------


@cudas_own
def memory_snapshot(
    mempool_id: tuple[int, int] | None = None, include_traces: bool = True
) -> list[dict[str, Any]]:
    """Returns all segments of all devices with their blocks, in the format of torch.cuda.memory_snapshot.

    Arguments:
        mempool_id: only the segments of this pool ((0, 0) is the default pool).
        include_traces: accepted for CUDA's sake; segments have no traces.
    """
    return _C._memory_snapshot(mempool_id, False)["segments"] if is_initialized() else []


_SUMMARY_ROWS = [
    ("allocated_bytes", "Allocated memory", True),
    ("active_bytes", "Active memory", True),
    ("requested_bytes", "Requested memory", True),
    ("reserved_bytes", "Reserved memory", True),
    ("inactive_split_bytes", "Non-releasable memory", True),
    ("allocation", "Allocations", False),
    ("active", "Active allocs", False),
    ("segment", "Reserved segments", False),
    ("inactive_split", "Non-releasable allocs", False),
]
_SUMMARY_COLUMNS = [
    ("Cur Usage", "current"),
    ("Peak Usage", "peak"),
    ("Tot Alloc", "allocated"),
    ("Tot Freed", "freed"),
]


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    """Returns the allocator's statistics as a table to print.

    Arguments:
        device: which (default: the current device).
        abbreviated: leave out the lines by pool.
    """
    init()
    index = _get_device_index(device, optional=True)
    stats = memory_stats(index)
    width = 75

    def row(name: str, prefix: str, is_size: bool) -> str:
        cells = [_scaled(stats[f"{prefix}.{key}"], is_size) for _, key in _SUMMARY_COLUMNS]
        return f" {name:<21} |" + "|".join(f" {cell} " for cell in cells)

    retries = f"{'allocation retries: ' + str(stats['num_alloc_retries']):>34}"
    lines = [
        "=" * width,
        f"{'PyTorch simdev memory summary, device ID ' + str(index):^{width}}",
        "-" * width,
        f"{'OOMs: ' + str(stats['num_ooms']):^37}|{retries:<37}",
        "=" * width,
        f" {'Metric':^21} |" + "|".join(f" {title:^10} " for title, _ in _SUMMARY_COLUMNS),
    ]
    for key, name, is_size in _SUMMARY_ROWS:
        lines += ["-" * width, row(name, f"{key}.all", is_size)]
        if not abbreviated:
            lines.append(row("      from large pool", f"{key}.large_pool", is_size))
            lines.append(row("      from small pool", f"{key}.small_pool", is_size))
    for key, name in [
        ("oversize_allocations", "Oversize allocations"),
        ("oversize_segments", "Oversize segments"),
    ]:
        lines += ["-" * width, row(name, key, False)]
    lines.append("=" * width)
    return "".join(f"|{line:<{width}}|\n" for line in lines)


def _scaled(value: int, is_size: bool) -> str:
    """A number in ten characters, of which the last four are its unit."""
    base, units = (1024, ["B", "KiB", "MiB", "GiB", "TiB"]) if is_size else (1000, ["", "K", "M", "G"])
    unit = 0
    while value >= 1000 * base and unit + 1 < len(units):
        value //= base
        unit += 1
    return f"{value:6d} {units[unit]:<3}"


@cudas_own
def _record_memory_history(
    enabled: str | None = "all",
    context: str | None = "all",
    stacks: str = "all",
    max_entries: int = sys.maxsize,
    device: Any = None,
    clear_history: bool = False,
    compile_context: bool = False,
    global_record_annotations: bool = False,
    skip_actions: list[str] | None = None,
) -> None:
    """Starts or stops recording what allocates and frees memory, for `_snapshot`; as torch.cuda.memory.

    Arguments:
        enabled: "all" (a history of events), "state" (only where live memory came from), or None to stop.
        context: with which events to keep stack traces: "all", "alloc", "state" (of live memory), or None.
        stacks: "python" frames only, or "all" (slower; C++ as well).
        max_entries: events kept per device; older ones are dropped.
        device: accepted for CUDA's sake; all devices record.
        clear_history: forget what was recorded so far.
        skip_actions: events not to record: "alloc", "free_requested", "free_completed", "segment_alloc",
            "segment_free", "oom", "snapshot".

    Raises ValueError for another value, and NotImplementedError for `compile_context` and `global_record_annotations`.
    """
    if compile_context or global_record_annotations:
        raise NotImplementedError("simdev records neither compile contexts nor annotations")
    _C._record_memory_history(enabled, context, stacks, max_entries, clear_history, skip_actions or [])


@cudas_own
def _snapshot(device: Any = None, augment_with_fx_traces: bool = False) -> dict[str, Any]:
    """Returns the state of all device memory and the recorded history, as torch.cuda.memory._snapshot does.

    Arguments:
        device: accepted for CUDA's sake; all devices are in it.
        augment_with_fx_traces: add the original source to frames of code generated by FX.
    """
    snapshot = _C._memory_snapshot(None, True)
    return compat.augment_memory_snapshot(snapshot) if augment_with_fx_traces else snapshot


@cudas_own
def _dump_snapshot(filename: str = "dump_snapshot.pickle", augment_with_fx_traces: bool = False) -> None:
    """Writes `_snapshot` to a file that https://pytorch.org/memory_viz and torch.cuda._memory_viz open."""
    with open(filename, "wb") as file:
        pickle.dump(_snapshot(augment_with_fx_traces=augment_with_fx_traces), file)


def _allocation_traceback(data_ptr: int) -> list[dict[str, Any]] | None:
    """Returns the stack that allocated the live memory at `data_ptr`, or None if that was not recorded.

    Arguments:
        data_ptr: the start of the allocation, as `tensor.untyped_storage().data_ptr()` returns it.
    """
    return _C._allocation_traceback(data_ptr)


def _attach_out_of_memory_observer(observer: Callable[[int, int, int, int], object]) -> None:
    """Calls `observer(device, bytes asked for, capacity, bytes free)` before each torch.OutOfMemoryError.

    It stays attached.  What it raises is printed and does not replace the error.
    """
    _C._attach_out_of_memory_observer(observer)


# --- Private pools --------------------------------------------------------------------------------------


class MemPool:
    """A pool of device memory of its own: nothing outside of `use_mem_pool` is allocated from it.

    Its memory returns to the driver at the first `empty_cache` after the pool and all tensors in it are gone.
    A pool belongs to the device that is current when it is made.
    """

    def __new__(cls) -> MemPool:
        """With the CUDA driver, a torch.cuda.MemPool."""
        return cast(MemPool, torch.cuda.MemPool()) if runs_on_cuda() else super().__new__(cls)

    def __init__(self) -> None:
        init()
        self.device = torch.device("simdev", _C._current_device())
        self._id = _C._new_pool_id()
        _C._retain_pool(self.device.index, self._id)
        weakref.finalize(self, _C._release_pool, self.device.index, self._id).atexit = False

    @property
    def id(self) -> tuple[int, int]:
        """The pool's id, as in `memory_snapshot` and in the segments' "segment_pool_id"."""
        return self._id

    def use_count(self) -> int:
        """Returns how many hold the pool: this object, and each `use_mem_pool` that is active."""
        return _C._pool_use_count(self.device.index, self._id)

    def snapshot(self, include_traces: bool = True) -> list[dict[str, Any]]:
        """Returns the pool's segments; see `memory_snapshot`."""
        return memory_snapshot(self._id, include_traces)


@contextlib.contextmanager
def use_mem_pool(pool: MemPool, device: Any = None) -> Iterator[None]:
    """Context manager in which allocations of the calling thread on a device come from `pool`.

    Arguments:
        pool: where from.
        device: whose allocations (default: the current device).

    Raises RuntimeError if the pool is in use so already.
    """
    index = _get_device_index(device, optional=True)
    if runs_on_cuda():
        with torch.cuda.use_mem_pool(pool, index):
            yield
        return
    _C._begin_allocate_current_thread_to_pool(index, pool.id)
    try:
        yield
    finally:
        _C._end_allocate_to_pool(index, pool.id)
        _C._release_pool(index, pool.id)


def _flatten(nested: dict[Any, Any], prefix: str = "") -> collections.OrderedDict[str, Any]:
    """One level of dictionary, sorted, with keys joined by dots; a pool's id (0, 1) becomes "0_1"."""
    flat: dict[str, Any] = {}
    for key, value in nested.items():
        name = prefix + ("_".join(map(str, key)) if isinstance(key, tuple) else key)
        if isinstance(value, dict):
            flat.update(_flatten(value, f"{name}."))
        else:
            flat[name] = value
    return collections.OrderedDict(sorted(flat.items()))
