"""Finding the station of torch.compile where a wrong result starts.

A function is run through one station more each time, and each time compared with itself uncompiled.  The first station
whose results differ, or that fails, holds the fault: those before it have been shown to be right.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._functorch import config as functorch_config
from torch._inductor import config as inductor_config
from torch.utils import _pytree as pytree

Function = Callable[..., Any]


@dataclass(frozen=True)
class Station:
    """A way to run a function that has one station of the compiler more than the way before."""

    name: str
    adds: str  # what may be wrong when this station is the first wrong one
    prepare: Callable[[Function], Function]  # gives the function that is run
    on_cpu: bool = False  # runs with everything moved to the CPU
    against_cpu: bool = (
        False  # compared with the function uncompiled on the CPU, not on the arguments' device
    )
    accelerator_only: bool = False  # says nothing new about a function of CPU tensors


def _compiled(backend: str) -> Callable[[Function], Function]:
    return lambda function: torch.compile(function, backend=backend)


STATIONS = (
    Station(
        "device",
        "the device's operators, uncompiled (csrc/aten)",
        lambda function: function,
        against_cpu=True,
        accelerator_only=True,
    ),
    Station("eager", "Dynamo: what it captured, its guards, its graph breaks", _compiled("eager")),
    Station(
        "aot_eager", "AOTAutograd: functionalisation, the forward and backward graphs", _compiled("aot_eager")
    ),
    Station(
        "aot_eager_decomp_partition",
        "decompositions into Inductor's operators, and the partition into forward and backward",
        _compiled("aot_eager_decomp_partition"),
    ),
    Station(
        "inductor",
        "Inductor's graph passes, lowerings and scheduler, seen on the CPU with its own code generation",
        _compiled("inductor"),
        on_cpu=True,
    ),
    Station(
        "simdev",
        "simdev's code generation, launches and memory (torch_simdev/compile)",
        _compiled("simdev"),
        accelerator_only=True,
    ),
)


@dataclass(frozen=True)
class Finding:
    """What one station gave."""

    station: Station
    verdict: str  # "right", "wrong", "failed" or "skipped"
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.station.name:<28}{self.verdict:<9}{self.detail}".rstrip()


@dataclass
class Bisection:
    """The answer of `bisect`: what each station gave, up to the first that is wrong."""

    findings: list[Finding] = field(default_factory=list)

    @property
    def culprit(self) -> Station | None:
        """The first station whose result is wrong or that failed; None if all are right."""
        bad = (finding.station for finding in self.findings if finding.verdict in ("wrong", "failed"))
        return next(bad, None)

    def __str__(self) -> str:
        lines = [str(finding) for finding in self.findings]
        culprit = self.culprit
        lines.append(
            "every station is right"
            if culprit is None
            else f"the wrong result starts at {culprit.name}: {culprit.adds}"
        )
        return "\n".join(lines)


def bisect(
    function: Function,
    *args: Any,
    stations: Sequence[Station] = STATIONS,
    atol: float | None = None,
    rtol: float | None = None,
) -> Bisection:
    """Names the station of torch.compile where a wrong result of a function starts.

    Compared are the results, the gradients of arguments and parameters (of the sum of all results), and what becomes of
    the arguments and buffers.  Each time the function runs on copies of its arguments and, if it is a module, of
    itself, with the random numbers of one seed; nothing is taken from the compiler's caches or put into them.

    Arguments:
        function: a function or module, uncompiled.
        args: its arguments, on the device in question.
        stations: the ways to run it, in order.
        atol, rtol: tolerances, those of torch.testing.assert_close unless given; they come as a pair.

    Returns a `Bisection`, which prints as a table.  A station is skipped where its comparison would say nothing: those
    of an accelerator for a function of CPU tensors, those on the CPU for a function that uses other tensors of a device
    than its arguments and parameters, and the comparison of two devices where random numbers are drawn.

    Raises what the function itself raises uncompiled.
    """
    compare = functools.partial(torch.testing.assert_close, atol=atol, rtol=rtol)
    reference = _run(function, args)
    accelerators = [tensor.device for tensor in _tensors((function, args)) if tensor.device.type != "cpu"]
    on_accelerator = bool(accelerators)
    host, host_error, draws = None, "", False
    if on_accelerator:
        draws = _draws_random_numbers(function, args, accelerators[0])
        try:
            host = _run(function, args, on_cpu=True)
        except Exception as error:
            host_error = f"uncompiled on the CPU it fails: {_first_line(error)}"
    else:
        host = reference

    result = Bisection()
    for station in stations:
        needs_host = station.on_cpu or station.against_cpu
        if station.accelerator_only and not on_accelerator:
            reason = "no argument is on an accelerator"
        elif needs_host and host is None:
            reason = host_error
        elif station.against_cpu and draws:
            reason = "the function draws random numbers, which differ between devices"
        else:
            reason = ""
        if reason:
            result.findings.append(Finding(station, "skipped", reason))
            continue
        try:
            actual = _run(function, args, station.prepare, on_cpu=station.on_cpu)
        except Exception as error:
            result.findings.append(Finding(station, "failed", _first_line(error)))
            break
        wrong = _difference(actual, host if needs_host else reference, compare)
        result.findings.append(Finding(station, "wrong" if wrong else "right", wrong))
        if wrong:
            break
    return result


def _tensors(value: Any) -> list[torch.Tensor]:
    tensors: list[torch.Tensor] = []
    for leaf in pytree.tree_leaves(value):
        if isinstance(leaf, torch.nn.Module):
            tensors += [*leaf.parameters(), *leaf.buffers()]
        elif isinstance(leaf, torch.Tensor):
            tensors.append(leaf)
    return tensors


def _draws_random_numbers(function: Function, args: Sequence[Any], device: torch.device) -> bool:
    state = lambda: torch.get_device_module(device).get_rng_state(device)
    torch.manual_seed(0)
    before = state()
    _forward_and_backward(*_copies(function, args, on_cpu=False))
    return not torch.equal(before, state())


def _copies(function: Function, args: Sequence[Any], on_cpu: bool) -> tuple[Function, Sequence[Any]]:
    """Copies of a function and its arguments, with leaf tensors where there were tensors that need gradients."""

    def copied(value: Any) -> Any:
        if isinstance(value, torch.nn.Module):
            return copy.deepcopy(value).cpu() if on_cpu else copy.deepcopy(value)
        if isinstance(value, torch.Tensor):
            # Strides, offset and overlaps are part of what a compiler sees.
            storage = value.untyped_storage()
            storage = storage.cpu() if on_cpu and value.device.type != "cpu" else storage.clone()
            clone = torch.empty(0, dtype=value.dtype, device=storage.device)
            clone.set_(storage, value.storage_offset(), value.size(), value.stride())
            clone = clone.conj() if value.is_conj() else clone
            clone = torch._neg_view(clone) if value.is_neg() else clone
            return clone.requires_grad_(value.requires_grad)
        if on_cpu and isinstance(value, torch.device):
            return torch.device("cpu")
        return value

    return pytree.tree_map(copied, (function, tuple(args)))


def _run(
    function: Function,
    args: Sequence[Any],
    prepare: Callable[[Function], Function] = lambda function: function,
    on_cpu: bool = False,
) -> dict[str, list[torch.Tensor]]:
    """Runs copies of a function on copies of its arguments; returns all that it computes, by kind, on the CPU."""
    own, own_args = _copies(function, args, on_cpu)
    torch._dynamo.reset()
    # Whatever a cache holds was made by stations as they were then; inductor's own random numbers are not eager's.
    with (
        functorch_config.patch(enable_autograd_cache=False),
        inductor_config.patch(fx_graph_cache=False, fx_graph_remote_cache=False, fallback_random=True),
    ):
        torch.manual_seed(0)
        results = _forward_and_backward(prepare(own), own_args, own)
    torch._dynamo.reset()
    return results


def _forward_and_backward(
    function: Function, args: Sequence[Any], module: Any = None
) -> dict[str, list[torch.Tensor]]:
    outputs = [leaf for leaf in pytree.tree_leaves(function(*args)) if isinstance(leaf, torch.Tensor)]
    differentiable = [output for output in outputs if output.requires_grad]
    leaves = [tensor for tensor in _tensors((args, module)) if tensor.requires_grad]
    gradients: list[torch.Tensor] = []
    if differentiable and leaves:
        seeds = [torch.ones_like(output) for output in differentiable]
        found = torch.autograd.grad(differentiable, leaves, seeds, allow_unused=True)
        gradients = [torch.zeros(()) if gradient is None else gradient for gradient in found]
    host = lambda tensors: [tensor.detach().cpu() for tensor in tensors]
    return {
        "result": host(outputs),
        "gradient": host(gradients),
        "argument": host(_tensors(args)),
        "buffer": host(module.buffers()) if isinstance(module, torch.nn.Module) else [],
    }


def _difference(actual: dict[str, list[torch.Tensor]], expected: Any, compare: Callable[..., None]) -> str:
    for kind, values in expected.items():
        if len(actual[kind]) != len(values):
            return f"{len(actual[kind])} {kind}s where {len(values)} were expected"
        for position, (a, e) in enumerate(zip(actual[kind], values)):
            try:
                compare(a, e, equal_nan=True)
            except AssertionError as error:
                what = " ".join(str(error).split())
                return f"{kind} {position}: {what[:150]}"
    return ""


def _first_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else ''}"
