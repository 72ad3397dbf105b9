"""What the host spends on a GPU's work, simdev against plain CUDA.

    SIMDEV_DRIVER=cuda python benchmarks/gpu_host.py

gpu.py measures work until the GPU has done it, which hides the host wherever the GPU is slower.  Here the
GPU is idle when the clock starts, and the clock stops when the call returns.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import gpu
import torch

PHASES = ("forward", "backward", "optimizer", "zero_grad")
DEVICES = ("cuda", "simdev")


def host_ms(call: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    started = time.perf_counter()
    result = call()
    elapsed = time.perf_counter() - started
    del result
    return elapsed * 1e3


def training_phases(kind: str, device: str, compiled: bool) -> list[Callable[[], object]]:
    """The parts of gpu.py's training step, which are to be called in turn."""
    work = gpu.training_work(kind, device, compiled)
    losses: list[torch.Tensor] = []
    return [
        lambda: losses.append(work.loss()),
        lambda: losses.pop().backward(),
        work.optimizer.step,
        lambda: work.optimizer.zero_grad(set_to_none=True),
    ]


def compare_training(kind: str, compiled: bool, steps: int) -> None:
    times: dict[str, list[list[float]]] = {}
    phases = {}
    torch._dynamo.reset()
    for device in DEVICES:
        phases[device] = training_phases(kind, device, compiled)
        for _ in range(10):
            for phase in phases[device]:
                phase()
        times[device] = [[] for _ in PHASES]
    for step in range(steps):
        for device in DEVICES if step % 2 == 0 else DEVICES[::-1]:
            for phase, values in zip(phases[device], times[device]):
                values.append(host_ms(phase))
    print(f"{kind}, {'compiled' if compiled else 'eager'}: ms of host time")
    for name, theirs, ours in zip(PHASES, times["cuda"], times["simdev"]):
        theirs_ms, ours_ms = statistics.median(theirs), statistics.median(ours)
        print(f"  {name:12}{theirs_ms:9.3f}{ours_ms:9.3f}{ours_ms - theirs_ms:+9.3f}", flush=True)


def compare_calls(mode: str, calls: int, rounds: int) -> None:
    """A compiled function of 16 elements, so that the GPU never holds the host up."""
    print(f"compiled, {mode}, 16 elements: us a call of {calls} in a row, over time")
    for device in DEVICES:
        torch._dynamo.reset()
        x = gpu.on(device, 16)
        torch._dynamo.mark_static_address(x)
        function = torch.compile(gpu.seed, mode=mode)
        values = []
        for _ in range(rounds):
            torch.cuda.synchronize()
            started = time.perf_counter()
            for _ in range(calls):
                function(x)
            values.append((time.perf_counter() - started) / calls * 1e6)
        print(f"  {device:8}" + "".join(f"{value:7.1f}" for value in values), flush=True)


def profile(kind: str, folder: Path) -> None:
    for device in DEVICES:
        torch._dynamo.reset()
        phases = training_phases(kind, device, compiled=True)
        for _ in range(10):
            for phase in phases:
                phase()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as recorded:
            for phase in phases:
                phase()
            torch.cuda.synchronize()
        table = recorded.key_averages().table(
            sort_by="self_cpu_time_total", row_limit=50, max_name_column_width=70
        )
        (folder / f"profile-{kind}-{device}.txt").write_text(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--profile", type=Path, help="a folder for the profiles of one compiled step")
    options = parser.parse_args()
    for mode in ("default", "reduce-overhead"):
        compare_calls(mode, calls=500, rounds=12)
    for kind in ("resnet", "bert"):
        for compiled in (True, False):
            compare_training(kind, compiled, options.steps)
    if options.profile is not None:
        profile("resnet", options.profile)


if __name__ == "__main__":
    main()
