"""How simdev serves every ATen operator: ``python -m torch_simdev.coverage``.

Reads PyTorch's dispatcher and the operator layer's own registration; runs nothing.
"""

from __future__ import annotations

import argparse
import collections
import html
import json
import pathlib
import sys
from typing import NamedTuple

import torch

from . import _C

TIERS = {
    "native": "a kernel or metadata function of simdev's own",
    "stub": "ATen's operator over simdev's entry of a DispatchStub",
    "launched": "ATen's kernel for the backing device, launched on the current stream",
    "composite": "a composition of other operators",
    "synchronous": "ATen's kernel too, for which the host waits: the result's shape or value depends on data",
    "host fallback": "synchronises and runs on the host",
    "refused": "not implemented: ATen has no kernel that simdev could run, or a copy would break an alias",
}
# Which of the explicit registrations are over a stub cannot be read from the dispatcher.
_STUBS = {
    "aten::abs.out",
    "aten::angle",
    "aten::angle.out",
    "aten::logical_not.out",
    "aten::_fused_sdp_choice",
}
_KEY = "PrivateUse1"
SPARSE = "how many elements a sparse tensor has depends on data"
_OTHER_KEYS = ("CUDA", "SparseCPU", "SparseCsrCPU", "QuantizedCPU", "MkldnnCPU")
_COMPOSITE_KEYS = (
    "CompositeExplicitAutogradNonFunctional",
    "CompositeExplicitAutograd",
    "CompositeImplicitAutograd",
)


class Served(NamedTuple):
    """How one overload is served."""

    name: str
    tier: str
    reason: str


def coverage() -> list[Served]:
    """Returns, sorted by name, one `Served` for every overload in the ``aten`` namespace."""
    boxed = _C._boxed_operators()
    names = sorted(name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::"))
    return [_served(name, boxed) for name in names]


def _served(name: str, boxed: dict[str, str]) -> Served:
    def has(key: str) -> bool:
        return torch._C._dispatch_has_kernel_for_dispatch_key(name, key)

    if name in _STUBS:
        return Served(name, "stub", "")
    if tier := boxed.get(name):
        reasons = {"refused": "makes a quantized tensor", "host fallback": _why_host(name)}
        return Served(name, tier, reasons.get(tier, ""))
    if has(_KEY):
        return Served(name, "native", "")
    for key in _COMPOSITE_KEYS:
        if has(key):
            return Served(name, "composite", key)
    if has("CPU"):
        return Served(name, "refused", "returns a view")
    if has("NestedTensorPrivateUse1"):
        return Served(name, "composite", "ATen's kernel for nested tensors")
    keys = [key for key in _OTHER_KEYS if has(key)]
    return Served(name, "refused", f"only for {', '.join(keys)}" if keys else "no CPU kernel")


def _why_host(name: str) -> str:
    if name.startswith("aten::_to_sparse") or not torch._C._dispatch_has_kernel_for_dispatch_key(name, "CPU"):
        return SPARSE
    if "linalg" in name or any(
        word in name for word in ("cholesky", "geqrf", "orgqr", "ormqr", "solve", "lu_")
    ):
        return "LAPACK, whose status the host must see"
    return "no shape function"


def totals(served: list[Served]) -> dict[str, int]:
    """Returns the number of overloads in each tier, in the order of `TIERS`."""
    counts = collections.Counter(one.tier for one in served)
    return {tier: counts[tier] for tier in TIERS}


def as_text(served: list[Served]) -> str:
    """Returns a table with a line for each overload and the totals at its end."""
    width = max(len(one.name) for one in served)
    lines = [f"{one.name:{width}}  {one.tier:13}  {one.reason}".rstrip() for one in served]
    lines += ["", *(f"{count:6}  {tier}: {TIERS[tier]}" for tier, count in totals(served).items())]
    return "\n".join(lines) + "\n"


def as_json(served: list[Served]) -> str:
    """Returns {"totals": {tier: count}, "operators": {name: {"tier": ..., "reason": ...}}}."""
    operators = {one.name: {"tier": one.tier, "reason": one.reason} for one in served}
    return json.dumps({"totals": totals(served), "operators": operators}, indent=1) + "\n"


def as_html(served: list[Served]) -> str:
    """Returns a page of its own with the same table."""
    rows = "".join(
        f"<tr class='{one.tier.split()[0]}'><td>{one.name}<td>{one.tier}<td>{html.escape(one.reason)}"
        for one in served
    )
    summary = "".join(f"<li>{count} {tier}: {TIERS[tier]}" for tier, count in totals(served).items())
    return (
        "<!doctype html><meta charset='utf-8'><title>simdev operator coverage</title>"
        "<style>body{font:14px sans-serif}td{padding:0 1em}"
        ".host{background:#fe9}.refused{background:#fcc}</style>"
        f"<h1>How simdev serves ATen's operators</h1><ul>{summary}</ul><table>{rows}</table>\n"
    )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m torch_simdev.coverage", description=__doc__)
    parser.add_argument("--tier", choices=TIERS, help="only this tier")
    for name in ("text", "json", "html"):
        parser.add_argument(f"--{name}", type=pathlib.Path, metavar="FILE", help=f"write the table as {name}")
    options = parser.parse_args(argv)
    served = coverage()
    for name, render in (("text", as_text), ("json", as_json), ("html", as_html)):
        if path := getattr(options, name):
            path.write_text(render(served), encoding="utf-8")
    print(as_text([one for one in served if options.tier in (None, one.tier)]), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
