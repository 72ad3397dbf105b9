"""Builds torch_simdev: writes a build.ninja for the C++ parts, runs ninja, hands the results to setuptools.

Every way to build (`make build`, `pip install .`, `pip wheel .`, editable) goes through this one build_ext,
shares the objects in build/ninja and so compiles a file once.  Metadata lives in pyproject.toml;
LIBRARIES below says what is built.

Environment: CXX (compiler), MAX_JOBS (default 2), DEBUG=1 (-O0 -g), SIMDEV_PCH=0 (no precompiled headers).
"""

from __future__ import annotations

import ctypes
import fcntl
import filecmp
import importlib.metadata
import importlib.util
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
CSRC = ROOT / "csrc"
DEBUG = os.environ.get("DEBUG", "0") == "1"
USE_PCH = os.environ.get("SIMDEV_PCH", "1") != "0"

# Files of plain kernels say by their name how they are compiled.  The caller of an _avx2 or _avx512 file
# checks the processor first.
KERNEL_MATH = "-O3 -fno-math-errno -fno-trapping-math"  # otherwise sqrt and conditions do not vectorise
KERNEL_FLAGS = {
    "_kernels": KERNEL_MATH,
    "_kernels_avx2": f"{KERNEL_MATH} -march=x86-64-v3",
    "_kernels_avx512": f"{KERNEL_MATH} -march=x86-64-v4 -mprefer-vector-width=512",
    # What a GPU's operators go through.  -O2 leaves c10's one-line functions as calls, and each operator makes dozens.
    "inline": "-O3",
    "inline_operators": "-O3",
}


@dataclass(frozen=True)
class Library:
    """One shared library: the sources of its folders, and what it is built upon."""

    path: str  # in the package
    folders: tuple[str, ...]  # below csrc/
    compile: str
    needs: tuple[str, ...] = ()  # other libraries of this table
    torch: str = ""  # libraries of PyTorch
    pch: str | None = None  # csrc/pch/<name>.h, what nearly every file includes anyway

    @property
    def name(self) -> str:
        """The name under which a running process knows the library."""
        return self.path.rsplit("/", 1)[1]


EXTENSION = f"torch_simdev/_C{sysconfig.get_config_var('EXT_SUFFIX')}"

# Whoever has no Python, as a C++ program that runs a compiled model, loads all but the extension.
LIBRARIES = [
    Library(
        "torch_simdev/lib/libsimdev.so",
        ("libsimdev",),
        f"-I{CSRC}/libsimdev -O3 -DSIMDEV_BUILDING_LIBRARY",
    ),
    Library(
        "torch_simdev/lib/libtorch_simdev.so",
        ("driver", "runtime", "aten", "aten/native", "compile"),
        # Exports what it defines, as PyTorch's own libraries do, and calls it without a detour.
        "$torch_flags -fvisibility=default -fno-semantic-interposition",
        needs=("libsimdev.so",),
        torch="-ltorch_cpu -ltorch -lc10",
        pch="core",
    ),
    Library(
        EXTENSION,
        ("bindings",),
        "$torch_flags",
        needs=("libtorch_simdev.so", "libsimdev.so"),
        torch="-ltorch_python -ltorch_cpu -ltorch -lc10",
        pch="bindings",
    ),
]

# Headers for code that is compiled later: (folder below csrc/, pattern, folder in torch_simdev/include).
HEADERS = [
    ("libsimdev", "simdev.h", ""),
    ("compile", "simdev_kernel.h", ""),
    ("compile/aoti", "**/*.h", "aoti"),
]


def torch_root() -> Path:
    """Where PyTorch is installed, found without the cost of importing it."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        sys.exit(
            "torch_simdev is built against the installed PyTorch and found none. Install torch first and "
            "build with `pip install --no-build-isolation .`, or run `make build`, which does both."
        )
    return Path(spec.origin).parent


def torch_version() -> str:
    """The installed PyTorch's version without its local part: 2.13.0+cpu gives 2.13.0."""
    return importlib.metadata.version("torch").split("+")[0]


def package_version() -> str:
    text = (ROOT / "pyproject.toml").read_text()
    match = re.search(r'^version = "([^"]+)"', text, re.MULTILINE)
    assert match, "pyproject.toml has no version"
    return match.group(1)


