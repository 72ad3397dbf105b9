"""The figures of eager execution: what simdev takes compared with CPU eager in the same process.

Each row runs the same work on both, alternating, and compares medians; rows about a promise other than speed
(returning early, overlap, peak memory, import time) measure it directly.  What the rows mean and how to read
the verdicts: README.md.

    python benchmarks/eager.py [--only NAME ...] [--rounds N] [--json FILE] [--check] [--list]
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "2")  # before PyTorch is imported, which reads it once

import argparse
import copy
import ctypes
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))
import train_digits

CPU = torch.device("cpu")
MIB = 1 << 20
ALLOCATION_UNIT = 512  # bytes to which the caching allocator rounds a request

Work = Callable[[], object]


def synchronize(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def seconds(work: Work, device: torch.device, count: int = 1) -> float:
    """Time of `count` calls and of waiting until the device has finished them."""
    synchronize(device)
    start = time.perf_counter()
    for _ in range(count):
        work()
    synchronize(device)
    return time.perf_counter() - start


@dataclass(frozen=True)
class Row:
    """A figure: how to measure it, and which values are good."""

    key: str  # for --only
    work: str
    needed: float
    aim: float
    measure: Callable[[torch.device, int], Measurement]
    unit: str = "x"  # of the ratio


@dataclass(frozen=True)
class Measurement:
    reference: float  # seconds, unless the row says otherwise
    device: float
    ratio: float


def compare(make: Callable[[torch.device], Work], count: int = 1, warmup: int = 3) -> Callable:
    """Measures what `make` returns for the device against what it returns for the CPU, alternating."""

    def measure(device: torch.device, rounds: int) -> Measurement:
        works = {CPU: make(CPU), device: make(device)}
        return alternate([(works[CPU], CPU), (works[device], device)], rounds, count, warmup)

    return measure


def alternate(
    pairs: list[tuple[Work, torch.device]], rounds: int, count: int = 1, warmup: int = 3
) -> Measurement:
    for work, device in pairs:
        for _ in range(warmup):
            seconds(work, device, count)
    times: list[list[float]] = [[], []]
    for _ in range(rounds):
        for column, (work, device) in zip(times, pairs):
            column.append(seconds(work, device, count) / count)
    reference, ours = (statistics.median(column) for column in times)
    return Measurement(reference, ours, ours / reference)


# --- Operators ----------------------------------------------------------------------------------------------


def make_small_add(device: torch.device) -> Work:
    a, b = torch.rand(16).to(device), torch.rand(16).to(device)
    return lambda: a + b


def make_item(device: torch.device) -> Work:
    a, b = torch.rand(1).to(device), torch.rand(1).to(device)
    return lambda: (a + b).item()


def make_view(device: torch.device) -> Work:
    a = torch.rand(16).to(device)
    return lambda: a.view(4, 4)


def make_large_add(device: torch.device) -> Work:
    a, b = torch.rand(4096, 4096).to(device), torch.rand(4096, 4096).to(device)
    return lambda: a + b


def make_pointwise(device: torch.device) -> Work:
    x = torch.rand(4096, 4096).to(device)
    return lambda: torch.sin(x) * torch.cos(x) + torch.tanh(x)


def make_matmul(device: torch.device) -> Work:
    a, b = torch.rand(2048, 2048).to(device), torch.rand(2048, 2048).to(device)
    return lambda: a @ b


# --- Copies -------------------------------------------------------------------------------------------------


def measure_copy(to_device: bool) -> Callable[[torch.device, int], Measurement]:
    """64 MiB between pinned and device memory against one memmove of as much between host buffers."""

    def measure(device: torch.device, rounds: int) -> Measurement:
        size = 64 * MIB
        host = torch.ones(size, dtype=torch.uint8).pin_memory()
        other = torch.ones(size, dtype=torch.uint8)
        chip = torch.ones(size, dtype=torch.uint8, device=device)
        source, target = (host, chip) if to_device else (chip, host)

        def memmove() -> None:
            ctypes.memmove(other.data_ptr(), host.data_ptr(), size)

        def copy_() -> None:
            target.copy_(source, non_blocking=True)

        return alternate([(memmove, CPU), (copy_, device)], rounds)

    return measure


# --- Training steps -----------------------------------------------------------------------------------------


def make_mlp(optimizer: type[torch.optim.Optimizer]) -> Callable[[torch.device], Work]:
    def make(device: torch.device) -> Work:
        torch.manual_seed(0)
        width, batch = 512, 64
        layers = [
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, 10),
        ]
        model = nn.Sequential(*layers).to(device)
        update = optimizer(model.parameters(), lr=1e-3)
        x, y = torch.rand(batch, width).to(device), torch.randint(0, 10, (batch,)).to(device)

        def step() -> None:
            update.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            update.step()

        return step

    return make


def make_cnn(device: torch.device) -> Work:
    torch.manual_seed(0)
    train, test = train_digits.load_digits()
    trainer = train_digits.Trainer(device, train_digits.DigitsNet(), train, test, epochs=10_000)
    index = torch.arange(train_digits.BATCH).to(device)
    return lambda: trainer.step(index)


# --- Promises other than speed ------------------------------------------------------------------------------


def measure_return(device: torch.device, rounds: int) -> Measurement:
    """How soon a 2048x2048 matmul returns to the caller, as a part of the time it takes."""
    work = make_matmul(device)
    seconds(work, device, 3)
    returned, finished = [], []
    for _ in range(rounds):
        synchronize(device)
        start = time.perf_counter()
        work()
        returned.append(time.perf_counter() - start)
        synchronize(device)
        finished.append(time.perf_counter() - start)
    whole, early = statistics.median(finished), statistics.median(returned)
    return Measurement(whole, early, early / whole)


def measure_overlap(device: torch.device, rounds: int) -> Measurement:
    """Two streams that each sleep, against one stream that sleeps once."""
    module = torch.get_device_module(device)
    streams = [torch.Stream(device), torch.Stream(device)]

    def sleep_on(used: Iterable[torch.Stream]) -> Work:
        def work() -> None:
            for stream in used:
                with stream:
                    module._sleep(20)

        return work

    return alternate([(sleep_on(streams[:1]), device), (sleep_on(streams), device)], min(rounds, 10))


class LiveStorages(TorchDispatchMode):
    """Adds up, after every operator, the storages on a device that are still referenced."""

    def __init__(self, device: torch.device, known: Iterable[Tensor]) -> None:
        super().__init__()
        self.device = device
        self.live: dict[int, tuple[StorageWeakRef, int]] = {}
        self.peak = 0
        for tensor in known:
            self.add(tensor)

    def add(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage.device.type == self.device.type and storage.nbytes():
            rounded = -(-storage.nbytes() // ALLOCATION_UNIT) * ALLOCATION_UNIT
            reference = StorageWeakRef(storage)
            self.live[reference.cdata] = (reference, rounded)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self.add(leaf)
        self.live = {key: pair for key, pair in self.live.items() if not pair[0].expired()}
        self.peak = max(self.peak, sum(size for _, size in self.live.values()))
        return result


def measure_peak(device: torch.device, rounds: int) -> Measurement:
    """Peak allocated bytes of a training step against the largest sum of its live tensors."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    model = copy.deepcopy(model).to(device)
    update = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    x, y = torch.rand(64, 512).to(device), torch.randint(0, 10, (64,)).to(device)

    def step() -> None:
        update.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        update.step()

    step()  # creates gradients and momenta
    synchronize(device)
    state = [value for slot in update.state.values() for value in slot.values() if isinstance(value, Tensor)]
    known = [x, y, *model.parameters(), *(p.grad for p in model.parameters()), *state]
    others = torch.accelerator.memory_allocated(device)
    torch.accelerator.reset_peak_memory_stats(device)
    with LiveStorages(device, known) as live:
        others -= sum(size for _, size in live.live.values())  # what earlier rows left alive
        step()
    synchronize(device)
    peak = torch.accelerator.max_memory_allocated(device) - others
    return Measurement(live.peak, peak, peak / live.peak)


