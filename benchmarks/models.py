"""The figures of the model zoo: real architectures, inference and one training step, eager and compiled.

Per model, simdev and the CPU run the same weights and inputs in one process, alternating, and their values and
gradients are compared before anything is timed.  Beside them a second process runs CPU eager under a malloc that keeps
its memory, which tells how much of a gain is memory's.  The models are in zoo/; how to read it: README.md.

    python benchmarks/models.py [--only NAME ...] [--mode eager|compiled|all] [--rounds N] [--isolate]
    [--json FILE]
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "2")  # before PyTorch is imported, which reads it once
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is downloaded; an attempt is an error

import argparse
import copy
import json
import logging
import math
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parent))
from eager import CPU, machine, seconds
from zoo import ARCHITECTURES, BY_NAME, Workload

PHASES = ("inference", "training")
# What a value may differ by, as a part of the tensor's norm.  Eager runs the CPU's own kernels, so what is left is the
# order of sums; compiled kernels contract and vectorise differently, and so do the CPU's compiled ones.
TOLERANCES = {"eager": {"values": 1e-5, "gradients": 1e-4}, "compiled": {"values": 1e-4, "gradients": 2e-3}}
# A gradient that is zero but for rounding (a bias before a batch norm) counts against this part of the largest one.
NEGLIGIBLE = 1e-3
GIGABYTES_16 = str(1 << 34)
KEPT_MALLOC = ":".join(
    [
        f"glibc.malloc.mmap_threshold={GIGABYTES_16}",
        f"glibc.malloc.trim_threshold={GIGABYTES_16}",
        "glibc.malloc.arena_max=1",  # other threads' arenas are too small for large blocks and would map them
        "glibc.malloc.hugetlb=1",
    ]
)
KEPT = "cpu eager, memory kept"


class Step:
    """A workload on one device: `inference()` and `training()` are what is timed."""

    def __init__(self, workload: Workload, device: torch.device, compiled: bool) -> None:
        self.device = device
        self.loss_function = workload.loss
        # One module per phase: in one that is switched to and fro, every switch would invalidate compiled code.
        self.evaluated = copy.deepcopy(workload.module).to(device).eval()
        self.trained = copy.deepcopy(workload.module).to(device).train()
        self.inputs = tuple(value.to(device) for value in workload.inputs)
        self.target = workload.target.to(device)
        # Momentum, not Adam: Adam divides by the gradient's size and would turn rounding into different weights.
        self.optimizer = torch.optim.SGD(self.trained.parameters(), lr=1e-3, momentum=0.9)
        self.forward: Callable[..., Tensor] = self.evaluated
        self.loss: Callable[[], Tensor] = self._loss
        if compiled:
            self.forward = torch.compile(self.evaluated)
            self.loss = torch.compile(self._loss)

    def _loss(self) -> Tensor:
        return self.loss_function(self.trained(*self.inputs), self.target)

    def inference(self) -> Tensor:
        with torch.no_grad():
            return self.forward(*self.inputs)

    def training(self) -> Tensor:
        self.optimizer.zero_grad()
        loss = self.loss()
        loss.backward()
        self.optimizer.step()
        return loss

    def seconds(self, phase: str) -> float:
        return seconds(getattr(self, phase), self.device)


def state(module: nn.Module) -> dict[str, Tensor]:
    """Gradients and buffers (statistics of batch norm) after a training step, on the CPU."""
    gradients = {f"gradient of {name}": p.grad for name, p in module.named_parameters() if p.grad is not None}
    buffers = {name: value for name, value in module.named_buffers() if value.is_floating_point()}
    return {name: value.detach().cpu().double() for name, value in {**gradients, **buffers}.items()}


def difference(actual: Tensor, expected: Tensor, least: float = 0.0) -> float:
    """Norm of the difference as a part of the expected norm, or of `least` if that is larger."""
    actual, expected = actual.detach().cpu().double(), expected.detach().cpu().double()
    if actual.shape != expected.shape:
        return math.inf
    distance = (actual - expected).norm().item()
    if math.isnan(distance):
        return math.inf
    return distance / max(expected.norm().item(), least) if distance else 0.0


def check(reference: Step, step: Step, mode: str, phase: str, slack: float = 1.0) -> dict[str, float]:
    """Runs the phase once on both and compares; raises AssertionError beyond the tolerance.

    `slack` is the architecture's `gradient_slack`; buffers count as gradients here.
    """
    tolerance = dict(TOLERANCES[mode])
    tolerance["gradients"] = max(tolerance["gradients"], slack * TOLERANCES["eager"]["gradients"])
    expected, actual = getattr(reference, phase)(), getattr(step, phase)()
    found = {"values": difference(actual, expected)}
    where = {"values": "output" if phase == "inference" else "loss"}
    if phase == "training":
        theirs, ours = state(reference.trained), state(step.trained)
        if theirs.keys() != ours.keys():
            raise AssertionError(f"other gradients than the CPU: {sorted(theirs.keys() ^ ours.keys())}")
        least = NEGLIGIBLE * max(value.norm().item() for value in theirs.values())
        differences = {name: difference(ours[name], value, least) for name, value in theirs.items()}
        where["gradients"] = max(differences, key=differences.__getitem__)
        found["gradients"] = differences[where["gradients"]]
    for kind, value in found.items():
        if value > tolerance[kind]:
            raise AssertionError(
                f"{mode} {phase}: {kind} differ by {value:.1e} ({where[kind]}), {tolerance[kind]} allowed"
            )
    return found


# --- CPU eager under a malloc that keeps its memory, in a process of its own --------------------------------


class KeptMalloc:
    """A process that times a phase whenever asked, so that its measurements alternate with ours."""

    def __init__(self) -> None:
        environment = {**os.environ, "GLIBC_TUNABLES": KEPT_MALLOC, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
        command = [sys.executable, __file__, "--serve"]
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, *words: str) -> float:
        assert self.process.stdin and self.process.stdout
        print(*words, file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the process with the other malloc ended with {self.process.wait()}")
        return float(answer)

    def close(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()


def serve() -> None:
    """The other side of KeptMalloc: `build NAME` or `time PHASE` a line, answered by seconds."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints must not be taken for an answer
    step = None
    for line in sys.stdin:
        verb, argument = line.split()
        if verb == "build":
            step = Step(BY_NAME[argument].build(), CPU, compiled=False)
        assert step is not None
        print(step.seconds(argument) if verb == "time" else 0.0, file=answers, flush=True)


