"""Where simdev is another device of PyTorch (the CUDA driver): its tensors, and what only its own module offers."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch

from . import _C
from ._utils import DEVICE_TYPE

_Function = TypeVar("_Function", bound=Callable[..., Any])


def to_backing(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the tensor of the device underneath that is `tensor`: the same memory, nothing is copied.

    With the CUDA driver that is a CUDA tensor.  It works in full as such, in the order of the current stream, which
    `torch.cuda` and `torch.simdev` share.  Writes to either are seen in the other, and both keep the memory alive.
    Resizing one of the two parts them.

    Raises ValueError for a tensor of another device, RuntimeError if it requires gradients, which do not flow
    between the two, and NotImplementedError for the simulated chip, whose memory only its kernels can reach
    (`tensor.cpu()` copies).
    """
    if tensor.device.type != DEVICE_TYPE:
        raise ValueError(f"Expected a simdev tensor, but got one of {tensor.device}")
    return _C._to_backing(tensor)


def from_backing(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the simdev tensor that is `tensor`, a tensor of the device underneath; the inverse of `to_backing`.

    With the CUDA driver it takes CUDA tensors, and `cuda:1` becomes `simdev:1`.

    Raises ValueError for a tensor of another device, RuntimeError if it requires gradients, which do not flow
    between the two, and NotImplementedError for the simulated chip.
    """
    converted = _C._from_backing(tensor)
    if converted.device.type != DEVICE_TYPE:
        raise ValueError(f"Expected a tensor of {_C._delegate_type()}, but got one of {tensor.device}")
    return converted


def _cuda_driver_version() -> int | None:
    """The CUDA version that the installed NVIDIA driver goes up to, 1000 * major + 10 * minor; None without a driver.

    Asks the driver's library itself, which does not start CUDA and so leaves later forks alone.
    """
    version = ctypes.c_int()
    try:
        known = ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version)) == 0
    except (OSError, AttributeError):
        return None
    return version.value if known else None


def cuda_unavailable_reason() -> str | None:
    """Returns why the CUDA driver cannot be had in this process, as one sentence, or None if it can.

    Does not start CUDA.  Called when the driver is chosen.
    """
    if not torch.backends.cuda.is_built():
        return f"this PyTorch ({torch.__version__}) was built without CUDA; install a CUDA build of it."
    if torch.cuda.device_count() == 0:
        return "no NVIDIA GPU is visible to this process (see nvidia-smi, and CUDA_VISIBLE_DEVICES)."
    driver, needed = _cuda_driver_version(), torch.version.cuda
    # A driver runs programs of its own CUDA major version, also of a later minor one.
    if driver is not None and needed is not None and driver // 1000 < int(needed.split(".")[0]):
        return (
            f"the NVIDIA driver is too old: it goes up to CUDA {driver // 1000}.{driver % 1000 // 10}, and "
            f"this PyTorch needs {needed}; update the driver, or install a PyTorch for that CUDA."
        )
    return None


def runs_on_cuda() -> bool:
    """Returns whether the driver is CUDA's.  Chooses the driver, and starts no device."""
    return _C._delegate_type() == "cuda"


def _for_cuda(argument: Any) -> Any:
    if isinstance(argument, str):
        argument = torch.device(argument) if argument.startswith(DEVICE_TYPE) else argument
    if isinstance(argument, torch.device) and argument.type == DEVICE_TYPE:
        return torch.device("cuda") if argument.index is None else torch.device("cuda", argument.index)
    if isinstance(argument, torch.Stream) and argument.device.type == DEVICE_TYPE:
        return _C._stream_handle((argument.stream_id, argument.device_index, argument.device_type))
    return argument


def cudas_own(function: _Function) -> _Function:
    """Decorator: with the CUDA driver, torch.cuda's function of the same name and signature does it."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not runs_on_cuda():
            return function(*args, **kwargs)
        return getattr(torch.cuda.memory, function.__name__)(
            *map(_for_cuda, args), **{name: _for_cuda(value) for name, value in kwargs.items()}
        )

    return cast(_Function, call)