def measure_import(device: torch.device, rounds: int) -> Measurement:
    """`import torch` in new processes with the package loaded by its entry point, and without."""
    code = "import time; t = time.perf_counter(); import torch; print(time.perf_counter() - t)"

    def import_seconds(autoload: str) -> float:
        environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": autoload}
        run = [sys.executable, "-c", code]
        return float(subprocess.run(run, env=environment, check=True, capture_output=True, text=True).stdout)

    times: dict[str, list[float]] = {"0": [], "1": []}
    for _ in range(max(5, min(rounds, 11))):
        for autoload, column in times.items():
            column.append(import_seconds(autoload))
    without, loaded = (statistics.median(column) for column in times.values())
    return Measurement(without, loaded, (loaded - without) * 1e3)


SGD, ADAM = torch.optim.SGD, torch.optim.Adam
# needed and aim are upper bounds of the ratio.
ROWS = [
    Row("add16", "add of 16 elements, 1,000 in a row", 2.0, 1.0, compare(make_small_add, 1000)),
    Row("item", "item() after an add", 6.0, 3.0, compare(make_item, 300)),
    Row("view", "view", 1.2, 1.0, compare(make_view, 1000)),
    Row("add4096", "add on 4096x4096", 0.45, 0.35, compare(make_large_add)),
    Row("pointwise", "sin*cos+tanh on 4096x4096", 0.45, 0.3, compare(make_pointwise)),
    Row("mm", "mm 2048", 1.03, 1.0, compare(make_matmul)),
    Row("h2d", "H2D 64 MiB, pinned (against memmove)", 1.05, 1.0, measure_copy(to_device=True)),
    Row("d2h", "D2H 64 MiB, pinned (against memmove)", 1.05, 1.0, measure_copy(to_device=False)),
    Row("mlp_sgd", "MLP training step, SGD", 1.0, 0.7, compare(make_mlp(SGD), 10)),
    Row("mlp_adam", "MLP training step, Adam", 1.0, 0.7, compare(make_mlp(ADAM), 10)),
    Row("cnn", "training step of the demo's CNN", 0.8, 0.5, compare(make_cnn, 3)),
    Row("return", "mm 2048 returns early (part of its time)", 0.05, 0.01, measure_return),
    Row("overlap", "two streams sleep (against one)", 1.5, 1.1, measure_overlap),
    Row("peak", "peak memory (bytes, against live tensors)", 1.0, 1.0, measure_peak),
    Row("import", "import torch (ms more than without)", 60, 40, measure_import, unit="ms"),
]


