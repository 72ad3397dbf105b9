"""Importing, autoloading and installing: every order of imports, another PyTorch, and the wheel elsewhere."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest
import torch

import torch_simdev

ROOT = Path(__file__).resolve().parent.parent
USE = "assert (torch.ones(3, device='simdev') * 2).sum().item() == 6"

IMPORTS = {
    "torch only": ("1", "import torch"),
    "torch first": ("1", "import torch, torch_simdev"),
    "torch_simdev first": ("1", "import torch_simdev, torch"),
    "torch_simdev only": ("1", "import torch_simdev; torch = torch_simdev.torch"),
    "from import first": ("1", "from torch_simdev import Stream; import torch"),
    "submodule first": ("1", "import torch_simdev.streams; import torch"),
    "autoload off, torch first": ("0", "import torch, torch_simdev"),
    "autoload off, torch_simdev first": ("0", "import torch_simdev, torch"),
    "twice": (
        "1",
        "import torch, torch_simdev, importlib; importlib.import_module('torch_simdev'); import torch",
    ),
    "name on torch": ("1", "import torch; import torch.simdev; from torch.simdev import synchronize"),
    "beside heavy modules": ("1", "import torch_simdev; import torch, torch._dynamo, torch.distributed"),
}


@pytest.mark.parametrize("order", IMPORTS)
def test_import_order(run_python, order):
    autoload, imports = IMPORTS[order]
    # Warnings are errors: a half-imported package shows up as one first.
    code = f"import warnings; warnings.simplefilter('error', RuntimeWarning)\n{imports}\n{USE}"
    run_python(code, TORCH_DEVICE_BACKEND_AUTOLOAD=autoload)


@pytest.mark.parametrize("module", ["torch", "torch_simdev"])
def test_import_in_a_thread(run_python, module):
    code = f"""
import threading
failures = []

def work():
    try:
        import {module}
        import torch
        {USE}
    except BaseException as error:
        failures.append(error)

threads = [threading.Thread(target=work) for _ in range(3)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert not failures, failures
import torch
{USE}
"""
    run_python(code)


def test_autoload_off_means_absent(run_python):
    code = """
import sys, torch
assert "torch_simdev" not in sys.modules
try:
    torch.ones(1, device="simdev")
except RuntimeError:
    pass
else:
    raise SystemExit("simdev exists")
"""
    run_python(code, TORCH_DEVICE_BACKEND_AUTOLOAD="0")


def test_importing_only_registers(run_python):
    """No device started, no thread, no memory window, no compiler imported."""
    code = """
import os, sys, torch
simdev = torch.get_device_module("simdev")
assert simdev.is_available() and simdev.device_count() == 2
assert not simdev.is_initialized()
heavy = {"torch._dynamo", "torch._inductor", "torch.distributed.tensor", "numpy.testing"} & set(sys.modules)
assert not heavy, heavy
print(len(os.listdir("/proc/self/task")))
"""
    without = "import os, torch; print(len(os.listdir('/proc/self/task')))"
    loaded = int(run_python(code).stdout)
    assert loaded == int(run_python(without, TORCH_DEVICE_BACKEND_AUTOLOAD="0").stdout)


def other_minor(version: str) -> str:
    major, minor, *rest = version.split(".")
    return ".".join([major, str(int(minor) + 1), *rest])


@pytest.mark.parametrize("first", ["torch", "torch_simdev"])
def test_another_minor_version_of_torch_is_refused_by_name(run_python, tmp_path, first):
    """A copy of the package that says it was built against another version, ahead on the path."""
    package = tmp_path / "torch_simdev"
    shutil.copytree(Path(torch_simdev.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    ours = torch.__version__.split("+")[0]
    built = other_minor(ours)
    info = package / "_build_info.py"
    info.write_text(info.read_text().replace(f'"{ours}"', f'"{built}"'))
    environment = {"PYTHONPATH": str(tmp_path), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    result = run_python(f"import {first}, torch_simdev", check=False, **environment)
    assert result.returncode != 0
    message = result.stderr.strip().splitlines()[-1]
    assert "ImportError" in message
    assert ours in message
    assert built in message


def test_patch_versions_are_compatible(run_python, tmp_path):
    package = tmp_path / "torch_simdev"
    shutil.copytree(Path(torch_simdev.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    ours = torch.__version__.split("+")[0]
    built = ".".join([*ours.split(".")[:2], "99"])
    info = package / "_build_info.py"
    info.write_text(info.read_text().replace(f'"{ours}"', f'"{built}"'))
    run_python(f"import torch, torch_simdev\n{USE}", PYTHONPATH=str(tmp_path))


# --- The wheel ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """A wheel built from the tree; it shares the objects of the last build."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "wheel", str(ROOT), "--no-build-isolation", "--no-deps", "-q"]
    subprocess.run([*pip, "-w", str(folder)], check=True, timeout=600, cwd=folder)
    (path,) = folder.glob("*.whl")
    return path


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_wheel_holds_what_the_package_needs_and_no_more(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    libraries = [f"_C{suffix}", "lib/libsimdev.so", "lib/libtorch_simdev.so"]
    headers = ["include/simdev.h", "include/simdev_kernel.h", "include/aoti/simdev_aoti.h"]
    for needed in [*libraries, *headers, "py.typed", "_build_info.py"]:
        assert f"torch_simdev/{needed}" in names
    sources = {str(path.relative_to(ROOT)) for path in (ROOT / "torch_simdev").rglob("*.py")}
    assert sources <= names
    roots = {name.split("/")[0] for name in names}
    assert {root for root in roots if not root.endswith(".dist-info")} == {"torch_simdev"}
    metadata = next(name for name in names if name.endswith(".dist-info/METADATA"))
    minor = ".".join(torch.__version__.split(".")[:2])
    assert f"Requires-Dist: torch=={minor}.*" in zipfile.ZipFile(wheel).read(metadata).decode()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_wheel_works_in_another_environment(wheel, tmp_path):
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv/bin/python"
    site = Path(
        subprocess.check_output(
            [python, "-c", "import site; print(site.getsitepackages()[0])"], text=True
        ).strip()
    )
    # PyTorch and what it needs come from this environment; torch_simdev must come from the wheel.
    for package in Path(torch.__file__).parent.parent.iterdir():
        ours = "torch_simdev" in package.name or package.name in {"pip", "setuptools", "__pycache__"}
        if not ours and not (site / package.name).exists():
            (site / package.name).symlink_to(package)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    install = [python, "-m", "pip", "install", "-q", "--no-deps", "--disable-pip-version-check", wheel]
    subprocess.run(install, check=True, timeout=300, env=environment)
    code = f"import torch; import torch_simdev; print(torch_simdev.__file__)\n{USE}"
    run = [python, "-c", code]
    result = subprocess.run(
        run, check=True, timeout=240, cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert Path(result.stdout.strip()).is_relative_to(tmp_path)
