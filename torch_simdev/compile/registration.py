"""Registering the code generator with Inductor."""

from __future__ import annotations

import functools
import hashlib
from typing import Any

import torch
from torch._inductor.codegen import cpp_utils
from torch._inductor.codegen.common import (
    DeviceOpOverrides,
    get_device_op_overrides,
    register_backend_for_device,
    register_device_op_overrides,
)
from torch._inductor.codegen.wrapper_fxir import WrapperFxCodegen
from torch._inductor.custom_graph_pass import CustomGraphModulePass

from .. import devices
from .._utils import DEVICE_TYPE
from . import config, launch, lowering, patches
from .cpp_wrapper import SimdevCppWrapper
from .flex_attention import expand_training
from .scheduling import SimdevScheduling
from .wrapper import SimdevPythonWrapper


class SimdevOpOverrides(DeviceOpOverrides):
    """Snippets of Python, and of C++, that Inductor's wrappers write."""

    def import_get_raw_stream_as(self, name: str) -> str:
        return f"from torch_simdev._C import _current_raw_stream as {name}"

    def set_device(self, device_idx: int) -> str:
        return f"torch.simdev.set_device({device_idx})"

    def synchronize(self) -> str:
        return "torch.simdev.synchronize()"

    def device_guard(self, device_idx: int) -> str:
        return f"torch.simdev.device({device_idx})"

    def current_stream(self) -> str:
        return "torch.simdev.current_stream()"

    def current_device_idx_expr(self) -> str:
        return "torch.simdev.current_device()"

    def cpp_aoti_stream_guard(self) -> str:
        return "AOTISimdevStreamGuard"

    def cpp_aoti_device_guard(self) -> str:
        return "torch::stable::accelerator::DeviceGuard"

    def cpp_kernel_type(self) -> str:
        return "void*"


class GraphPass(CustomGraphModulePass):
    """Runs on each graph that Inductor compiles, after its own passes, and gives the key of our code generator.

    Inductor's caches of compiled graphs know its own sources and settings.  What they do not know is in `uuid`.
    """

    def __call__(self, gm: torch.fx.GraphModule) -> None:
        """Replaces the operators that nothing lowers for simdev."""
        expand_training(gm)

    def uuid(self) -> str:
        """Returns a hash of our sources, the devices and the compiler."""
        properties = [devices.get_device_properties(i) for i in range(devices.device_count())]
        parts = [
            launch.sources_digest(),
            launch.environment(),
            str([(p.driver, p.major, p.minor, p.multi_processor_count) for p in properties]),
        ]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()


@functools.cache
def register() -> None:
    """Registers everything that Inductor needs to compile for simdev.  A second call does nothing."""
    get_device_op_overrides("cpu")  # torch 2.11 loads its own only while nobody else has registered any
    register_device_op_overrides(DEVICE_TYPE, SimdevOpOverrides())
    cpp_utils.DEVICE_TO_ATEN[DEVICE_TYPE] = "at::kPrivateUse1"
    _register_graphsafe_rng()
    patches.apply()
    lowering.install()
    register_backend_for_device(
        DEVICE_TYPE,
        SimdevScheduling,
        SimdevPythonWrapper,
        SimdevCppWrapper,
        WrapperFxCodegen,
        device_custom_pass=GraphPass(),
        device_custom_config=config,
    )


def _register_graphsafe_rng() -> None:
    from torch._functorch._aot_autograd import utils

    register: Any = getattr(utils, "register_graphsafe_rng_device_type", None)
    if register is not None:  # torch 2.13
        register(DEVICE_TYPE)
