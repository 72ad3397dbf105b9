"""The model zoo on the device: inference and a training step have the CPU's values and gradients, eager and compiled.

The sizes are small; the figures at full size: benchmarks/models.py.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "benchmarks"))
from models import Step, check, difference
from zoo import ARCHITECTURES, Architecture

QUICK = {"unet", "dlrm", "graph"}
CPU = torch.device("cpu")


CASES = [
    pytest.param(each, id=each.name, marks=[] if each.name in QUICK else [pytest.mark.slow])
    for each in ARCHITECTURES
]


@pytest.mark.parametrize("phase", ["inference", "training"])
@pytest.mark.parametrize("architecture", CASES)
def test_has_the_values_of_the_cpu(architecture: Architecture, phase: str, dev: torch.device) -> None:
    if architecture.from_transformers:
        pytest.importorskip("transformers", reason="pip install --no-deps -r requirements-zoo.txt")
    slack = architecture.gradient_slack
    workload = architecture.build(small=True)
    reference, step = Step(workload, CPU, compiled=False), Step(workload, dev, compiled=False)
    with torch.simdev.fallback_policy("error"):
        check(reference, step, "eager", phase, slack)
        if phase == "training":
            weights = [list(each.trained.parameters()) for each in (reference, step)]
            assert all(difference(ours, theirs, least=1e-2) < 1e-4 * slack for theirs, ours in zip(*weights))


# What Inductor does not compile for the CPU either.
NOT_BY_INDUCTOR = {"moe": "fake tensors refuse a grouped product in other types than bfloat16"}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("phase", ["inference", "training"])
@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=lambda each: each.name)
def test_compiled_has_the_values_of_the_cpu(
    architecture: Architecture, phase: str, dev: torch.device
) -> None:
    if architecture.name in NOT_BY_INDUCTOR:
        pytest.skip(NOT_BY_INDUCTOR[architecture.name])
    if architecture.from_transformers:
        pytest.importorskip("transformers", reason="pip install --no-deps -r requirements-zoo.txt")
    torch._dynamo.reset()
    workload = architecture.build(small=True)
    reference, step = Step(workload, CPU, compiled=False), Step(workload, dev, compiled=True)
    check(reference, step, "compiled", phase, architecture.gradient_slack)


def test_a_wrong_value_is_found(dev: torch.device) -> None:
    workload = ARCHITECTURES[-1].build(small=True)
    reference, step = Step(workload, CPU, compiled=False), Step(workload, dev, compiled=False)
    with torch.no_grad():
        next(iter(step.evaluated.parameters())).add_(0.01)
        next(iter(step.trained.parameters())).add_(0.01)
    for phase in ("inference", "training"):
        with pytest.raises(AssertionError, match="differ by"):
            check(reference, step, "eager", phase)


def test_the_demo_never_runs_on_the_host(run_python) -> None:
    demo = Path(__file__).resolve().parent.parent / "examples" / "train_digits.py"
    code = f"import runpy, sys; sys.argv = ['demo']; runpy.run_path({str(demo)!r}, run_name='__main__')"
    result = run_python(code, SIMDEV_FALLBACK="error")
    assert "accuracy" in result.stdout
