"""Backends in a chain: the first that compiles a graph is taken, the failures of those before it are logged."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._dynamo.backends.registry import lookup_backend
from torch._dynamo.exc import RestartAnalysis, SkipFrame

log = logging.getLogger(__name__)


def compose(*backends: str | Callable[..., Any]) -> Callable[..., Any]:
    """Returns a backend that tries others in order, for each graph anew.

        torch.compile(f, backend=compose("simdev", "aot_eager", "eager"))

    Arguments:
        backends: names or backends.

    What a backend compiles only when it is first needed, as AOTAutograd may do with a backward graph, is out of reach:
    its failure reaches the caller.  So are errors of the compiled code when it runs.

    Compiling raises RuntimeError, with what each said, when none compiles a graph.  Raises ValueError without backends,
    and what torch.compile raises for a name that it does not know.
    """
    if not backends:
        raise ValueError("compose() needs at least one backend")
    chain = [(_name(backend), lookup_backend(backend)) for backend in backends]

    def composed(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **kwargs: Any) -> Any:
        failures: list[tuple[str, Exception]] = []
        for name, backend in chain:
            try:
                # A backend owns its graph, and one that fails may leave it half changed.
                compiled = backend(_copy(gm), example_inputs, **kwargs)
            except (RestartAnalysis, SkipFrame):  # not failures: Dynamo asks for another graph
                raise
            except Exception as error:
                failures.append((name, error))
                log.warning("backend %s did not compile a graph: %s: %s", name, type(error).__name__, error)
            else:
                if failures:
                    log.warning("backend %s compiled the graph", name)
                return compiled
        what = "; ".join(f"{name}: {type(error).__name__}: {error}" for name, error in failures)
        raise RuntimeError(f"No backend compiled the graph. {what}") from failures[0][1]

    def initialise() -> None:
        for _, backend in chain:
            if (own := getattr(backend, "_dynamo_backend_init", None)) is not None:
                own()

    composed.__name__ = "composed_" + "_".join(name for name, _ in chain)
    composed._dynamo_backend_init = initialise  # type: ignore[attr-defined]
    return composed


def _name(backend: str | Callable[..., Any]) -> str:
    return backend if isinstance(backend, str) else getattr(backend, "__name__", type(backend).__name__)


def _copy(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Copies a graph with its nodes, not its parameters."""
    result = copy.copy(gm)
    result.graph = copy.deepcopy(gm.graph)
    # What Dynamo notes on a graph and its nodes for those who compile it.
    for original, copied in ((gm, result), *zip(gm.graph.nodes, result.graph.nodes)):
        for name, value in vars(original).items():
            if name.startswith("_dynamo") or original is gm:
                copied.__dict__.setdefault(name, value)
    return result
