"""Streams and events, with the signatures of torch.cuda.

Both extend PyTorch's own classes, so that they mix with and equal what `torch.accelerator` returns.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch

from . import _C
from ._utils import _get_device_index

_MAX_SLEEP_MS = 2000.0


def _as_tuple(stream: torch.Stream) -> tuple[int, int, int]:
    return stream.stream_id, stream.device_index, stream.device_type


class Stream(torch.Stream):
    """An in-order queue of work of one device; as a context manager, the current stream inside the block.

    Arguments:
        device: the device of the stream (default, or for a negative index: the current one).
        priority: smaller is more urgent; clamped to `priority_range()`.

    A stream comes from a pool of 32 per device and priority, as in torch.cuda: the 33rd is the first again.
    """

    def __new__(cls, device: Any = None, priority: int = 0, **kwargs: Any) -> Stream:
        if "stream_id" in kwargs and "device_index" in kwargs:
            kwargs.setdefault("device_type", int(torch._C._autograd.DeviceType.PrivateUse1))
            return super().__new__(cls, **kwargs)
        index = max(_get_device_index(device, optional=True), -1)
        if "stream_ptr" in kwargs:
            parts = _C._stream_from_external(kwargs.pop("stream_ptr"), index)
        else:
            parts = _C._stream_from_pool(index, priority)
        if kwargs:
            raise TypeError(f"Stream() got unexpected keyword arguments: {', '.join(kwargs)}")
        return _wrap(parts, cls)

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """Returns (least, greatest) priority; greatest is the smaller number, as in CUDA."""
        return _C._stream_priority_range()

    @property
    def priority(self) -> int:
        """The stream's priority; 0 for the default stream and for external streams."""
        return _C._stream_priority(_as_tuple(self))

    @property
    def simdev_stream(self) -> int:
        """The driver's handle (torch.cuda has `cuda_stream`); the same as `native_handle`."""
        return _C._stream_handle(_as_tuple(self))

    @property
    def _as_parameter_(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(self.simdev_stream)

    def wait_event(self, event: torch.Event) -> None:
        """Makes later work of this stream wait for `event`, of any device.  The host does not wait."""
        event.wait(self)

    def wait_stream(self, stream: torch.Stream) -> None:
        """Makes later work of this stream wait for what `stream` was given so far; the host goes on."""
        self.wait_event(stream.record_event())

    def record_event(self, event: torch.Event | None = None) -> torch.Event:
        """Records `event`, or a new one, in this stream and returns it."""
        if event is None:
            event = Event()
        event.record(self)
        return event

    def __repr__(self) -> str:
        return f"<torch.simdev.Stream device={self.device} stream_id={self.stream_id:#x}>"


def _wrap(parts: tuple[int, int, int], cls: type = Stream) -> Any:
    stream_id, device_index, device_type = parts
    return torch.Stream.__new__(cls, stream_id=stream_id, device_index=device_index, device_type=device_type)


class ExternalStream(Stream):
    """A stream that another library made with the chip's own SDK and keeps alive.

    Arguments:
        stream_ptr: the SDK's handle as an integer.
        device: the stream's device (default: the current one).

    Raises ValueError for a handle that cannot be an address.
    """

    def __new__(cls, stream_ptr: int, device: Any = None, **kwargs: Any) -> ExternalStream:
        return super().__new__(cls, device, stream_ptr=stream_ptr, **kwargs)


class Event(torch.Event):
    """A marker in a stream: for waiting on the device or on the host, and for timing.

    It is made at its first record and belongs to that stream's device from then on; streams of any device may
    wait for it.

    Arguments:
        enable_timing: whether `elapsed_time` may be used.
        blocking: accepted for CUDA's sake; waiting never spins here.
        interprocess: not supported.
        external: not supported.

    Raises NotImplementedError for an unsupported argument.
    """

    def __new__(
        cls,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        external: bool = False,
    ) -> Event:
        if interprocess or external:
            kind = "interprocess" if interprocess else "external"
            raise NotImplementedError(f"simdev does not support {kind} events")
        return super().__new__(cls, device=torch.device("simdev"), enable_timing=enable_timing)

    def record(self, stream: torch.Stream | None = None) -> None:
        """Records the event in `stream` (default: the current stream of the current device).

        Raises RuntimeError if it was recorded on another device before.
        """
        super().record(current_stream() if stream is None else stream)

    def wait(self, stream: torch.Stream | None = None) -> None:
        """Makes later work of `stream` (default: the current one) wait; a no-op before the first record."""
        super().wait(current_stream() if stream is None else stream)

    def elapsed_time(self, end_event: torch.Event) -> float:
        """Returns the milliseconds from this event to `end_event`, by the device's clock.

        Raises ValueError unless both have timing and were recorded, RuntimeError if one is not complete yet.
        """
        return _C._event_elapsed_time(self, end_event)

    def __repr__(self) -> str:
        return (
            f"<torch.simdev.Event {self.event_id:#x}>"
            if self.event_id
            else "<torch.simdev.Event uninitialized>"
        )


def current_stream(device: Any = None) -> Stream:
    """Returns the calling thread's current stream of a device (default: the current device)."""
    return _wrap(_C._current_stream(_get_device_index(device, optional=True)))


def default_stream(device: Any = None) -> Stream:
    """Returns the default stream of a device (default: the current device)."""
    return _wrap(_C._default_stream(_get_device_index(device, optional=True)))


def get_stream_from_external(data_ptr: int, device: Any = None) -> Stream:
    """Returns a stream over the SDK's handle `data_ptr`, kept alive by the caller; see `ExternalStream`."""
    return ExternalStream(data_ptr, device)


def set_stream(stream: torch.Stream | None) -> None:
    """Makes `stream` and its device current in the calling thread.  `None` changes nothing."""
    if stream is not None:
        _C._set_stream(_as_tuple(stream))


def _set_stream_by_id(stream_id: int, device_index: int, device_type: int) -> None:
    """As `set_stream`, from a stream's three numbers."""
    _C._set_stream((stream_id, device_index, device_type))


class StreamContext:
    """Context manager that makes a stream and its device current, and restores device and streams at its end.

    Arguments:
        stream: the stream; `None` changes nothing.
    """

    def __init__(self, stream: torch.Stream | None):
        self.stream = stream

    def __enter__(self) -> None:
        if self.stream is not None:
            self.src_prev_stream = current_stream()
            self.dst_prev_stream = current_stream(self.stream.device)
            set_stream(self.stream)

    def __exit__(self, *exc_info: object) -> None:
        if self.stream is not None:
            set_stream(self.dst_prev_stream)
            set_stream(self.src_prev_stream)


def stream(stream: torch.Stream | None) -> StreamContext:
    """Returns a context manager that makes `stream` current; see `StreamContext`."""
    return StreamContext(stream)


def _sleep(ms: float, stream: torch.Stream | None = None) -> None:
    """Keeps a stream (default: the current one) busy for `ms` milliseconds; the host does not wait.

    At most 2000 ms: torch.cuda._sleep takes clock cycles, and ported code that passes 50_000_000 of them must
    not hang for half a day.

    Raises ValueError for a negative or non-finite time.
    """
    if not 0 <= ms < float("inf"):
        raise ValueError(f"Expected a non-negative number of milliseconds, but got: {ms}")
    target = current_stream() if stream is None else stream
    _C._sleep(int(min(ms, _MAX_SLEEP_MS) * 1e6), _as_tuple(target))
