"""The one translation of the ways to name a device into an index.

`torch.load` looks `_utils._get_device_index` up on the device module, hence the name of this one.
"""

from __future__ import annotations

import operator
from typing import Any

import torch

from . import _C

DEVICE_TYPE = "simdev"


def _get_device_index(device: Any, optional: bool = False, allow_cpu: bool = False) -> int:
    """Returns the index of `device`: an int, a string, a torch.device or a `torch.simdev.device`.

    `None`, and a device without index, stand for the current device where `optional` is true.  An int is
    returned as it is, negative ones included.  With `allow_cpu`, the CPU gives -1.

    Raises ValueError for another type of device, and for a missing index where `optional` is false.
    """
    if isinstance(device, str):
        device = torch.device(device)
    if isinstance(device, torch.device):
        if allow_cpu and device.type == "cpu":
            return -1
        if device.type != DEVICE_TYPE:
            wanted = "simdev or cpu" if allow_cpu else "simdev"
            raise ValueError(f"Expected a {wanted} device, but got: {device}")
        index = device.index
    elif device is None:
        index = None
    elif hasattr(device, "idx"):  # the context manager torch.simdev.device
        index = device.idx
    else:
        index = operator.index(device)
    if index is None:
        if not optional:
            raise ValueError(
                f"Expected a torch.device with a specified index or an integer, but got: {device}"
            )
        return _C._current_device()
    return index
