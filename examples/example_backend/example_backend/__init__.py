"""A backend of torch.compile in a package of its own: a compiler pass, then simdev's compiler.

`torch.compile(f, backend="example")` finds it by the entry point in pyproject.toml.  The pass removes multiplications
by one, and counts them in `removed`.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

removed = 0
started: float | None = None


def remove_multiplications_by_one(gm: torch.fx.GraphModule) -> None:
    """Replaces `x * 1` by x in one of Dynamo's graphs, where 1 is an integer, which changes no type."""
    global removed
    for node in list(gm.graph.nodes):
        if node.op == "call_function" and node.target is operator.mul and node.args[1] is 1:  # noqa: F632
            node.replace_all_uses_with(node.args[0])
            gm.graph.erase_node(node)
            removed += 1
    gm.recompile()


def example(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
    """Compiles a graph of Dynamo's: the pass, then simdev's compiler with the given mode and options."""
    from torch_simdev.compile.backend import simdev

    remove_multiplications_by_one(gm)
    return simdev(gm, example_inputs, **options)


def start() -> None:
    """What a real backend does once before it compiles anything: load libraries, open its device."""
    global started
    started = time.time()


# torch.compile() calls it once per process, when it has found the backend.
example._dynamo_backend_init = start  # type: ignore[attr-defined]
