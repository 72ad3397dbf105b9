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

from tests.conformance.compare import DEVICE, check_same, copy_inputs, move_sample, samples, tensors
from tests.conformance.sweep import RANDOM, UNDETERMINED, op_key

THREADS = 4
OPS = [
    op
    for op in op_db
    if op.name not in RANDOM | UNDETERMINED
    and torch.float32 in op.supported_dtypes("cpu")
    and not op.name.startswith(("sparse", "linalg", "jiterator", "to_sparse"))
][:300]

pytestmark = pytest.mark.filterwarnings("ignore")


def expectations() -> list[tuple[Any, Any, Any]]:
    """(operator, its first sample, the CPU's result) of each operator that takes tensors."""
    torch.manual_seed(0)
    result = []
    for op in OPS:
        for sample in samples(op, torch.float32, 1):
            args, kwargs = copy_inputs(sample)
            try:
                expected = op.op(*args, **kwargs)
            except Exception:
                continue
            if tensors(sample):
                result.append((op, sample, expected))
    return result


def stress(seconds: float) -> int:
    """Runs the samples in random order in every thread; returns the number of calls.

    Raises AssertionError for the first error of any thread.
    """
    work = expectations()
    errors: list[str] = []
    calls = [0] * THREADS
    deadline = time.monotonic() + seconds

    def run(index: int) -> None:
        order = random.Random(index)
        with torch.Stream(device=DEVICE):
            while time.monotonic() < deadline and not errors:
                op, sample, expected = order.choice(work)
                try:
                    args, kwargs = move_sample(op, sample)
                    check_same(op.op(*args, **kwargs), expected)
                except Exception as error:
                    errors.append(f"{op_key(op)}: {type(error).__name__}: {error}")
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
