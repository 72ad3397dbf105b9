"""Fixtures that all tests share, and the environment they run in: two devices, two threads."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ.setdefault("SIMDEV_DEVICE_COUNT", "2")  # before PyTorch is imported
os.environ.setdefault("OMP_NUM_THREADS", "2")

import pytest
import torch

RunPython = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def dev() -> torch.device:
    """The first device, with its index."""
    return torch.device("simdev", 0)


@pytest.fixture
def run_python(tmp_path: Path) -> RunPython:
    """Runs code in a new interpreter: run_python(code, check=True, timeout=240, **environment).

    It runs in an empty folder, so it finds torch_simdev as a user does. With check, a non-zero exit fails the
    test and shows what the process printed. A variable given as None is removed from the environment.
    """

    def run(code: str, check: bool = True, timeout: float = 240, **environment: str | None):
        changed = {**os.environ, **environment}
        merged = {name: value for name, value in changed.items() if value is not None}
        command = [sys.executable, "-c", code]
        result = subprocess.run(
            command, env=merged, cwd=tmp_path, capture_output=True, text=True, timeout=timeout
        )
        if check and result.returncode:
            pytest.fail(f"exit status {result.returncode}\n{result.stdout}\n{result.stderr}", pytrace=False)
        return result

    return run


@pytest.fixture
def fresh_dynamo() -> Iterator[None]:
    """Nothing compiled before the test or after it, and the same random numbers each time."""
    import torch._dynamo

    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


@pytest.fixture(autouse=True)
def leaves_no_trace() -> Iterator[None]:
    """Each test ends on device 0 with nothing pending: an error that nobody asked for belongs to the test."""
    yield
    simdev = torch.get_device_module("simdev")
    if simdev.is_initialized() and not simdev._is_in_bad_fork():
        torch.accelerator.set_device_index(0)
        for index in range(torch.accelerator.device_count()):
            torch.accelerator.synchronize(index)
