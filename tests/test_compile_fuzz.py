"""Differential fuzzing: random graphs compiled on simdev against the same graphs run eagerly on simdev.

SIMDEV_FUZZ_GRAPHS graphs (2,000) are behind the slow marker, in chunks of 100 that start at a seed each, so that a run
that was stopped goes on by `-k`.  A failure prints the graph as Python source with the layout of its inputs.
"""

from __future__ import annotations

import os
import random
import warnings
from collections.abc import Sequence

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.compile_fuzz import Graph, clone

GRAPHS = int(os.environ.get("SIMDEV_FUZZ_GRAPHS", "2000"))
CHUNK = 100
BATCH = 10  # graphs compiled as one function: most of a compilation's time does not depend on its size


def inputs_on(device: str, graph: Graph) -> list[Tensor]:
    """The inputs of a graph, with their layout, in memory of their own."""
    return [clone(tensor, device) for tensor in graph.inputs]


def overlaps(tensor: Tensor) -> bool:
    """Whether elements of a tensor share memory."""
    offsets = sum(
        (
            torch.arange(n).view(-1, *[1] * (tensor.dim() - d - 1)) * s
            for d, (n, s) in enumerate(zip(tensor.shape, tensor.stride()))
        ),
        torch.zeros(()),
    )
    return offsets.unique().numel() < tensor.numel()


def assert_same(graph: Graph, actual: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    for number, (a, e) in enumerate(zip(actual, expected, strict=True)):
        what = f"result {number} of\n{graph}"
        assert a.dtype == e.dtype and a.shape == e.shape, (
            f"{a.dtype} {a.shape}, not {e.dtype} {e.shape}: {what}"
        )
        # A view with elements in common, such as unfold's, is compiled into a tensor without.
        wide = [d for d, n in enumerate(e.shape) if n > 1] if not overlaps(e) else []
        assert [a.stride(d) for d in wide] == [e.stride(d) for d in wide], (
            f"{a.stride()}, not {e.stride()}: {what}"
        )
        a, e = a.cpu(), e.cpu()
        if not e.is_floating_point():
            assert torch.equal(a, e), f"{a} is not {e}: {what}"
            continue
        part = 0.06 if any(v.tensor.itemsize == 2 and v.kind == "float" for v in graph.values) else 1e-3
        bound = part * max(1.0, e.abs().max().item())
        torch.testing.assert_close(a, e, rtol=part, atol=bound, msg=what)


def check(graphs: list[Graph], device: str = "simdev") -> None:
    """Compiles the graphs as one function and compares each with eager.  If that fails, each is compiled alone.

    A graph that Inductor compiles wrongly for the CPU too is Inductor's fault; it is told by a warning.
    """
    try:
        compile_and_compare(graphs, device)
    except Exception as error:
        if len(graphs) > 1:
            for graph in graphs:
                check([graph], device)
        elif device == "cpu":
            raise
        else:
            try:
                check(graphs, "cpu")
            except Exception:
                warnings.warn(
                    f"wrong on the CPU too: {type(error).__name__}: {error}\n{graphs[0]}", stacklevel=2
                )
            else:
                raise AssertionError(f"{type(error).__name__}: {error}\n{graphs[0]}") from error


def compile_and_compare(graphs: list[Graph], device: str) -> None:
    functions = [graph.function() for graph in graphs]

    def together(inputs: list[list[Tensor]]) -> list[tuple[Tensor, ...]]:
        return [function(*each) for function, each in zip(functions, inputs)]

    compiled_inputs, eager_inputs = ([inputs_on(device, graph) for graph in graphs] for _ in range(2))
    expected = together(eager_inputs)
    torch._dynamo.reset()
    actual = torch.compile(together, fullgraph=True, dynamic=False)(compiled_inputs)
    for graph, *tensors in zip(graphs, actual, compiled_inputs, expected, eager_inputs):
        assert_same(graph, [*tensors[0], *tensors[1]], [*tensors[2], *tensors[3]])


@settings(
    max_examples=2,
    derandomize=True,
    deadline=None,
    database=None,
    phases=[Phase.generate],  # a failing graph is small, and shrinking compiles for minutes
    suppress_health_check=list(HealthCheck),
)
@given(st.randoms(use_true_random=False))
def test_random_graphs(source):
    check([Graph(source) for _ in range(BATCH)])


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", range(0, GRAPHS, CHUNK))
def test_many_random_graphs(first):
    failures = []
    for seed in range(first, min(first + CHUNK, GRAPHS), BATCH):
        try:
            check([Graph(random.Random(s)) for s in range(seed, min(seed + BATCH, GRAPHS))])
        except AssertionError as error:
            failures.append(f"seeds {seed} to {seed + BATCH - 1}: {error}")
    assert not failures, "\n\n".join(failures)
