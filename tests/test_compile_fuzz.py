"""Differential fuzzing: random graphs compiled on simdev against the same graphs run eagerly on simdev.

Differentiable graphs are trained one step as well: the gradient of a weighted sum of all that they return and change.

SIMDEV_FUZZ_GRAPHS graphs (2,000), and a quarter as many differentiable ones, are behind the slow marker, in chunks of
100 that start at a seed each, so that a run that was stopped goes on by `-k`.  A failure prints the graph as Python
source with the layout of its inputs.
"""

from __future__ import annotations

import functools
import os
import random
import warnings
from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.compile_fuzz import Graph, clone

GRAPHS = int(os.environ.get("SIMDEV_FUZZ_GRAPHS", "2000"))
CHUNK = 100
BATCH = 10  # graphs compiled as one function: most of a compilation's time does not depend on its size


def leaves_on(device: str, graph: Graph) -> list[Tensor]:
    """The inputs of a graph, with their layout, in memory of their own; of differentiable graphs with a gradient."""
    leaves = [clone(tensor, device) for tensor in graph.inputs]
    return [leaf.requires_grad_(graph.differentiable and leaf.is_floating_point()) for leaf in leaves]


def weighted(results: Sequence[Tensor]) -> Tensor:
    """The sum of all results that have a gradient, weighted; the weights are laid out in another order."""
    total = torch.zeros((), dtype=torch.double, device=results[0].device)
    for result in results:
        if result.requires_grad:
            shape = result.shape[::-1]
            weights = torch.randint(-4, 5, shape, generator=torch.Generator().manual_seed(result.numel())) / 4
            weights = weights.to(result.device).permute(tuple(reversed(range(result.dim()))))
            total = total + (result.double() * weights).sum()
    return total


def eager(function: Callable) -> Callable:
    return function


def results_and_gradients(
    graphs: Sequence[Graph], device: str, run: Callable[[Callable], Callable] = eager
) -> list[tuple[list[Tensor], list[Tensor]]]:
    """What each graph returns and its arguments afterwards, and the gradients of its leaves; `run` may compile."""
    functions = [graph.function() for graph in graphs]

    def together(inputs: list[list[Tensor]]) -> list[tuple[Tensor, ...]]:
        return [function(*each) for function, each in zip(functions, inputs)]

    leaves = [leaves_on(device, graph) for graph in graphs]
    inputs = [[clone(leaf) for leaf in each] for each in leaves]  # graphs write to their arguments
    results = [[*outputs, *arguments] for outputs, arguments in zip(run(together)(inputs), inputs)]
    assert all(tensor.device.type == device for each in results for tensor in each)
    total = sum(weighted(each) for each in results)
    if total.requires_grad:
        total.backward()
    gradients = [
        [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in each if leaf.requires_grad]
        for each in leaves
    ]
    return list(zip(results, gradients))


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


def draw_differentiable(source: random.Random) -> Graph:
    """A graph that eager can differentiate, with gradients that are neither all zero nor large."""
    while True:
        graph = Graph(source, differentiable=True)
        try:
            [(results, gradients)] = results_and_gradients([graph], "cpu")
        except (RuntimeError, ValueError):  # written to where autograd does not allow it
            continue
        if any(map(overlaps, results)):  # of which every device's compiled gradient is wrong
            continue
        largest = torch.stack([g.double().abs().max() for g in gradients]).max() if gradients else 0
        if 0 < largest <= (100 if graph.is_half else 10_000):  # not so if one is NaN
            return graph


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
        else:
            assert a.requires_grad == e.requires_grad, f"{a.requires_grad=}, not {e.requires_grad}: {what}"
            assert_close(graph, a, e, what)


def assert_close(graph: Graph, actual: Tensor, expected: Tensor, what: str) -> None:
    part = 0.06 if graph.is_half else 1e-3
    bound = part * max(1.0, expected.abs().max().item())
    torch.testing.assert_close(actual, expected, rtol=part, atol=bound, msg=lambda text: f"{text}: {what}")


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
    expected = results_and_gradients(graphs, device)
    torch._dynamo.reset()
    actual = results_and_gradients(
        graphs, device, functools.partial(torch.compile, fullgraph=True, dynamic=False)
    )
    for graph, (results, gradients), (expected_results, expected_gradients) in zip(graphs, actual, expected):
        assert_same(graph, results, expected_results)
        for number, (a, e) in enumerate(zip(gradients, expected_gradients, strict=True)):
            assert_close(graph, a.cpu(), e.cpu(), f"gradient {number} of\n{graph}")


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


def test_random_gradients():
    check([draw_differentiable(random.Random(seed)) for seed in range(BATCH)])


def check_many(first: int, last: int, draw: Callable[[random.Random], Graph]) -> None:
    """Checks the graphs that are drawn with these seeds; a failure does not end it."""
    failures = []
    for seed in range(first, last, BATCH):
        try:
            check([draw(random.Random(s)) for s in range(seed, min(seed + BATCH, last))])
        except AssertionError as error:
            failures.append(f"seeds {seed} to {seed + BATCH - 1}: {error}")
    assert not failures, "\n\n".join(failures)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", range(0, GRAPHS, CHUNK))
def test_many_random_graphs(first):
    check_many(first, min(first + CHUNK, GRAPHS), Graph)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", range(0, GRAPHS // 4, CHUNK))
def test_many_random_gradients(first):
    check_many(first, min(first + CHUNK, GRAPHS // 4), draw_differentiable)
