"""The fast slice of the conformance sweeps: every operator of the OpInfo database, one sample, gradients.

All samples, all dtypes and the other forms of a call: ``make conformance`` (tests/conformance/sweep.py).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch.testing._internal.common_methods_invocations import (
    foreach_binary_op_db,
    foreach_pointwise_op_db,
    foreach_reduce_op_db,
    foreach_unary_op_db,
)

from tests.conformance import sweep, variants
from tests.conformance.compare import DEVICE, check_same, move, move_sample, samples
from tests.conformance.exceptions import EXCEPTIONS
from torch_simdev.coverage import SPARSE, coverage

OPS = sweep.operators("all", torch.float32)


@pytest.mark.parametrize("key", OPS)
def test_values_and_gradients(key: str) -> None:
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        reason = sweep.check_op(OPS[key], torch.float32, count=1, backward=True)
    assert reason is None, reason


@pytest.mark.slow
@pytest.mark.parametrize("check", variants.CHECKS)
@pytest.mark.parametrize("key", OPS)
def test_other_forms(key: str, check: str) -> None:
    if (key, check) in EXCEPTIONS:
        pytest.skip(EXCEPTIONS[key, check])
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        variants.CHECKS[check](OPS[key])


@pytest.mark.parametrize(
    "op",
    [*foreach_unary_op_db, *foreach_binary_op_db, *foreach_pointwise_op_db, *foreach_reduce_op_db],
    ids=lambda op: op.name,
)
def test_foreach(op) -> None:
    torch.manual_seed(0)
    for args, kwargs in samples(op, torch.float32, 6):
        kwargs = {k: v for k, v in kwargs.items() if k in ("alpha", "ord", "value", "dtype")}
        dev_args, dev_kwargs = move((args, kwargs))
        for function in (op.method_variant, op.inplace_variant):
            if function is None:
                continue
            try:
                expected = function(*args, **kwargs)
            except (RuntimeError, TypeError):
                continue
            check_same(function(*dev_args, **dev_kwargs), expected)


def names(tier: str) -> set[str]:
    """The operators of a tier, without overloads; those that take sparse tensors alone do not count."""
    served = (one for one in coverage() if one.tier == tier and one.reason != SPARSE)
    return {one.name.removeprefix("aten::").split(".")[0] for one in served}


def test_only_known_operators_keep_the_host_waiting() -> None:
    """The whole lists: what gives a shape or a number that only data can tell, and what needs LAPACK."""
    assert names("synchronous") == {
        "_unique", "_unique2", "bincount", "equal", "masked_select", "nonzero",
        "repeat_interleave", "unique_consecutive", "unique_dim", "unique_dim_consecutive",
    }  # fmt: skip
    lapack = (
        "linalg_",
        "_linalg_",
        "cholesky",
        "_cholesky",
        "geqrf",
        "ormqr",
        "orgqr",
        "triangular_solve",
        "lu_",
    )
    assert not [name for name in names("host fallback") if not name.startswith(lapack)]
    served = {one.name: one.tier for one in coverage()}
    assert served["aten::conv2d"] == "composite"
    assert served["aten::add.Tensor"] == "native"
    assert served["aten::sin.out"] == "launched"


# What the host asks for itself: a number, whether tensors are close, whether all variances are positive, and
# the ends of a range that are tensors.
READ_BY_THE_HOST = {
    "item", "allclose", "normal", "nn.functional.gaussian_nll_loss", "linspace.tensor_overload",
    "logspace.tensor_overload",
}  # fmt: skip


def waits(call: Callable[[], object]) -> bool:
    """Whether the call returns only when the work before it on the stream is done."""
    for milliseconds in (20, 500):  # where the call itself takes long, the second try tells
        torch.simdev.synchronize()
        before = torch.simdev.Event()
        torch.simdev._sleep(milliseconds)
        before.record()
        call()
        if not before.query():
            return False
    return True


@pytest.mark.parametrize("key", OPS)
def test_only_what_must_synchronises(key: str) -> None:
    op = OPS[key]
    for sample in samples(op, torch.float32, 1):
        args, kwargs = move_sample(op, sample)
        op.op(*args, **kwargs)  # a learned shape may wait once
        torch.simdev.reset_fallbacks()
        if waits(lambda: op.op(*args, **kwargs)) and key not in READ_BY_THE_HOST:  # noqa: B023
            with torch.profiler.profile() as profile:
                op.op(*args, **kwargs)
            ran = {event.name.removeprefix("aten::") for event in profile.events()}
            assert torch.simdev.fallbacks() or ran & names("synchronous")
        on_host = {one.name for one in coverage() if one.tier == "host fallback"}
        assert set(torch.simdev.fallbacks()) <= on_host


ASYNCHRONOUS: dict[str, Callable[[torch.Tensor, torch.Tensor], object]] = {
    "advanced indexing": lambda x, i: x[i],
    "index_put_": lambda x, i: x.index_put_((i,), x[i]),
    "masked_fill": lambda x, i: x.masked_fill(x > 0, 1.0),
    "where": lambda x, i: torch.where(x > 0, x, -x),
    "cat": lambda x, i: torch.cat([x, x]),
    "gather": lambda x, i: x.gather(0, i[:, None]),
    "scatter_add": lambda x, i: torch.zeros_like(x).scatter_add(0, i[:, None].expand(-1, 8), x[i]),
    "sort": lambda x, i: x.sort(0),
    "topk": lambda x, i: x.topk(2),
    "cross entropy": lambda x, i: torch.nn.functional.cross_entropy(x[:3], i),
    "mse": lambda x, i: torch.nn.functional.mse_loss(x, x * 2),
    "foreach": lambda x, i: torch._foreach_add([x, x], 1.0),
    "conv": lambda x, i: torch.nn.functional.conv2d(x[None, None], x[None, None, :2, :2]),
    "layer_norm": lambda x, i: torch.nn.functional.layer_norm(x, x.shape[1:]),
    "batch_norm": lambda x, i: torch.nn.functional.batch_norm(x, None, None, training=True),
    "embedding": lambda x, i: torch.nn.functional.embedding(i, x),
    "attention": lambda x, i: torch.nn.functional.scaled_dot_product_attention(x[None], x[None], x[None]),
    "dropout": lambda x, i: torch.nn.functional.dropout(x, 0.5),
    "randn": lambda x, i: torch.randn_like(x).uniform_(),
    "fft": lambda x, i: torch.fft.fft(x),
    "cumsum": lambda x, i: x.cumsum(0),
    "var": lambda x, i: torch.var_mean(x, 0),
    "to double": lambda x, i: x.double().t().contiguous(),
}


@pytest.mark.parametrize("name", ASYNCHRONOUS)
def test_does_not_synchronise(name: str) -> None:
    x = torch.randn(8, 8, device=DEVICE)
    i = torch.tensor([3, 1, 0], device=DEVICE)
    ASYNCHRONOUS[name](x, i)  # a learned shape may wait once
    assert not waits(lambda: ASYNCHRONOUS[name](x, i))


def optimizer_step(name: str, **flags: bool) -> Callable[[], object]:
    parameters = [torch.randn(4, 4, device=DEVICE, requires_grad=True) for _ in range(2)]
    for p in parameters:
        p.grad = torch.ones_like(p)
    return getattr(torch.optim, name)(parameters, lr=0.1, **flags).step


def recurrent() -> Callable[[], object]:
    lstm, x = torch.nn.LSTM(4, 4).to(DEVICE), torch.randn(3, 2, 4, device=DEVICE)
    return lambda: lstm(x)[0].sum().backward()


@pytest.mark.parametrize(
    "make",
    [
        lambda: optimizer_step("SGD", foreach=True),
        lambda: optimizer_step("Adam", foreach=True),
        lambda: optimizer_step("Adam", fused=True),
        recurrent,
    ],
    ids=["SGD foreach", "Adam foreach", "Adam fused", "LSTM forward and backward"],
)
def test_training_does_not_synchronise(make: Callable[[], Callable[[], object]]) -> None:
    step = make()
    step()
    assert not waits(step)