def allocated(device: torch.device) -> int:
    """Bytes that tensors on the accelerator take now; 0 for the CPU, which does not count."""
    return 0 if device.type == "cpu" else torch.accelerator.memory_allocated()


def peak_memory(step: Step, before: int) -> int:
    """Bytes that the training step takes at its peak, its weights included; `before` were there without it."""
    torch.accelerator.reset_peak_memory_stats()
    step.training()
    torch.accelerator.synchronize()
    return torch.accelerator.max_memory_allocated() - before


# --- Measuring ----------------------------------------------------------------------------------------------


class Progress:
    """A bar on standard error, if that is a terminal."""

    WIDTH = 24

    def __init__(self, total: int) -> None:
        self.total, self.done = total, 0

    def show(self, doing: str) -> None:
        if sys.stderr.isatty():
            filled = self.WIDTH * self.done // self.total
            bar = "#" * filled + "." * (self.WIDTH - filled)
            print(f"\r\033[K[{bar}] {self.done}/{self.total} {doing}", end="", file=sys.stderr, flush=True)

    def advance(self) -> None:
        self.done += 1
        self.show("")

    def clear(self) -> None:
        if sys.stderr.isatty():
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def measure(
    name: str, device: torch.device, modes: list[str], rounds: int, kept: KeptMalloc | None, say: Callable
) -> dict[str, Any]:
    """Compares and times one model; returns its entry of the JSON file."""
    workload = BY_NAME[name].build()
    result: dict[str, Any] = {"name": name, "differences": {}, "seconds": {}, "first": {}, "peak": {}}
    for phase in PHASES:
        runs: dict[str, Callable[[], float]] = {}
        reference = None
        for mode in modes:
            compiled = mode == "compiled"
            for where in (CPU, device):
                label = f"{where.type} {mode}"
                say(f"{name}: {phase}, {label}")
                before = allocated(where)
                step = Step(workload, where, compiled)
                if reference is None:  # the CPU's eager values judge both modes
                    reference = step if not compiled else Step(workload, CPU, compiled=False)
                if step is not reference:
                    judge = Step(workload, CPU, compiled=False)
                    start = time.perf_counter()
                    found = check(judge, step, mode, phase, BY_NAME[name].gradient_slack)
                    result["first"][f"{phase}, {label}"] = time.perf_counter() - start
                    result["differences"][f"{phase}, {label}"] = found
                if phase == "training" and where.type != "cpu":
                    result["peak"][label] = peak_memory(step, before)
                runs[label] = lambda step=step, phase=phase: step.seconds(phase)
        if kept:
            say(f"{name}: {phase}, {KEPT}")
            kept.ask("build", name)
            runs[KEPT] = lambda phase=phase: kept.ask("time", phase)
        say(f"{name}: timing {phase}")
        times: dict[str, list[float]] = {label: [] for label in runs}
        for turn in range(rounds + 2):  # two to warm up
            for label, run in runs.items():
                taken = run()
                if turn >= 2:
                    times[label].append(taken)
        result["seconds"][phase] = {label: statistics.median(column) for label, column in times.items()}
    return result


# Name of a ratio: what is divided by what.
RATIOS = {
    "eager": ("{device} eager", "cpu eager"),
    "eager/kept": ("{device} eager", KEPT),
    "compiled": ("{device} compiled", "cpu compiled"),
    "compiled/eager": ("{device} compiled", "cpu eager"),
}


def ratios(result: dict[str, Any], device: torch.device) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for phase, times in result["seconds"].items():
        pairs = {name: (over.format(device=device.type), under) for name, (over, under) in RATIOS.items()}
        found[phase] = {
            name: times[over] / times[under]
            for name, (over, under) in pairs.items()
            if over in times and under in times
        }
    eager, compiled = (result["peak"].get(f"{device.type} {mode}") for mode in ("eager", "compiled"))
    if eager and compiled:
        found["training"]["memory"] = compiled / eager
    return found


