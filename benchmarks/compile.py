"""The figures of torch.compile: a compiled function on simdev against the same compiled by Inductor on the CPU.

Both run in one process, alternating, warm; the medians are compared.  Rows against simdev's own eager execution say so.
What the columns mean: README.md.

    python benchmarks/compile.py [--only NAME ...] [--rounds N] [--json FILE] [--check] [--list]

`--first` instead takes the time until models of the zoo give their first result, each in a new process:
with empty caches, and with what the first process left in them.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "2")  # before PyTorch is imported, which reads it once

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import torch
import torch.nn.functional as F
from eager import CPU, Measurement, Row, Work, alternate, machine, show, verdict
from torch import Tensor
from zoo import BY_NAME

Function = Callable[..., Tensor]
SIMDEV = torch.device("simdev")


def seed(x: Tensor) -> Tensor:
    return torch.sin(x) * torch.cos(x) + torch.tanh(x)


def layernorm_gelu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.gelu(F.layer_norm(x, (x.shape[-1],), weight, bias))


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


def mlp(x: Tensor, first: Tensor, second: Tensor) -> Tensor:
    return F.gelu(F.layer_norm(x, (x.shape[-1],)) @ first) @ second


def chain(x: Tensor) -> Tensor:
    """Many small kernels, kept apart by matrix products."""
    for _ in range(25):
        x = torch.tanh(x @ x) * 0.1
    return x


def make(
    function: Function, *shapes: tuple[int, ...], compiled: bool = True, mode: str | None = None
) -> Callable[[torch.device], Work]:
    def work(device: torch.device) -> Work:
        torch.manual_seed(0)
        tensors = [torch.randn(shape).to(device) for shape in shapes]
        run = torch.compile(function, mode=mode) if compiled else function
        return lambda: run(*tensors)

    return work


def make_training(function: Function, *shapes: tuple[int, ...]) -> Callable[[torch.device], Work]:
    """Forward and backward with gradients of all inputs."""

    def work(device: torch.device) -> Work:
        torch.manual_seed(0)
        tensors = [torch.randn(shape).to(device).requires_grad_() for shape in shapes]
        run = torch.compile(function)
        return lambda: torch.autograd.grad(run(*tensors).sum(), tensors)

    return work


def against_inductor(make_work: Callable[[torch.device], Work], count: int = 1) -> Callable:
    def measure(device: torch.device, rounds: int) -> Measurement:
        return alternate([(make_work(CPU), CPU), (make_work(device), device)], rounds, count)

    return measure


def against_eager(function: Function, *shapes: tuple[int, ...]) -> Callable:
    def measure(device: torch.device, rounds: int) -> Measurement:
        works = [make(function, *shapes, compiled=compiled)(device) for compiled in (False, True)]
        return alternate([(work, device) for work in works], rounds)

    return measure


LARGE = (4096, 4096)
ROW = (8192, 1024)
VECTOR = (1024,)
ROWS = [
    Row("seed", "sin*cos+tanh, 4096x4096", 0.6, 0.35, against_inductor(make(seed, LARGE))),
    Row("seed_eager", "the same against simdev eager", 0.6, 0.4, against_eager(seed, LARGE)),
    Row(
        "layernorm",
        "layernorm+gelu, 8192x1024",
        0.8,
        0.6,
        against_inductor(make(layernorm_gelu, ROW, VECTOR, VECTOR)),
    ),
    Row("softmax", "softmax, 8192x1024", 0.8, 0.6, against_inductor(make(softmax, ROW))),
    Row("small", "64 elements, one kernel", 1.3, 1.0, against_inductor(make(seed, (64,)), 200)),
    Row("chain", "50 small operators in a graph", 1.3, 1.0, against_inductor(make(chain, (16, 16)), 50)),
    Row(
        "chain_overhead",
        "50 kernels of 64 elements in reduce-overhead",
        0.8,
        0.5,
        against_inductor(make(chain, (8, 8), mode="reduce-overhead"), 50),
    ),
    Row(
        "mlp",
        "layernorm, matmul, gelu, matmul, 2048x512",
        0.85,
        0.7,
        against_inductor(make(mlp, (2048, 512), (512, 2048), (2048, 512)), 2),
    ),
    Row(
        "mlp_train",
        "the same, forward and backward",
        0.65,
        0.5,
        against_inductor(make_training(mlp, (2048, 512), (512, 2048), (2048, 512))),
    ),
    Row(
        "layernorm_train",
        "layernorm+gelu, forward and backward",
        0.65,
        0.5,
        against_inductor(make_training(layernorm_gelu, ROW, VECTOR, VECTOR)),
    ),
]


# --- Until the first result ---------------------------------------------------------------------------------

FIRST = ["mixer", "dlrm", "graph", "wavenet"]  # models that compile within a minute


def first_result(name: str, device: str) -> float:
    """Returns the seconds from torch.compile() to the first result of a zoo model, in this process."""
    workload = BY_NAME[name].build()
    module = workload.module.to(device).eval()
    inputs = [value.to(device) for value in workload.inputs]
    with torch.no_grad():
        module(*inputs).cpu()  # starts the device
        start = time.perf_counter()
        torch.compile(module)(*inputs).cpu()
        return time.perf_counter() - start


def in_new_process(name: str, device: str, caches: str) -> float:
    """Returns what `first_result` does in a new process whose compiler keeps its caches in this folder."""
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": caches}
    command = [sys.executable, __file__, "--first-result", name, device]
    result = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return float(result.stdout.splitlines()[-1])


def measure_first(names: list[str]) -> list[tuple[Row, Measurement]]:
    """Returns the sums over the models with cold and with warm caches, and prints each model's times."""
    totals = {(caches, device): 0.0 for caches in ("cold", "warm") for device in ("cpu", "simdev")}
    for name in names:
        for device in ("cpu", "simdev"):
            with tempfile.TemporaryDirectory() as folder:
                for caches in ("cold", "warm"):
                    taken = in_new_process(name, device, folder)
                    totals[caches, device] += taken
                    print(f"{name:<10} {device:<7} {caches} caches {taken:7.2f} s", flush=True)
    found = []
    for caches, needed in (("cold", 1.15), ("warm", 1.1)):
        cpu, simdev = totals[caches, "cpu"], totals[caches, "simdev"]
        measured = Measurement(cpu, simdev, simdev / cpu)
        row = Row(caches, f"first results, {caches} caches", needed, 1.0, lambda *_, it=measured: it)
        found.append((row, measured))
    return found


