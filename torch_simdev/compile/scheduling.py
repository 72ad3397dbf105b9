"""From Inductor's fused nodes to the source of kernels.

Inductor's C++ scheduling does the fusion, the tiling and the vectorising; this says which settings it runs under, what
a kernel's source looks like around the loops, and how a kernel is defined in the generated module.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

from torch._inductor import config
from torch._inductor.codegen.common import BracesBuffer, IndentedBuffer, KernelArgs
from torch._inductor.codegen.cpp import CppScheduling, KernelGroup
from torch._inductor.scheduler import BaseSchedulerNode
from torch._inductor.utils import Placeholder, get_fused_kernel_name
from torch._inductor.virtualized import V

from .. import devices
from .cpp_wrapper import declare_kernel, kernel_function
from .kernel import SimdevKernelProxy, may_fail
from .launch import KERNEL_HEADER

_CPP_PREFIX = "#include <torch/csrc/inductor/cpp_prefix.h>"


@contextlib.contextmanager
def codegen_settings() -> Iterator[None]:
    """The settings of Inductor under which it generates our kernels."""
    threads = devices.get_device_properties(V.graph.get_current_device_or_throw()).multi_processor_count
    with config.patch(
        {
            # Inductor takes an unknown device for CUDA and asks this to know how code is generated.
            "cuda_backend": "cpp",
            # The team of a kernel is the device's compute threads, whatever torch.get_num_threads() says.
            "cpp.threads": threads,
        }
    ):
        yield


# The letter of an argument kind (csrc/compile/compiled_kernel.h) for the types of arguments that are no pointers.
_NUMBER_KINDS = {"int64_t": "i", "float": "f", "double": "d", "bool": "b"}


def signature_of(args: KernelArgs) -> str:
    """Returns the letters of a kernel's arguments."""
    _, call_args, arg_types = args.cpp_argdefs()
    return "".join(
        (("h" if is_host_scalar(name) else "t") if kind.endswith("*") else _NUMBER_KINDS[kind.split()[-1]])
        for name, kind in zip(call_args, arg_types)
    )


def is_host_scalar(name: str) -> bool:
    """Returns whether a kernel's argument is a host tensor: 0-dim, captured by value at the launch."""
    buffer = V.graph.try_get_buffer(name)
    device = buffer.get_device() if buffer is not None else None
    return device is not None and device.type == "cpu"


class SimdevKernelGroup(KernelGroup):
    """Loop nests that run one after the other in one kernel."""

    def codegen_group(self, name: str | None = None) -> str:
        """Returns the kernel's source, or nothing if no loops were added."""
        self.stack.close()
        if not self.scheduled_nodes:
            return ""
        code = BracesBuffer()
        code.writelines([_CPP_PREFIX, KERNEL_HEADER, ""])
        arg_defs, call_args, _ = self.args.cpp_argdefs()
        arg_defs = [
            re.sub(r"^const (\S+)\* ", r"const simdev::HostScalar<\1> ", text)
            if is_host_scalar(arg)
            else text
            for text, arg in zip(arg_defs, call_args)
        ]
        kernel = Placeholder.KERNEL_NAME if name is None else name
        code.writeline(f"static void {kernel}({', '.join(arg_defs)})")
        with code.indent():
            failing = may_fail(self.loops_code.getvalue())
            if failing:
                code.writeline("simdev::KernelStatus status;")
            for old, new in self.args.aliases():
                code.writeline(f"auto {old} = {new};")
            code.splice(self.loops_code)
            if failing:
                code.writeline("status.check();")
        code.writelines(["", f"SIMDEV_KERNEL_ENTRY({kernel})"])
        return code.getvalue()


class SimdevScheduling(CppScheduling):
    """Generates simdev's kernels; registered with Inductor for the device."""

    kernel_proxy_cls = SimdevKernelProxy

    def reset_kernel_group(self) -> None:
        self.kernel_group = SimdevKernelGroup()

    def codegen_node(self, node: Any) -> None:
        with codegen_settings():
            super().codegen_node(node)

    def codegen_template(self, *args: Any, **kwargs: Any) -> Any:
        with codegen_settings():
            return super().codegen_template(*args, **kwargs)

    def flush(self) -> None:
        if self.kernel_group.scheduled_nodes:
            with codegen_settings():
                super().flush()
        else:
            self._set_flush_status(False)

    def define_kernel(
        self, src_code: str, nodes: Sequence[BaseSchedulerNode], kernel_args: KernelArgs | None = None
    ) -> str:
        """Puts the kernel into the generated module, unless it holds one with this source; returns its name."""
        wrapper = V.graph.wrapper_code
        if src_code in wrapper.src_to_kernel:
            return wrapper.src_to_kernel[src_code]
        names = config.cpp.descriptive_names
        fused = get_fused_kernel_name(nodes, names) if names else ""
        name = "_".join(["simdev", fused, wrapper.next_kernel_suffix()])
        wrapper.src_to_kernel[src_code] = name
        if kernel_args is not None:
            src_code = _template_source(src_code)
        function = kernel_function(name) if V.graph.cpp_wrapper else "kernel"
        source = (
            src_code.replace(str(Placeholder.KERNEL_NAME), function)
            .replace(str(Placeholder.DESCRIPTIVE_NAME), name)
            .replace("#pragma CMT", "//")
        )
        signature = signature_of(self.kernel_group.args if kernel_args is None else kernel_args)
        body = IndentedBuffer()
        if V.graph.cpp_wrapper:
            body.splice(source, strip=True)
            declaration = f"// {describe(nodes)}\n{declare_kernel(name, signature)}"
            wrapper.define_kernel(name, body.getvalue(), gpu=False, cpp_definition=declaration)
            return name
        body.writeline(f"compile_kernel(async_compile, {name!r}, {signature!r}, r'''")
        body.splice(source, strip=True)
        body.writeline("''')")
        wrapper.define_kernel(name, body.getvalue(), metadata=f"# {describe(nodes)}", gpu=False)
        return name


def _template_source(source: str) -> str:
    """Gives the source of one of Inductor's C++ templates, which defines a function, the form of our kernels.

    A failed index check inside of a template's parallel region can only be reported; it goes on with what it reads.
    """
    source = re.sub(
        r"\bTORCH_CHECK\((.*), (\"index out of bounds[^\"]*\")\)", r"SIMDEV_REPORT(\1, \2)", source
    )
    function = source.rindex('extern "C"')
    start = source.index("{", function) + 1
    body = source[start:].rstrip()
    assert body.endswith("}"), "a template's function ends its source"
    # Our header comes after those that the template includes: it gives division another meaning.
    return (
        f"{source[:function]}{KERNEL_HEADER}\n\n{source[function:start]}\n    simdev::KernelStatus status;"
        f"{body[:-1]}    status.check();\n}}\n\nSIMDEV_KERNEL_ENTRY({Placeholder.KERNEL_NAME})\n"
    )


def describe(nodes: Sequence[BaseSchedulerNode]) -> str:
    """Returns which operators a kernel fuses, for a comment."""
    operators: dict[str, None] = {}
    for node in nodes:
        for origin in getattr(node.node, "origins", ()):
            operator = origin.meta.get("original_aten")
            if operator is not None:
                operators[str(getattr(operator, "_overloadpacket", operator))] = None
    return f"Fuses {', '.join(operators)}" if operators else "Fuses nothing that came from an operator"
