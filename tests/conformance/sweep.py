"""PyTorch's OpInfo database, all of it, on simdev against the CPU: ``python -m tests.conformance.sweep``.

Works in child processes, so that a crash or a hang costs one operator and is reported as such.  Results go to
a JSON file as they come; a second run with the same file goes on where the first stopped.
"""

from __future__ import annotations

import argparse
import collections
import json
import pathlib
import sys
import time
import warnings
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.definitions.nested import njt_op_db

from tests.conformance.compare import (
    check_same,
    copy_inputs,
    gradients,
    move_sample,
    recorded_warnings,
    samples,
)
from tests.conformance.exceptions import EXCEPTIONS
from tests.conformance.workers import Died, ask_all

# Their values are random: only metadata can be compared with the CPU's.
RANDOM = set(
    """
    bernoulli cauchy exponential
    geometric log_normal multinomial
    normal normal_in_place rand_like
    randint randint_like randn
    randn_like uniform nn.functional.dropout
    nn.functional.dropout2d nn.functional.dropout3d nn.functional.alpha_dropout
    nn.functional.feature_alpha_dropout
    nn.functional.fractional_max_pool2d nn.functional.fractional_max_pool3d
    nn.functional.rrelu nn.functional.scaled_dot_product_attention svd_lowrank
    pca_lowrank nn.functional.multi_head_attention_forward
    """.split()
)
# Their values are not determined at all.
UNDETERMINED = {"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"}


def op_key(op: Any) -> str:
    return op.name + ("." + op.variant_test_name if op.variant_test_name else "")


def check_op(op: Any, dtype: torch.dtype, count: int | None, backward: bool) -> str | None:
    """None if the first ``count`` samples (None: all) agree, otherwise what went wrong with one."""
    name = op_key(op)
    values = op.name not in RANDOM and op.name not in UNDETERMINED
    crashes = op.supports_njt and op.name == "split_with_sizes"  # PyTorch's own backward pass, on the CPU too
    wants_grad = (
        backward and dtype in op.supported_backward_dtypes("cpu") and op.supports_autograd and not crashes
    )
    for index, sample in enumerate(samples(op, dtype, count, requires_grad=wants_grad)):
        cpu_args, cpu_kwargs = copy_inputs(sample)
        try:
            with recorded_warnings() as expected_warnings:
                expected, expected_grads, cotangents = gradients(op.op, cpu_args, cpu_kwargs, None)
        except Exception:
            continue  # not a sample that the CPU can run
        where = f"sample {index} of {name}: "
        try:
            dev_args, dev_kwargs = move_sample(op, sample)
            with recorded_warnings() as actual_warnings:
                actual, actual_grads, _ = gradients(op.op, dev_args, dev_kwargs, cotangents)
                torch.simdev.synchronize()
            check_same(actual, expected, values=values)
            assert actual_warnings == expected_warnings, (
                f"warns of {actual_warnings or 'nothing'} instead of {expected_warnings or 'nothing'}"
            )
            if expected_grads is not None and values:
                assert actual_grads is not None, "not differentiable"
                check_same(actual_grads, expected_grads, strides=False)
        except Exception as error:
            text = str(error).strip().split("\nException raised from")[0]
            return f"{where}{type(error).__name__}: {text[:600]}"
    return None


def check_variant(op: Any, check: str) -> str | None:
    from tests.conformance.variants import CHECKS

    try:
        if check == "compiled":
            from tests.conformance import compiled

            compiled.check(op, values=op.name not in RANDOM and op.name not in UNDETERMINED)
        else:
            CHECKS[check](op)
    except Exception as error:
        return f"{op_key(op)}: {type(error).__name__}: {str(error)[:600]}"
    return None


DATABASES = {
    "all": [op for op in op_db if not op.name.startswith("jiterator")],  # which only CUDA has
    "njt": [op for op in njt_op_db if op.supports_njt],
}


def operators(database: str, dtype: torch.dtype) -> dict[str, Any]:
    """The operators of a database that the CPU has for the dtype, by name."""
    return {op_key(op): op for op in DATABASES[database] if dtype in op.supported_dtypes("cpu")}


def worker(options: argparse.Namespace) -> None:
    """Checks the operators named on standard input, one line of JSON each on standard output."""
    warnings.simplefilter("ignore")
    dtype = getattr(torch, options.dtype)
    by_key = operators(options.database, dtype)
    for line in sys.stdin:
        key = line.strip()
        torch.manual_seed(0)
        started = time.perf_counter()
        try:
            if options.check == "values":
                reason = check_op(by_key[key], dtype, options.samples, options.backward)
            else:
                reason = check_variant(by_key[key], options.check)
        except Exception as error:
            reason = f"sampling failed: {type(error).__name__}: {error}"
        print(json.dumps({"op": key, "reason": reason, "seconds": time.perf_counter() - started}), flush=True)


def sweep(options: argparse.Namespace) -> dict[str, Any]:
    results: dict[str, Any] = json.loads(options.out.read_text()) if options.out.exists() else {}
    keys = list(operators(options.database, getattr(torch, options.dtype)))
    todo = [key for key in keys if options.match in key and key not in results]
    flags = ["--worker", "--database", options.database, "--check", options.check, "--dtype", options.dtype]
    if options.backward:
        flags.append("--backward")
    if options.samples is not None:
        flags += ["--samples", str(options.samples)]

    def answered(key: str, answer: Any) -> bool:
        died = isinstance(answer, Died)
        results[key] = {"op": key, "reason": str(answer), "seconds": 0.0} if died else answer
        options.out.write_text(json.dumps(results, indent=1))
        reason = results[key]["reason"]
        if reason or sys.stderr.isatty():
            print(f"[{len(results)}/{len(keys)}] {key}: {reason or 'ok'}"[:220], flush=True)
        return True

    command = [sys.executable, "-m", "tests.conformance.sweep", *flags]
    ask_all(todo, command, options.timeout, options.jobs, answered)
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--check", default="values", choices=["values", "strides", "inplace", "out", "errors", "compiled"]
    )
    parser.add_argument("--database", default="all", choices=DATABASES, help="njt: of nested tensors")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--samples", type=int, help="samples of each operator (default: all)")
    parser.add_argument("--backward", action="store_true", help="compare gradients too")
    parser.add_argument("--match", default="", help="only operators whose name contains this")
    parser.add_argument("--jobs", type=int, default=1, help="operators at a time")
    parser.add_argument("--timeout", type=float, default=120, help="seconds for one operator")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("build/conformance.json"))
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options)
        return 0
    options.out.parent.mkdir(parents=True, exist_ok=True)
    results = sweep(options)
    known = {
        key: EXCEPTIONS[key, subject]
        for key, r in results.items()
        for subject in (options.dtype, options.check)
        if r["reason"] and (key, subject) in EXCEPTIONS
    }
    known |= {key: r["reason"] for key, r in results.items() if "FailsOnTheCpuToo" in (r["reason"] or "")}
    failures = {key: r for key, r in results.items() if r["reason"] and key not in known}
    kinds = collections.Counter(
        r["reason"].split(": ", 2)[1].split(":")[0] if ": " in r["reason"] else r["reason"]
        for r in failures.values()
    )
    for key, reason in known.items():
        print(f"expected: {key}: {reason}")
    print(f"\n{len(results) - len(failures)} of {len(results)} operators agree with the CPU")
    for kind, count in kinds.most_common():
        print(f"{count:6d}  {kind}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
