"""Each example runs by itself, and prints what it is there to show."""

from __future__ import annotations

from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parent.parent / "examples" / "compile"

SHOWS = {
    "01_observe": ["--- graph 0, Dynamo: ", "aten.gelu_backward.default", "'graph 0, ATen, backward'"],
    "02_count": ["aten.addmm.default", "graph 0, ATen, backward: ", "FLOPs per byte"],
    "03_rewrite": ["nodes replaced: 1; the result changed, and is the predicted one", "largest change:"],
    "04_explain": ["Dynamo's graphs: 2, breaks: 1", "aten.gelu", "aten.cumsum", "of eager's bytes"],
    "05_profile": ["aten.convolution", "aten.native_batch_norm", "3 calls", "ATen, backward"],
    "06_bisect": ["right", "the wrong result starts at inductor: Inductor's graph passes, lowerings"],
    "07_fallback": ["backend only_small did not compile a graph: NotImplementedError: 4 operators"],
    "08_other_optimiser": ["TorchScript agrees", "known: the chain agrees", "unknown: the chain agrees"],
    "09_register": ["tensor([0., 0., 0., 0.])", "True True"],
}


def test_every_example_is_tested():
    assert sorted(SHOWS) == sorted(path.stem for path in EXAMPLES.glob("*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("name", SHOWS)
def test_example(run_python, name):
    path = EXAMPLES / f"{name}.py"
    result = run_python(f"import runpy; runpy.run_path({str(path)!r}, run_name='__main__')")
    for text in SHOWS[name]:
        assert text in result.stdout + result.stderr
