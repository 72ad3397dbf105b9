"""From a kernel's source to something compiled code can call.

Lives here: compiling with the machine's C++ compiler through Inductor's cache and worker pool, loading, and the key
that says when a compiled kernel may be used again.  Does not live here: generating the source (scheduling.py), and
launching, which is C++ (csrc/compile).
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
from pathlib import Path
from typing import Any

import torch
from torch._inductor.async_compile import AsyncCompile, get_compile_threads, kernel_code_log
from torch._inductor.codecache import CppCodeCache, LambdaFuture, _get_cpp_prefix_header
from torch._inductor.utils import clear_on_fresh_cache

from .. import _C

# How generated sources include our header.  Its text takes the place of this line before compiling: then the
# source alone decides what the kernel is, wherever the package is installed.
KERNEL_HEADER = "#include <simdev_kernel.h>"

PACKAGE = Path(__file__).resolve().parent.parent


@functools.cache
def _header_text() -> str:
    text = (PACKAGE / "include" / "simdev_kernel.h").read_text()
    return text.replace("#pragma once\n", "")


@functools.cache
def sources_digest() -> str:
    """Returns a hash of everything in this package that decides what code is generated."""
    digest = hashlib.sha256()
    for path in sorted([*(PACKAGE / "compile").glob("*.py"), *(PACKAGE / "include").rglob("*.h")]):
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


@clear_on_fresh_cache
class KernelCodeCache(CppCodeCache):
    """Compiled kernels by the hash of source, compiler, its version and flags.

    The flags are those of Inductor's own CPU kernels, so that both share one precompiled header.
    """

    cache: dict[str, Any] = {}
    cache_clear = staticmethod(cache.clear)
    cpp_compile_command_flags = {"include_pytorch": False, "shared": True}

    @classmethod
    def _get_uncompiled_header(cls, device: str) -> str | None:
        return _get_cpp_prefix_header(device)


@functools.cache
def environment() -> str:
    """Returns the versions of PyTorch and the compiler: a command line names only where they are."""
    from torch._inductor.cpp_builder import get_compiler_version_info, get_cpp_compiler

    return f"torch {torch.__version__}, {get_compiler_version_info(get_cpp_compiler())}"


def compile_kernel(async_compile: AsyncCompile, name: str, signature: str, source: str) -> Any:
    """Compiles a generated kernel, in a worker process where there are any.

    Arguments:
        async_compile: the compiled graph's own; its `wait()` puts the kernel in the place of the future.
        name: shown in errors and profiles.
        signature: a letter for each argument, see csrc/compile/compiled_kernel.h.
        source: defines `kernel` and ends with SIMDEV_KERNEL_ENTRY(kernel).

    Returns a `torch_simdev._C.CompiledKernel`, or a future of one.  Errors are those of the compiler, with its output.
    """
    kernel_code_log.info("simdev kernel %s(%s):\n%s", name, signature, source)
    source = f"// {environment()}\n" + source.replace(KERNEL_HEADER, _header_text())
    submit = AsyncCompile.submit if get_compile_threads() > 1 else None
    library = KernelCodeCache.load_async(source, submit_fn=submit)

    def load() -> _C.CompiledKernel:
        entry = ctypes.cast(library().kernel_entry, ctypes.c_void_p).value
        assert entry is not None
        return _C.CompiledKernel(entry=entry, name=name, signature=signature)

    return LambdaFuture(load) if submit is not None else load()
