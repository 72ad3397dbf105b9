"""The generated C++ around the kernels: ahead-of-time packages, and Inductor's option `cpp_wrapper`.

The C++ counterpart of wrapper.py.  Kernels are part of the generated library, and launched through the C
interface of csrc/compile/aoti/simdev_aoti.h.
"""

from __future__ import annotations

import functools
import re
from typing import Any

from torch._inductor import ir
from torch._inductor.codegen.cpp_wrapper_cpu import CppWrapperCpu
from torch._inductor.codegen.wrapper import PythonWrapperCodegen
from torch._inductor.virtualized import V

from .._utils import DEVICE_TYPE
from .launch import PACKAGE, sources_digest
from .wrapper import flush


@functools.cache
def _operators() -> frozenset[str]:
    """The operators that have a function of the device's name."""
    text = (PACKAGE / "include" / "aoti" / "simdev_aoti.h").read_text()
    return frozenset(re.findall(rf"\baoti_torch_{DEVICE_TYPE}_\w+", text))


def kernel_function(name: str) -> str:
    """Returns the name of the function that is a kernel's body; the kernel's own name is what launches it."""
    return f"{name}_kernel"


def declare_kernel(name: str, signature: str) -> str:
    """Returns the C++ that declares a kernel of the library and makes it callable under its name."""
    entry = f"{kernel_function(name)}_entry"
    return (
        f'extern "C" void {entry}(const void*, const void*);\n'
        f'static const AOTISimdevKernel {name}({entry}, "{name}", "{signature}");\n'
    )


class SimdevCppWrapper(CppWrapperCpu):
    """Generates the C++ of a graph."""

    def __init__(self) -> None:
        self.device = DEVICE_TYPE
        super().__init__()
        self.needs_vec_isa = True  # of the kernels

    @staticmethod
    def create(
        is_subgraph: bool,
        subgraph_name: str | None,
        parent_wrapper: PythonWrapperCodegen | None,
        partition_signatures: ir.GraphPartitionSignature | None = None,
    ) -> PythonWrapperCodegen:
        return SimdevCppWrapper()  # subgraphs are generated in their place

    def write_header(self) -> None:
        super().write_header()
        if not V.graph.is_const_graph:
            # The text is what Inductor knows a compiled library by, and it includes our headers.
            self.header.writeline(f"// torch_simdev {sources_digest()}")

    def _generate_kernel_call_helper(
        self,
        kernel_name: str,
        call_args: Any,
        *,
        device: Any = None,
        triton: bool = True,
        arg_types: Any = None,
        **kwargs: Any,
    ) -> None:
        device = device or V.graph.get_current_device_or_throw()
        if device.type != DEVICE_TYPE:
            super()._generate_kernel_call_helper(
                kernel_name, call_args, device=device, triton=triton, arg_types=arg_types, **kwargs
            )
            return
        arguments = [
            arg if kind.endswith("*") else f"static_cast<{kind}>({arg})"
            for arg, kind in zip(call_args, arg_types)
        ]
        self.writeline(self.wrap_kernel_call(kernel_name, arguments))

    def generate_fallback_kernel(self, node: ir.FallbackKernel) -> None:
        """Calls an operator by its C function, or else through the dispatcher."""
        device = node.get_device()
        if device is None:
            flush()
        elif device.type != DEVICE_TYPE or node.get_kernel_name() in _operators():
            super().generate_fallback_kernel(node)
            return
        arguments = node.export_extern_kernel_node()
        self.generate_fallback_kernel_with_runtime_lookup(
            node.get_name(),
            node.python_kernel_name,
            lambda: [*node.codegen_args(), *node.codegen_kwargs()],
            node.op_overload,
            arguments,
            node.outputs or node.mutation_outputs,
        )

    def generate_c_shim_extern_kernel_call(
        self,
        kernel: str,
        args: list[str],
        device: str,
        *,
        debug_args: list[str] | None = None,
        **kwargs: Any,
    ) -> None:
        """Calls the C function of an operator.  A failure has its message, which upstream leaves out."""
        function = self.get_c_shim_func_name(kernel, device)
        if not function.startswith(f"aoti_torch_{DEVICE_TYPE}_"):
            super().generate_c_shim_extern_kernel_call(kernel, args, device, debug_args=debug_args, **kwargs)
            return
        if function not in _operators():
            raise NotImplementedError(
                f"{kernel} cannot be called from C++ generated for simdev: simdev_aoti.h has no {function}"
            )
        V.graph.wrapper_code.debug_printer.set_printer_args(debug_args or args, kernel, None, None, "extern")
        with V.graph.wrapper_code.debug_printer:
            self.writeline(f"AOTI_SIMDEV_CHECK({function}({', '.join(args)}));")
