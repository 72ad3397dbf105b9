"""The generated Python module around the kernels: allocations from the device's allocator, launches, header.

One launch is one call of a `CompiledKernel` with tensors and numbers; which stream, which device and where the memory
is seen by the kernel are found out in C++ at that moment, so that the module works on whatever stream is current.
"""

from __future__ import annotations

from typing import Any

from sympy import Symbol
from sympy.logic.boolalg import Boolean
from torch._inductor import ir
from torch._inductor.codegen.common import IndentedBuffer
from torch._inductor.codegen.wrapper import (
    EnterDeviceContextManagerLine,
    ExitDeviceContextManagerLine,
    PythonWrapperCodegen,
    SubgraphPythonWrapperCodegen,
)
from torch._inductor.virtualized import V

from .._utils import DEVICE_TYPE

_HEADER = """
from torch_simdev._C import _empty_strided as empty_strided_simdev
from torch_simdev.compile.launch import compile_kernel
"""


def flush() -> None:
    """Lets out the kernels that wait to be grouped with what follows."""
    # Not Scheduler.flush(): it would free what the node at hand still needs.
    for backend in V.graph.scheduler.backends.values():
        backend.flush()


class _NoGuardLine(EnterDeviceContextManagerLine):
    """Stands for a device guard that nothing inside would notice."""

    def codegen(self, code: IndentedBuffer) -> None:
        pass


class _NoGuardEndLine(ExitDeviceContextManagerLine):
    def codegen(self, code: IndentedBuffer) -> None:
        pass


class _SimdevWrapper:
    """What the wrapper of a graph and the wrapper of a subgraph (cond, while_loop) have in common."""

    @staticmethod
    def create(
        is_subgraph: bool,
        subgraph_name: str | None,
        parent_wrapper: PythonWrapperCodegen | None,
        partition_signatures: ir.GraphPartitionSignature | None = None,
    ) -> PythonWrapperCodegen:
        if not is_subgraph:
            return SimdevPythonWrapper()
        assert subgraph_name is not None and parent_wrapper is not None
        return SimdevSubgraphWrapper(subgraph_name, parent_wrapper, partition_signatures)

    def codegen_device_guard_enter(self, device_idx: int, *streams: Any) -> None:
        """`streams`: how many there are in the graph and whose they are, for PyTorch releases that know of several."""
        # Launches and allocations name their device.  Only operators, custom ones above all, may ask which
        # is current.
        scheduler = V.graph.scheduler
        several = bool(streams) and streams[0] > 1
        self._guarded = several or any(node.is_extern() for node in scheduler.nodes)
        if self._guarded:
            super().codegen_device_guard_enter(device_idx, *streams)  # type: ignore[misc]
        else:
            self.writeline(_NoGuardLine(device_idx, self.last_seen_device_guard_index))  # type: ignore[attr-defined]

    def codegen_device_guard_exit(self) -> None:
        if self._guarded:
            super().codegen_device_guard_exit()  # type: ignore[misc]
        else:
            self.writeline(_NoGuardEndLine())  # type: ignore[attr-defined]

    def codegen_input_symbol_assignment(self, name: str, value: Any, bound_vars: Any) -> None:
        # A condition on sizes, which the backward graph of a cond gets, binds no symbol.  Inductor refuses it where
        # graphs are not partitioned, and ours never are (patches.record_graphs).
        if not isinstance(value, Boolean) or isinstance(value, Symbol):
            super().codegen_input_symbol_assignment(name, value, bound_vars)  # type: ignore[misc]

    # Kernels wait to be grouped with what follows.  The scheduler lets them out before an operator of a device; they
    # must not wait past an operator without one, such as the recording of an event, nor into another stream's block.

    def generate_fallback_kernel(self, node: ir.FallbackKernel) -> None:
        if node.get_device() is None:
            flush()
        super().generate_fallback_kernel(node)  # type: ignore[misc]

    def codegen_cuda_stream_enter(self, stream_idx: int) -> Any:
        flush()
        return super().codegen_cuda_stream_enter(stream_idx)  # type: ignore[misc]

    def codegen_cuda_stream_exit(self) -> None:
        flush()
        super().codegen_cuda_stream_exit()  # type: ignore[misc]

    def _generate_kernel_call_helper(
        self, kernel_name: str, call_args: Any, *, device: Any = None, triton: bool = True, **kwargs: Any
    ) -> None:
        device = device or V.graph.get_current_device_or_throw()
        if device.type == DEVICE_TYPE:
            self.writeline(self.wrap_kernel_call(kernel_name, call_args))  # type: ignore[attr-defined]
        else:
            super()._generate_kernel_call_helper(  # type: ignore[misc]
                kernel_name, call_args, device=device, triton=triton, **kwargs
            )

    def make_allocation(
        self,
        name: str,
        device: Any,
        dtype: Any,
        shape: Any,
        stride: Any,
        allocation_shape: Any = None,
        is_pinned: bool = False,
    ) -> str:
        if device.type != DEVICE_TYPE:
            return super().make_allocation(  # type: ignore[misc]
                name, device, dtype, shape, stride, allocation_shape, is_pinned
            )
        as_tuple = self.codegen_python_shape_tuple  # type: ignore[attr-defined]
        size, strides = as_tuple(shape), as_tuple(stride)
        allocated = size if allocation_shape is None else as_tuple(allocation_shape)
        line = f"{name} = empty_strided_simdev({allocated}, {strides}, {dtype}, {device.index})"
        return line if allocated == size else f"{line}.as_strided({size}, {strides})"


class SimdevPythonWrapper(_SimdevWrapper, PythonWrapperCodegen):
    """Generates the module of a graph."""

    def write_header(self) -> None:
        super().write_header()
        self.imports.splice(_HEADER, strip=True)


class SimdevSubgraphWrapper(_SimdevWrapper, SubgraphPythonWrapperCodegen):
    """Generates the function of a subgraph inside of its parent's module."""
