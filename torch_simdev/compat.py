"""Private PyTorch APIs and version differences (2.11 to 2.14), each with the reason why it is used.

Lives here: the check of the version, and the registration as `torch.simdev`.  Nothing else in the package
touches what PyTorch does not document.
"""

from __future__ import annotations

import atexit
import sys
import time
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch.multiprocessing.reductions import reduce_storage

BACKEND = "simdev"


def check_torch() -> None:
    """Refuses to load the extension module into a PyTorch that it would crash or misbehave in.

    Raises ImportError for another minor version than the one built against, since PyTorch's binary interface
    changes with it, and where another package has taken PyTorch's one slot for out-of-tree devices.
    """
    try:
        from ._build_info import TORCH_VERSION
    except ImportError:
        raise ImportError(
            "torch_simdev is not built. Run `make build`, or install it with "
            "`pip install --no-build-isolation .`"
        ) from None
    running = torch.__version__.split("+")[0]
    if running.split(".")[:2] != TORCH_VERSION.split(".")[:2]:
        raise ImportError(
            f"torch_simdev was built against torch {TORCH_VERSION} and cannot be used with torch {running}. "
            "Rebuild it, or install the matching torch."
        )
    # Private: there is no public way to ask who holds the PrivateUse1 key.
    taken_by = torch._C._get_privateuse1_backend_name()
    if taken_by not in ("privateuseone", BACKEND):
        raise ImportError(
            f"torch_simdev cannot be loaded: PyTorch has room for one out-of-tree device, and '{taken_by}' "
            "was registered before. Set TORCH_DEVICE_BACKEND_AUTOLOAD=0 to choose by import."
        )


def register(module_name: str) -> None:
    """Names the PrivateUse1 device "simdev", makes the package `torch.simdev`, and generates the methods of
    Tensor, Module, Storage and PackedSequence.

    Each step is left out if it was done before: PyTorch's functions raise on a second call, and the package
    may be imported again after its removal from sys.modules.
    """
    module = sys.modules[module_name]
    # Private: the public rename wraps DeviceType.__repr__ once more at each call.  The name that C++ knows says
    # nothing: our library has given it, for programs without Python.
    if torch.utils.backend_registration._privateuse1_backend_name != BACKEND:
        torch.utils.rename_privateuse1_backend(BACKEND)
    if not hasattr(torch, BACKEND):
        torch._register_device_module(BACKEND, module)
    setattr(torch, BACKEND, module)
    # `import torch.simdev.random` must give these modules, not second copies of them.
    for name, loaded in list(sys.modules.items()):
        if loaded is not None and (name == module_name or name.startswith(module_name + ".")):
            sys.modules[f"torch.{BACKEND}{name[len(module_name) :]}"] = loaded
    atexit.register(_let_backward_threads_finish)
    # Private: reduce_storage.  Without this, sending a tensor to another process fails in the host's shared-memory code
    # with "_share_fd_: only available on CPU".
    ForkingPickler.register(torch.UntypedStorage, _reduce_storage)
    # Private in effect: the method's list of devices knows out-of-tree ones by the key's original name only, so
    # torch.from_dlpack() of a renamed device's tensor raises.  Tensors of other devices take PyTorch's own method.
    if getattr(torch.Tensor.__dlpack_device__, "__module__", None) != __name__:
        torch.Tensor.__dlpack_device__ = _dlpack_device
    # A gap in PyTorch: the method writes through the data pointer of any device's storage, which ends the process.
    torch.UntypedStorage.byteswap = _byteswap
    if torch.version.cuda is not None and torch.autograd._engine_run_backward is _engine_run_backward:
        torch.autograd._engine_run_backward = _run_backward
    if not hasattr(torch.Tensor, BACKEND):
        torch.utils.generate_methods_for_privateuse1_backend(
            for_tensor=True, for_module=True, for_packed_sequence=True, for_storage=True
        )


_engine_run_backward = torch.autograd._engine_run_backward


def _run_backward(t_outputs: Any, *args: Any, **kwargs: Any) -> Any:
    """Private: what torch.autograd's functions call.  Tells the engine which of two accelerators a backward pass is
    about, while it has no node yet to tell it (csrc/runtime/two_accelerators.cpp)."""
    from . import _C

    previous = _C._set_backward_accelerator(any(getattr(output, "is_cuda", False) for output in t_outputs))
    try:
        return _engine_run_backward(t_outputs, *args, **kwargs)
    finally:
        _C._set_backward_accelerator(previous)


def _let_backward_threads_finish() -> None:
    """From 2.12 on, autograd's thread for a device still takes the GIL after backward() has returned, to drop what the
    pass has used.  When the interpreter is shutting down by then, the thread is ended inside of a destructor, and the
    process aborts.  At exit, hand it the GIL for as long as it needs.
    """
    from . import _C

    if _C._is_initialized():
        time.sleep(0.02)


_torch_dlpack_device = torch.Tensor.__dlpack_device__


def _dlpack_device(self: torch.Tensor) -> tuple[Any, int]:
    if type(self) in (torch.Tensor, torch.nn.Parameter) and self.device.type == BACKEND:
        from torch.utils.dlpack import DLDeviceType

        return DLDeviceType.kDLExtDev, self.device.index
    return _torch_dlpack_device(self)


_torch_byteswap = torch.storage._StorageBase.byteswap


def _byteswap(self: torch.UntypedStorage, dtype: torch.dtype) -> None:
    if self.device.type != BACKEND:
        return _torch_byteswap(self, dtype)
    size = dtype.itemsize // 2 if dtype.is_complex else dtype.itemsize
    if self.nbytes() % size != 0:
        raise RuntimeError(f"the length of data is not a multiple of {size}")
    elements = torch.empty(0, dtype=torch.uint8, device=self.device).set_(self).view(-1, size)
    elements.copy_(elements.flip(1))


def _reduce_storage(storage: torch.UntypedStorage) -> Any:
    if storage.device.type == BACKEND:
        raise NotImplementedError(
            "simdev tensors cannot be shared between processes: device memory belongs to the process that "
            "allocated it. Send tensor.cpu() instead."
        )
    return reduce_storage(storage)


def augment_memory_snapshot(snapshot: dict[str, Any]) -> dict[str, Any]:
    """Adds the original source to a memory snapshot's frames of code that FX generated.  Private: what
    torch.cuda.memory._snapshot does on request has no public name."""
    from torch._utils import _augment_memory_snapshot_stack_traces

    return _augment_memory_snapshot_stack_traces(snapshot)
