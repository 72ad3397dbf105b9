"""Caches of compiled code: they survive the process, and never serve what was made from something else."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.slow  # each compiles C++: run by `make conformance`

# Prints whether the graph came from the cache, and the result.
SCRIPT = """
import torch
from torch._dynamo.utils import counters
options = {options}
compiled = torch.compile(lambda x: torch.exp(x).tanh() + 1, backend="simdev", options=options)
result = compiled(torch.zeros(100, device="simdev"))
hits = counters["inductor"]["fxgraph_cache_hit"] + counters["aot_autograd"]["autograd_cache_hit"]
print(hits > 0, round(result[0].item(), 4))
"""


@pytest.fixture
def run(run_python, tmp_path):
    def once(options: object = None, **environment: str) -> tuple[str, str]:
        environment = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache"), **environment}
        code = SCRIPT.format(options=repr(options))
        output = run_python(code, **environment).stdout.split()
        return output[0], output[1]

    return once


def test_a_new_process_finds_what_was_compiled(run):
    assert run() == ("False", "1.7616")
    assert run() == ("True", "1.7616")


def test_another_option_is_another_key(run):
    run()
    assert run({"fast_math": True}) == ("False", "1.7616")
    assert run({"fast_math": True})[0] == "True"
    assert run()[0] == "True"


def test_another_number_of_threads_is_another_key(run):
    run(SIMDEV_NUM_THREADS="2")
    assert run(SIMDEV_NUM_THREADS="1")[0] == "False"
    assert run(SIMDEV_NUM_THREADS="2")[0] == "True"


def test_the_key_depends_on_sources_compiler_and_devices(monkeypatch):
    from torch_simdev.compile import launch
    from torch_simdev.compile.registration import GraphPass

    key = GraphPass().uuid()
    assert key == GraphPass().uuid()
    for name in ("sources_digest", "environment"):
        with monkeypatch.context() as patch:
            patch.setattr(launch, name, lambda: "another")
            assert GraphPass().uuid() != key