def geomeans(results: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    columns: dict[str, dict[str, list[float]]] = {phase: {} for phase in PHASES}
    for result in results:
        for phase, values in result["ratios"].items():
            for name, value in values.items():
                columns[phase].setdefault(name, []).append(value)
    return {
        phase: {name: statistics.geometric_mean(values) for name, values in columns[phase].items()}
        for phase in PHASES
    }


def row(title: str, found: dict[str, dict[str, float]], reference: dict[str, float]) -> str:
    cells = [f"{title:<10}"]
    for phase in PHASES:
        cells.append(f"{reference[phase] * 1e3:>9.1f}" if phase in reference else " " * 9)
        names = [*RATIOS, "memory"] if phase == "training" else RATIOS
        cells += [f"{found[phase][name]:>9.2f}" if name in found[phase] else " " * 9 for name in names]
    return " ".join(cells)


def header() -> str:
    cells = [f"{'model':<10}"]
    for phase in PHASES:
        cells += [
            f"{phase[:5] + ' ms':>9}",
            *(f"{name[:9]:>9}" for name in ("eager", "/kept", "compiled", "/eager")),
        ]
    cells.append(f"{'memory':>9}")
    return " ".join(cells)


def in_own_process(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """What `measure` returns, from a process that ran this model alone."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "result.json"
        command = [sys.executable, __file__, "--only", name, "--json", str(file), "--mode", options.mode]
        command += ["--rounds", str(options.rounds), "--device", options.device]
        command += [] if options.kept else ["--no-kept"]
        ended = subprocess.run(command, capture_output=True, text=True)
        if not file.exists():
            last = (ended.stderr.strip().splitlines() or [""])[-1]
            return {"name": name, "error": f"exit status {ended.returncode}: {last}"}
        return json.loads(file.read_text())["models"][0]


@contextmanager
def quiet() -> Iterator[None]:
    """Without transformers' advice to install kernels of other vendors, and Inductor's about float32 matmuls."""
    logging.getLogger("transformers").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def main() -> int:
    names = [architecture.name for architecture in ARCHITECTURES]
    parser = argparse.ArgumentParser(description="Compare simdev with the CPU on the model zoo.")
    parser.add_argument(
        "--only", nargs="+", choices=names, default=names, metavar="NAME", help="models to run"
    )
    parser.add_argument("--mode", choices=("eager", "compiled", "all"), default="eager")
    parser.add_argument("--rounds", type=int, default=7, help="measurements per figure (default: 7)")
    parser.add_argument("--isolate", action="store_true", help="run each model in a process of its own")
    parser.add_argument(
        "--no-kept", dest="kept", action="store_false", help="leave out the malloc that keeps memory"
    )
    parser.add_argument("--device", default="simdev", help="device to compare (default: simdev)")
    parser.add_argument("--json", type=Path, default=Path(__file__).parent / "models.json", metavar="FILE")
    parser.add_argument("--list", action="store_true", help="list the models and exit")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.list:
        print("\n".join(f"{each.name:<10} {each.describes}" for each in ARCHITECTURES))
        return 0
    if options.serve:
        with quiet():
            serve()
        return 0

    device = torch.device(options.device)
    modes = ["eager", "compiled"] if options.mode == "all" else [options.mode]
    facts = machine()
    print(", ".join(f"{name} {value}" for name, value in facts.items()))
    print(header(), flush=True)
    progress = Progress(len(options.only))
    # Eager's figure only: compiled code under another malloc is not what anyone compares with.
    kept = KeptMalloc() if options.kept and "eager" in modes and not options.isolate else None
    results: list[dict[str, Any]] = []
    with quiet():
        for name in options.only:
            progress.show(name)
            if options.isolate:
                result = in_own_process(name, options)
            else:
                try:
                    result = measure(name, device, modes, options.rounds, kept, progress.show)
                    result["ratios"] = ratios(result, device)
                except Exception as error:
                    lines = str(error).strip().splitlines() or [""]
                    result = {"name": name, "error": f"{type(error).__name__}: {lines[0]}"}
                torch._dynamo.reset()
            results.append(result)
            progress.clear()
            if "error" in result:
                print(f"{name:<10} {result['error']}", flush=True)
            else:
                reference = {
                    phase: times.get("cpu eager", times.get("cpu compiled"))
                    for phase, times in result["seconds"].items()
                }
                print(row(name, result["ratios"], reference), flush=True)
            progress.advance()
    if kept:
        kept.close()
    progress.clear()
    good = [result for result in results if "error" not in result]
    means = geomeans(good)
    print(row("geomean", means, {}))
    document = {"machine": facts, "device": options.device, "geomeans": means, "models": results}
    options.json.write_text(json.dumps(document, indent=2) + "\n")
    return int(len(good) < len(results))


if __name__ == "__main__":
    sys.exit(main())
