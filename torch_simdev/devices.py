"""Devices: counting, choosing, describing and synchronising them (streams and memory: in their modules)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from . import _C
from ._utils import _get_device_index


def is_available() -> bool:
    """Returns whether at least one device can be used.  Never raises and initialises nothing."""
    return _C._device_count() > 0


def device_count() -> int:
    """Returns the number of devices, 0 on any error (with a warning).  Initialises nothing."""
    return _C._device_count()


def is_initialized() -> bool:
    """Returns whether the device runtime of this process was started."""
    return _C._is_initialized()


def init() -> None:
    """Starts the device runtime, which the first use of a device does otherwise.

    Raises RuntimeError without a device, and in a process forked after initialisation.
    """
    _C._init()


_lazy_init = init


def _lazy_call(callable: Callable[[], object], **kwargs: object) -> None:
    """Calls `callable` at once: unlike CUDA's, generators live on the host and need no initialised device."""
    callable()


def _is_in_bad_fork() -> bool:
    """Returns whether this process was forked after its parent had initialised simdev; nothing works then."""
    return _C._is_in_bad_fork()


def driver() -> str:
    """Returns the name of the driver that serves the devices, as SIMDEV_DRIVER spells it ("simulator", ...).

    Raises RuntimeError if SIMDEV_DRIVER names none that can be used.
    """
    return _C._driver_name()


def current_device() -> int:
    """Returns the index of the calling thread's current device."""
    return _C._current_device()


def set_device(device: Any) -> None:
    """Makes `device` the calling thread's current device; a negative index changes nothing.

    Prefer the context manager `torch.simdev.device`.  Raises torch.AcceleratorError, a RuntimeError, for an
    index that does not exist.
    """
    index = _get_device_index(device)
    if index >= 0:
        _C._set_device(index)


def _exchange_device(device: int) -> int:
    """Makes `device` current and returns the previous one; for -1 it does neither."""
    return _C._exchange_device(device) if device >= 0 else -1


def _maybe_exchange_device(device: int) -> int:
    """As `_exchange_device`, under the name that PyTorch looks up."""
    return _exchange_device(device)


class device:
    """Context manager that makes a device current and restores the previous one, also after an exception.

    Arguments:
        device: index, string or torch.device.  A negative index changes nothing.
    """

    def __init__(self, device: Any):
        self.idx = _get_device_index(device, optional=True)
        self.prev_idx = -1

    def __enter__(self) -> None:
        self.prev_idx = _exchange_device(self.idx)

    def __exit__(self, *exc_info: object) -> None:
        _exchange_device(self.prev_idx)


class device_of(device):
    """Context manager that makes the device of a tensor or storage current, if that is a simdev device."""

    def __init__(self, obj: torch.Tensor | torch.UntypedStorage):
        super().__init__(obj.get_device() if obj.device.type == "simdev" else -1)


def get_device_properties(device: Any = None) -> _C._SimdevDeviceProperties:
    """Returns the properties of a device (default: the current one).

    The result has `name`, `driver`, `uuid`, `major` and `minor` (compute capability), `total_memory` in bytes and
    `multi_processor_count` (compute threads of the simulated chip).  Raises torch.AcceleratorError for a bad index.
    """
    return _C._device_properties(_get_device_index(device, optional=True))


def get_device_name(device: Any = None) -> str:
    """Returns the name of a device (default: the current one)."""
    return get_device_properties(device).name


def get_device_capability(device: Any = None) -> tuple[int, int]:
    """Returns the compute capability of a device (default: the current one) as (major, minor)."""
    properties = get_device_properties(device)
    return properties.major, properties.minor


def can_device_access_peer(device: Any, peer_device: Any) -> bool:
    """Returns whether kernels of `device` could use memory of `peer_device`.

    Raises torch.AcceleratorError for an index that does not exist.
    """
    return _C._can_access_peer(
        _get_device_index(device, optional=True), _get_device_index(peer_device, optional=True)
    )


def synchronize(device: Any = None) -> None:
    """Waits until all streams of a device (default: the current one) are idle.

    Raises torch.AcceleratorError with the first error that any of their kernels met.
    """
    _C._synchronize(_get_device_index(device, optional=True))
