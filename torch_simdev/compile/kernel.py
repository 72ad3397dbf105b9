"""The body of a kernel: Inductor's C++ kernels (scalar, vector, 2D tile) with failures that reach the device's stream.

What differs from Inductor on CPU: a failed check throws a KernelFailure that is caught before it can leave an OpenMP
region (where an exception ends the process), and is reported through the launch's `status`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import torch
from torch._inductor.codegen.common import BracesBuffer
from torch._inductor.codegen.cpp import (
    CppKernel,
    CppKernelProxy,
    CppOverrides,
    CppTile2DKernel,
    CppTile2DOverrides,
    CppVecKernel,
    CppVecOverrides,
)
from torch._inductor.codegen.cpp_utils import CppCSEVariable, cexpr_index
from torch._inductor.virtualized import V, ops
from torch._prims_common import is_integer_dtype

from . import config

ASSERT = "SIMDEV_ASSERT"
DIVISOR = "SIMDEV_DIVISOR"

# Code that may fail; simdev_kernel.h gives it access to the launch's `status`.
_MAY_FAIL = re.compile(rf"\b({ASSERT}|{DIVISOR})\(")


def may_fail(code: str) -> bool:
    """Returns whether a kernel with this code needs a `status`."""
    return _MAY_FAIL.search(code) is not None


class _ReportsFailures:
    """Mixed into a kernel class: checks throw, and each loop body catches what its checks throw."""

    @property
    def assert_function(self) -> str:
        return ASSERT

    def device_assert_async(self, cond: Any, msg: str) -> None:
        self.compute.writeline(f"{ASSERT}({cond}, {json.dumps(msg)});")  # type: ignore[attr-defined]

    def gen_body(self, code: BracesBuffer | None = None) -> BracesBuffer:
        body = super().gen_body(code)  # type: ignore[misc]
        if ASSERT not in body.getvalue():
            return body
        guarded = BracesBuffer()
        guarded.writeline("try")
        with guarded.indent():
            guarded.splice(body)
        guarded.writeline("catch (const simdev::KernelFailure& failure)")
        with guarded.indent():
            guarded.writeline("status.fail(failure.message);")
        return guarded


# Operators that end the process where an integer divisor is zero, or -1 and the dividend the least integer.
_QUOTIENTS = ("floordiv", "truncdiv")
_REMAINDERS = ("mod", "remainder")


def _checked_divisor(divisor: Any) -> Any:
    """Returns the divisor, with 1 in the place of -1 and of a zero, which counts as a failure of the launch."""
    code = str(divisor)
    if divisor.is_vec:  # lanes that are masked out hold zero, those without an element anything
        mask = V.kernel._load_mask
        if isinstance(mask, CppCSEVariable) and mask.is_vec:
            code = str(CppVecOverrides.where(mask, divisor, f"decltype({code})(1)"))
        code = f"decltype({code})::set(decltype({code})(1), {code}, {cexpr_index(V.kernel.num_elems)})"
    checked = V.kernel.cse.generate(V.kernel.compute, f"{DIVISOR}({code})", dtype=divisor.dtype)
    checked.update_on_args("checked_divisor", (divisor,), {})
    return checked


def _checked(name: str, division: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    """Returns the operator `name` that divides by any integer; `division` is Inductor's."""

    def checked(dividend: Any, divisor: Any) -> Any:
        if not isinstance(divisor, CppCSEVariable) or not is_integer_dtype(divisor.dtype):
            return division(dividend, divisor)
        result = division(dividend, _checked_divisor(divisor))
        return f"simdev::quotientBy({divisor}, {result})" if name in _QUOTIENTS else result

    return checked


class SimdevOverrides(CppOverrides):
    """Inductor's operators on one element, with divisions by any integer that report a zero divisor."""


for _name in (*_QUOTIENTS, *_REMAINDERS):
    setattr(SimdevOverrides, _name, staticmethod(_checked(_name, getattr(CppOverrides, _name))))


class SimdevVecOverrides(CppVecOverrides, SimdevOverrides):
    """Inductor's vector operators: tanh from simdev_kernel.h, divisions as above, for fast_math a shorter exp."""

    def __new__(cls, *args: Any, **kwargs: Any) -> SimdevVecOverrides:
        # Inductor hangs its operators on the instance, wrapped so that they take scalars too.
        self = super().__new__(cls, *args, **kwargs)
        upstream_tanh = self.tanh

        def tanh(x: Any) -> str:
            code = str(upstream_tanh(x))
            vector = code.removesuffix(".tanh()")
            return code if vector == code else f"simdev::tanh({vector})"

        def fast(operator: Callable[[Any], Any]) -> Callable[[Any], str]:
            return lambda x: str(operator(x)).replace(".exp()", ".exp_u20()")

        def checked(name: str) -> Callable[[Any, Any], Any]:
            # Of two scalars Inductor calls SimdevOverrides' operator, which checks.
            division = getattr(self, name)
            return lambda a, b: _checked(name, division)(a, b) if a.is_vec or b.is_vec else division(a, b)

        self.tanh = tanh
        for name in (*_QUOTIENTS, *_REMAINDERS):
            setattr(self, name, checked(name))
        if config.fast_math:
            self.exp = fast(self.exp)
            self.sigmoid = fast(self.sigmoid)
        return self

    @classmethod
    def index_expr(cls, expr: Any, dtype: torch.dtype) -> Any:
        """Returns an index as a value.

        Inductor converts the first index of a vector and counts on from there, which a bool cannot.
        """
        if dtype != torch.bool:
            return super().index_expr(expr, dtype)
        return ops.to_dtype(super().index_expr(expr, torch.int64), dtype)


class SimdevKernel(_ReportsFailures, CppKernel):
    """One element at a time."""

    overrides = SimdevOverrides

    def codegen_conditions(self, code: BracesBuffer, prefix: str | None = None, var: Any = None) -> bool:
        # A scalar tail beside tiles has a loop of its own over a range that it covers wholly, so it must run in one
        # step of the tiles' loop, the first.  Inductor sees to that for its own class alone, not for subclasses.
        ranges = self.active_ranges  # type: ignore[has-type]
        inner = dict(list(zip(self.itervars or (), self.ranges or ()))[1:])
        self.active_ranges = {
            v: (0, 1) if v in inner and bounds == (0, inner[v]) else bounds for v, bounds in ranges.items()
        }
        try:
            return super().codegen_conditions(code, prefix, var)
        finally:
            self.active_ranges = ranges


class SimdevVecKernel(_ReportsFailures, CppVecKernel):
    """A vector of elements at a time."""

    overrides = SimdevVecOverrides


class SimdevTile2DOverrides(SimdevVecOverrides, CppTile2DOverrides):
    """The same, where an index may depend on the row inside of the tile."""


class SimdevTile2DKernel(SimdevVecKernel, CppTile2DKernel):
    """A square of elements at a time, for transposing loads and stores."""

    overrides = SimdevTile2DOverrides

    def transform_indexing(self, index: Any) -> Any:
        """Returns the index of a row inside of the tile, from that of the tile's first row.

        Inductor's atomic store transforms an index and then hands it to operators that transform it again, which
        counted the row twice.
        """
        return index if index.has(self.inner_itervar()) else super().transform_indexing(index)


class SimdevKernelProxy(CppKernelProxy):
    """Chooses among the kernels above for one group of fused nodes."""

    kernel_cls = SimdevKernel
    vec_kernel_cls = SimdevVecKernel
    tile2d_kernel_cls = SimdevTile2DKernel