def verdict(row: Row, ratio: float) -> str:
    return "aim" if ratio <= row.aim else "needed" if ratio <= row.needed else "MISSED"


def show(value: float, key: str) -> str:
    if key == "peak":
        return f"{value / 1024:.1f} KiB"
    for scale, unit in ((1.0, "s"), (1e-3, "ms")):
        if value >= scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value * 1e6:.2f} us"


def machine() -> dict[str, object]:
    processor = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        processor = next((line.split(": ")[1] for line in lines if line.startswith("model name")), processor)
    return {
        "processor": processor,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "load": os.getloadavg()[0],
    }


def main() -> int:
    keys = [row.key for row in ROWS]
    parser = argparse.ArgumentParser(description="Compare simdev's eager execution with the CPU's.")
    parser.add_argument("--only", nargs="+", choices=keys, default=keys, metavar="NAME", help="rows to run")
    parser.add_argument("--rounds", type=int, default=21, help="measurements per row (default: 21)")
    parser.add_argument("--device", default="simdev", help="device to compare (default: simdev)")
    parser.add_argument("--json", type=Path, default=Path(__file__).parent / "results.json", metavar="FILE")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a needed figure is missed")
    parser.add_argument("--list", action="store_true", help="list the rows and exit")
    options = parser.parse_args()
    if options.list:
        print("\n".join(f"{row.key:<10} {row.work}" for row in ROWS))
        return 0

    facts = machine()
    print(", ".join(f"{name} {value}" for name, value in facts.items()))
    print(f"{'work':<42}{'reference':>12}{'simdev':>12}{'ratio':>11}{'needed':>8}{'aim':>7}  verdict")
    results = []
    for row in ROWS:
        if row.key not in options.only:
            continue
        measured = row.measure(torch.device(options.device), options.rounds)
        outcome = verdict(row, measured.ratio)
        results.append({"key": row.key, "work": row.work, **asdict(measured), "verdict": outcome})
        times = f"{show(measured.reference, row.key):>12}{show(measured.device, row.key):>12}"
        ratio = f"{measured.ratio:.3f} {row.unit}"
        print(f"{row.work:<42}{times}{ratio:>11}{row.needed:>8}{row.aim:>7}  {outcome}", flush=True)
    options.json.write_text(json.dumps({"machine": facts, "rows": results}, indent=2) + "\n")
    return int(options.check and any(result["verdict"] == "MISSED" for result in results))


if __name__ == "__main__":
    sys.exit(main())
