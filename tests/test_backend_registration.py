"""How torch.compile finds backends and starts them: by decorator, by entry point, `_dynamo_backend_init`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "example_backend"


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder with the example package installed as pip does it."""
    source, target = tmp_path / "source", tmp_path / "site"
    shutil.copytree(EXAMPLE, source, ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__"))
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-build-isolation", "--no-deps"]
    command += ["--disable-pip-version-check", "--target", str(target), str(source)]
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=240)
    return target


@pytest.mark.slow
def test_the_example_package_is_found_by_entry_point(run_python, installed):
    """It runs before simdev's compiler, its start is called once, and nothing imports it before it is asked for."""
    code = """
import sys, torch
from torch._dynamo import list_backends
assert "example" in list_backends()
assert "example_backend" not in sys.modules
calls = []
x = torch.arange(4.0, device="simdev")
for function in (lambda x: (x + 2) * 1, lambda x: (x + 3) * 1):
    compiled = torch.compile(function, backend="example")
    import example_backend
    calls.append(example_backend.started)
    assert compiled(x).tolist() == function(x).tolist()
assert calls[0] is not None and calls[0] == calls[1], calls
assert example_backend.removed == 2
"""
    run_python(code, PYTHONPATH=f"{installed}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")


INIT = """
import torch
x = torch.ones(3, device="simdev")
calls = []

def backend(gm, example_inputs):
    calls.append("compile")
    return gm.forward
"""


@pytest.mark.parametrize("fullgraph", [False, True])
def test_backend_init_runs_once_before_any_compile(run_python, fullgraph):
    run_python(f"""{INIT}
backend._dynamo_backend_init = lambda: calls.append("init")
for function in (lambda x: x + 1, lambda x: x + 2):
    compiled = torch.compile(function, backend=backend, fullgraph={fullgraph})
    assert calls[0] == "init"
    compiled(x)
assert calls == ["init", "compile", "compile"], calls
""")


def test_backend_init_that_fails_fails_torch_compile(run_python):
    """Each time: what has failed has not run."""
    run_python(f"""{INIT}
def init():
    raise OSError("no driver")
backend._dynamo_backend_init = init
for _ in range(2):
    try:
        torch.compile(lambda x: x, backend=backend)
    except OSError as error:
        assert str(error) == "no driver"
    else:
        raise SystemExit("torch.compile went on")
backend._dynamo_backend_init = lambda: calls.append("init")
torch.compile(lambda x: x + 1, backend=backend)(x)
assert calls == ["init", "compile"]
""")


def test_backend_init_of_simdev_registers_the_code_generator(run_python):
    """And its exceptions come out of torch.compile(), before anything is compiled."""
    run_python("""
import torch
import torch_simdev.compile.backend as backend
from torch_simdev.compile import registration
from torch._inductor.codegen.common import get_scheduling_for_device

def broken():
    raise RuntimeError("cannot register")

works = backend.simdev._dynamo_backend_init
backend.simdev._dynamo_backend_init = broken
try:
    torch.compile(torch.sin, backend="simdev")
except RuntimeError as error:
    assert str(error) == "cannot register"
else:
    raise SystemExit("torch.compile went on")
calls = []
backend.simdev._dynamo_backend_init = lambda: (calls.append(1), works())
torch.compile(torch.sin, backend="simdev")
torch.compile(torch.cos, backend="simdev")
assert calls == [1]
assert registration.register.cache_info().misses == 1
assert get_scheduling_for_device("simdev") is registration.SimdevScheduling
""")


@pytest.mark.parametrize("composed", ['compose(backend, "eager")', "GraphTool(backend)"])
def test_backend_init_of_what_is_made_of_backends_is_theirs(run_python, composed):
    run_python(f"""{INIT}
from torch_simdev.compile.tools import GraphTool, compose
backend._dynamo_backend_init = lambda: calls.append("init")
compiled = torch.compile(lambda x: x + 1, backend={composed})
assert calls == ["init"]
compiled(x)
assert calls == ["init", "compile"]
""")


def test_backend_init_is_left_to_a_dynamo_that_calls_it(run_python):
    """What a later Dynamo does is imitated: we add nothing to it."""
    run_python("""
import sys, types
import torch
from torch_simdev.compile import patches
import torch._dynamo.eval_frame as eval_frame

def get_compiler_fn(compiler_fn):
    init = getattr(compiler_fn, "_dynamo_backend_init", None)
    if init is not None:
        init()
    return compiler_fn

eval_frame.get_compiler_fn = get_compiler_fn
patches.initialise_backends()
assert eval_frame.get_compiler_fn is get_compiler_fn
""")