def measurements(options: argparse.Namespace) -> Iterator[tuple[Row, Measurement]]:
    """Yields what the command line asks for."""
    if options.first is not None:
        yield from measure_first(options.first or FIRST)
        return
    for row in ROWS:
        if row.key in options.only:
            torch._dynamo.reset()
            yield row, row.measure(SIMDEV, options.rounds)


def main() -> int:
    keys = [row.key for row in ROWS]
    parser = argparse.ArgumentParser(
        description="Compare compiled code on simdev with Inductor's on the CPU."
    )
    parser.add_argument("--only", nargs="+", choices=keys, default=keys, metavar="NAME", help="rows to run")
    parser.add_argument("--rounds", type=int, default=21, help="measurements per row (default: 21)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there as well")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a needed figure is missed")
    parser.add_argument("--list", action="store_true", help="list the rows and exit")
    parser.add_argument(
        "--first",
        nargs="*",
        choices=sorted(BY_NAME),
        metavar="MODEL",
        help=f"time until the first result (default: {' '.join(FIRST)})",
    )
    parser.add_argument("--first-result", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.first_result:
        print(first_result(*options.first_result))
        return 0
    if options.list:
        print("\n".join(f"{row.key:<16} {row.work}" for row in ROWS))
        return 0

    facts = machine()
    print(", ".join(f"{name} {value}" for name, value in facts.items()))
    print(f"{'work':<44}{'reference':>12}{'simdev':>12}{'ratio':>9}{'needed':>8}{'aim':>7}  verdict")
    results = []
    for row, measured in measurements(options):
        outcome = verdict(row, measured.ratio)
        results.append({"key": row.key, "work": row.work, **asdict(measured), "verdict": outcome})
        times = f"{show(measured.reference, row.key):>12}{show(measured.device, row.key):>12}"
        print(
            f"{row.work:<44}{times}{measured.ratio:>9.3f}{row.needed:>8}{row.aim:>7}  {outcome}", flush=True
        )
    if options.json:
        options.json.write_text(json.dumps({"machine": facts, "rows": results}, indent=2) + "\n")
    return int(options.check and any(result["verdict"] == "MISSED" for result in results))


if __name__ == "__main__":
    sys.exit(main())
