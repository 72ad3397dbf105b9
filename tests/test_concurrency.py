"""Several host threads at once, each on its own stream and tensors: every value right, nothing lost."""

from __future__ import annotations

import gc
import pathlib
import random
import threading
import time
from typing import Any

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db

from tests.conformance.compare import DEVICE, check_same, copy_inputs, move, tensors
from tests.conformance.sweep import RANDOM, UNDETERMINED, op_key

THREADS = 4
OPS = [
    op
    for op in op_db
    if op.name not in RANDOM | UNDETERMINED
    and torch.float32 in op.supported_dtypes("cpu")
    and not op.name.startswith(("sparse", "linalg", "jiterator", "to_sparse", "tensor_split"))
][:300]

pytestmark = pytest.mark.filterwarnings("ignore")


def samples() -> list[tuple[str, Any, Any, Any, Any]]:
    """(name, function, args, kwargs, the CPU's result) of the first sample of each operator that has one."""
    torch.manual_seed(0)
    result = []
    for op in OPS:
        sample = next(iter(op.sample_inputs("cpu", torch.float32)), None)
        if sample is None:
            continue
        args, kwargs = (sample.input, *sample.args), dict(sample.kwargs)
        try:
            expected = op.op(*copy_inputs(args), **copy_inputs(kwargs))
        except Exception:
            continue
        if tensors((args, kwargs)):
            result.append((op_key(op), op.op, args, kwargs, expected))
    return result


def stress(seconds: float) -> int:
    """Runs the samples in random order in every thread; returns the number of calls.

    Raises AssertionError for the first error of any thread.
    """
    work = samples()
    errors: list[str] = []
    calls = [0] * THREADS
    deadline = time.monotonic() + seconds

    def run(index: int) -> None:
        order = random.Random(index)
        with torch.Stream(device=DEVICE):
            while time.monotonic() < deadline and not errors:
                name, function, args, kwargs, expected = order.choice(work)
                try:
                    dev_args, dev_kwargs = move((args, kwargs))
                    check_same(function(*dev_args, **dev_kwargs), expected)
                except Exception as error:
                    errors.append(f"{name}: {type(error).__name__}: {error}")
                calls[index] += 1

    threads = [threading.Thread(target=run, args=(index,)) for index in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors[0]
    return sum(calls)


def check_stress(seconds: float, least: int) -> None:
    gc.collect()
    torch.simdev.synchronize()
    before = torch.simdev.memory_allocated()
    assert stress(seconds) >= least
    gc.collect()
    torch.simdev.synchronize()
    assert torch.simdev.memory_allocated() == before


def test_threads_with_streams_of_their_own() -> None:
    check_stress(5, least=200)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_threads_with_streams_of_their_own_for_long() -> None:
    check_stress(120, least=5000)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_threads_with_blocking_launches(run_python) -> None:
    code = "from tests.test_concurrency import check_stress; check_stress(120, least=1000)"
    root = str(pathlib.Path(__file__).parents[1])
    run_python(code, timeout=300, SIMDEV_LAUNCH_BLOCKING="1", PYTHONPATH=root)