def find_ninja() -> list[str]:
    """The ninja of the Python that builds, whether activated or not, or else one on PATH."""
    if importlib.util.find_spec("ninja"):
        return [sys.executable, "-m", "ninja"]
    if path := shutil.which("ninja"):
        return [path]
    sys.exit("torch_simdev is built with ninja and found none: `pip install ninja`.")


def shared_cxx_library() -> str:
    """Linker flags for the libstdc++ that a Python process here uses.

    Some compilers bring theirs as an archive only.  A second copy of it inside the extension, beside PyTorch's, crashes
    as soon as it formats a number.
    """
    try:
        ctypes.CDLL("libstdc++.so.6")
        maps = Path("/proc/self/maps").read_text()
    except OSError:  # another standard library, another system
        return ""
    match = re.search(r"(/\S*/libstdc\+\+\.so\.6\S*)", maps)
    return f"-Wl,--push-state,--as-needed {match[1]} -Wl,--pop-state" if match else ""


def ninja_escape(text: object) -> str:
    return re.sub(r"([$ :])", r"$\1", str(text))


class NinjaBuild(build_ext):
    """setuptools' build_ext with ninja in place of its compiler driver."""

    def run(self) -> None:
        build = ROOT / "build" / "ninja"
        build.mkdir(parents=True, exist_ok=True)
        with open(build / ".lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # two builds in one folder would undo each other
            self.write_ninja_file(build / "build.ninja", build)
            jobs = os.environ.get("MAX_JOBS", "2")
            command = [*find_ninja(), "-C", str(build), "-j", jobs]
            if self.verbose:
                command.append("-v")
            if status := subprocess.run(command).returncode:
                sys.exit(status)  # ninja has said why
            target = ROOT if self.inplace or self.editable_mode else Path(self.build_lib)
            for source, destination in self.products(build):
                install_file(source, target / destination)

    def products(self, build: Path) -> list[tuple[Path, str]]:
        """(built file, path in the package) of everything the wheel needs beside the Python files."""
        headers = [
            (header, f"torch_simdev/include/{Path(target, header.relative_to(CSRC / folder))}")
            for folder, pattern, target in HEADERS
            for header in sorted((CSRC / folder).glob(pattern))
        ]
        return [
            *((build / library.path, library.path) for library in LIBRARIES),
            *headers,
            (build / "_build_info.py", "torch_simdev/_build_info.py"),
        ]

    def get_source_files(self) -> list[str]:
        """Puts all of csrc into the source distribution."""
        return [str(path.relative_to(ROOT)) for path in sorted(CSRC.rglob("*")) if path.is_file()]

    def get_outputs(self) -> list[str]:
        return [str(Path(self.build_lib) / destination) for _, destination in self.products(ROOT)]

    def get_output_mapping(self) -> dict[str, str]:
        if not (self.inplace or self.editable_mode):
            return {}
        return {str(Path(self.build_lib) / path): str(ROOT / path) for _, path in self.products(ROOT)}

    def write_ninja_file(self, path: Path, build: Path) -> None:
        write_if_changed(
            build / "_build_info.py",
            '"""Written by setup.py: what this build of torch_simdev was made from."""\n\n'
            f'VERSION = "{package_version()}"\nTORCH_VERSION = "{torch_version()}"\n',
        )
        write_if_changed(path, "\n".join(ninja_lines()) + "\n")


def ninja_lines() -> Iterator[str]:
    torch = torch_root()
    cxx = os.environ.get("CXX", "c++")
    base = (
        "-std=c++20 -fPIC -fvisibility=hidden -fvisibility-inlines-hidden -pthread "
        "-Wall -Wextra -Werror=return-type -Wno-unused-parameter -Winvalid-pch -fdiagnostics-color"
    )
    system = [
        torch / "include",
        torch / "include/torch/csrc/api/include",
        Path(sysconfig.get_paths()["include"]),
    ]
    torch_flags = shlex.join(
        [f"-I{ROOT}", f"-I{CSRC}"]
        + [f"-isystem{folder}" for folder in system]
        + [f'-DSIMDEV_TORCH_VERSION="{torch_version()}"', f'-DSIMDEV_VERSION="{package_version()}"']
    )
    yield "# Written by setup.py."
    yield "ninja_required_version = 1.10"
    yield f"cxx = {cxx}"
    yield f"base = {base}"
    yield f"torch_flags = {torch_flags}"
    yield f"link_flags = -Ltorch_simdev/lib -L{shlex.quote(str(torch / 'lib'))}"
    yield "rule compile"
    yield "  command = $cxx -MMD -MF $out.d $base $flags -c $in -o $out"
    yield "  depfile = $out.d"
    yield "  deps = gcc"
    yield "  description = CXX $out"
    yield "rule precompile"
    yield "  command = $cxx -MMD -MF $out.d $base $flags -x c++-header $in -o $out"
    yield "  depfile = $out.d"
    yield "  deps = gcc"
    yield "  description = PCH $out"
    yield "rule copy"
    yield "  command = cp $in $out"
    yield "rule link"
    yield "  command = $cxx -shared -pthread -Wl,--gc-sections -Wl,-O1 -o $out $in $flags"
    yield "  description = LINK $out"

    optimize = "-g" if DEBUG else "-O2 -g1 -ffunction-sections -fdata-sections"
    last = "-O0" if DEBUG else ""  # of several -O the last counts
    paths = {library.name: library.path for library in LIBRARIES}
    for library in LIBRARIES:
        flags = f"{optimize} {library.compile}"
        header = f"pch/{library.pch}.h" if library.pch and USE_PCH else None
        if header:
            # The copy beside the .gch is what the compiler falls back to, and what it names in messages.
            yield f"build {header}: copy {ninja_escape(CSRC / header)}"
            yield f"build {header}.gch: precompile {header}\n  flags = {flags} {last}"
        # (for newer processors only, object), sorted for the link: of an inline function that several objects
        # hold the linker takes the first, which must run on any processor.
        objects: list[tuple[bool, str]] = []
        for source in sorted(path for folder in library.folders for path in (CSRC / folder).glob("*.cpp")):
            kernel = next((k for k in sorted(KERNEL_FLAGS, reverse=True) if source.stem.endswith(k)), None)
            newer = kernel in ("_kernels_avx2", "_kernels_avx512")
            if newer and platform.machine() not in ("x86_64", "AMD64"):
                continue
            use_header = header and not kernel
            extra = KERNEL_FLAGS[kernel] if kernel else f"-include {header}" if use_header else ""
            target = f"obj/{source.relative_to(CSRC).with_suffix('.o')}"
            yield f"build {target}: compile {ninja_escape(source)}{f' | {header}.gch' if use_header else ''}"
            yield f"  flags = {flags} {extra} {last}"
            objects.append((newer, target))
        needed = " ".join(paths[name] for name in library.needs)
        yield f"build {library.path}: link {' '.join(name for _, name in sorted(objects))} | {needed}"
        # Ninja hands $flags to the shell, hence $$ for a literal dollar and quotes around it.
        origin = "$$ORIGIN/lib" if library.path == EXTENSION else "$$ORIGIN"
        own = " ".join(f"-l:{name}" for name in library.needs)
        complete = "" if library.path == EXTENSION else f"-Wl,-z,defs -Wl,-soname,{library.name}"
        yield (
            f"  flags = {complete} -Wl,-Bsymbolic-functions $link_flags {own} '-Wl,-rpath,{origin}' "
            f"{library.torch} {shared_cxx_library()}"
        )
    yield f"default {' '.join(paths.values())}"


def write_if_changed(path: Path, text: str) -> None:
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def install_file(source: Path, destination: Path) -> None:
    """Copies by rename, since a running process may have the old library mapped."""
    if destination.exists() and filecmp.cmp(source, destination, shallow=True):
        return
    destination.parent.mkdir(parents=True, exist_ok=True)
    temporary = destination.with_name(destination.name + ".new")
    shutil.copy2(source, temporary)
    os.replace(temporary, destination)


minor = ".".join(torch_version().split(".")[:2]) if importlib.util.find_spec("torch") else None

setup(
    ext_modules=[Extension("torch_simdev._C", sources=[])],
    license="BSD-3-Clause",
    cmdclass={"build_ext": NinjaBuild},
    # The binary interface of PyTorch changes from one minor version to the next.
    install_requires=[f"torch=={minor}.*" if minor else "torch"],
)
