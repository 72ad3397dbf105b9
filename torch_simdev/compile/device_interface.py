"""simdev as Dynamo and Inductor see a device: current device, streams, events, properties.

Everything is what `torch.simdev` does under the names that Dynamo calls.  Imported only after Dynamo's own
interface module.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._dynamo.device_interface import (
    DeviceInterface,
    caching_worker_current_devices,
    caching_worker_device_properties,
    register_interface_for_device,
)

from .. import _C, amp, devices, memory, streams
from .._utils import DEVICE_TYPE, _get_device_index


class SimdevInterface(DeviceInterface):
    """The interface registered for "simdev" and each "simdev:<index>"."""

    device = devices.device
    Event = streams.Event
    Stream = streams.Stream

    class Worker:
        """For processes that compile: what the parent has recorded stands in for the device."""

        @staticmethod
        def set_device(device: int) -> None:
            caching_worker_current_devices[DEVICE_TYPE] = device

        @staticmethod
        def current_device() -> int:
            return caching_worker_current_devices.get(DEVICE_TYPE, devices.current_device())

        @staticmethod
        def get_device_properties(device: Any = None) -> Any:
            if DEVICE_TYPE not in caching_worker_device_properties:
                caching_worker_device_properties[DEVICE_TYPE] = [
                    devices.get_device_properties(i) for i in range(devices.device_count())
                ]
            index = (
                SimdevInterface.Worker.current_device()
                if device is None
                else _get_device_index(device, optional=True)
            )
            return caching_worker_device_properties[DEVICE_TYPE][index]

    current_device = staticmethod(devices.current_device)
    set_device = staticmethod(devices.set_device)
    exchange_device = staticmethod(devices._exchange_device)
    maybe_exchange_device = staticmethod(devices._maybe_exchange_device)
    device_count = staticmethod(devices.device_count)
    is_available = staticmethod(devices.is_available)
    synchronize = staticmethod(devices.synchronize)
    stream = staticmethod(streams.stream)
    current_stream = staticmethod(streams.current_stream)
    set_stream = staticmethod(streams.set_stream)
    _set_stream_by_id = staticmethod(streams._set_stream_by_id)
    get_raw_stream = staticmethod(_C._current_raw_stream)
    memory_allocated = staticmethod(memory.memory_allocated)

    @staticmethod
    def get_compute_capability(device: Any = None) -> str:
        """Part of kernel cache keys, hence a string: the driver beside the numbers."""
        properties = SimdevInterface.Worker.get_device_properties(device)
        return f"{properties.driver}-{properties.major}.{properties.minor}"

    @staticmethod
    def is_bf16_supported(including_emulation: bool = False) -> bool:
        return amp.is_bf16_supported()

    @staticmethod
    def is_triton_capable(device: Any = None) -> bool:
        return False

    @staticmethod
    def raise_if_triton_unavailable(device: Any = None) -> None:
        raise RuntimeError("simdev kernels are C++; it does not use Triton")


def register() -> None:
    """Registers the interface with Dynamo."""
    for name in (DEVICE_TYPE, *(f"{DEVICE_TYPE}:{i}" for i in range(torch.simdev.device_count()))):
        register_interface_for_device(name, SimdevInterface)
