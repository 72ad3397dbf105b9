"""Differentiation beyond the first backward: numerical checks, second order, forward mode, torch.func."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db

from tests.conformance.compare import DEVICE, check_same, copy_inputs, move, move_sample, samples, tensors
from tests.conformance.sweep import RANDOM, op_key

OPS = {
    op_key(op): op
    for op in op_db
    if op.supports_autograd
    and torch.float64 in op.supported_backward_dtypes("cpu")
    and op.name not in RANDOM
    and op.supports_gradgrad
}
SLICE = list(OPS)[::8]

pytestmark = pytest.mark.filterwarnings("ignore")


def function_of(op: Any, args: Any, kwargs: Any) -> tuple[Any, list[torch.Tensor]]:
    """A function of the differentiable inputs that returns the differentiable outputs, and those inputs."""
    leaves = [t for t in tensors((args, kwargs)) if t.requires_grad]

    def function(*values: torch.Tensor) -> Any:
        replace = {id(leaf): value for leaf, value in zip(leaves, values)}
        new_args, new_kwargs = torch.utils._pytree.tree_map(
            lambda t: replace.get(id(t), t) if isinstance(t, torch.Tensor) else t, (args, kwargs)
        )
        out = op.op(*new_args, **new_kwargs)
        roots = [t for t in tensors(out) if t.is_floating_point() or t.is_complex()]
        return roots[0] if len(roots) == 1 else tuple(roots)

    return function, leaves


def check_gradients(key: str) -> None:
    torch.manual_seed(0)
    op = OPS[key]
    sample = next(samples(op, torch.float64, requires_grad=True))
    function, leaves = function_of(op, *copy_inputs(sample))
    options: dict[str, Any] = {"fast_mode": True, "nondet_tol": op.gradcheck_nondet_tol}
    try:
        torch.autograd.gradcheck(function, leaves, **options)
        torch.autograd.gradgradcheck(function, leaves, **options)
    except Exception as error:
        pytest.skip(f"not on the CPU: {type(error).__name__}")
    function, leaves = function_of(op, *move_sample(op, sample))
    torch.autograd.gradcheck(function, leaves, **options)
    torch.autograd.gradgradcheck(function, leaves, **options)


@pytest.mark.parametrize("key", SLICE)
def test_gradcheck(key: str) -> None:
    check_gradients(key)


@pytest.mark.slow
@pytest.mark.parametrize("key", [key for key in OPS if key not in SLICE])
def test_gradcheck_of_the_rest(key: str) -> None:
    check_gradients(key)


@pytest.mark.parametrize("key", [k for k in SLICE if OPS[k].supports_forward_ad])
def test_forward_mode(key: str) -> None:
    torch.manual_seed(0)
    op = OPS[key]
    sample = next(samples(op, torch.float64, requires_grad=True))
    function, leaves = function_of(op, *copy_inputs(sample))
    tangents = [torch.randn_like(t) for t in leaves]
    primals = [t.detach() for t in leaves]
    try:
        expected = torch.func.jvp(function, tuple(primals), tuple(tangents))
    except Exception as error:
        pytest.skip(f"not on the CPU: {type(error).__name__}")
    function, leaves = function_of(op, *move_sample(op, sample))
    actual = torch.func.jvp(function, tuple(t.detach() for t in leaves), tuple(move(tangents)))
    check_same(actual, expected, strides=False)


def test_torch_func_transforms() -> None:
    weight, x, y = torch.randn(3, 4), torch.randn(5, 4), torch.randn(5, 3)

    def loss(w: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return ((x @ w.t()).tanh() - y).square().mean()

    inputs = (weight, x, y)
    moved = tuple(t.to(DEVICE) for t in inputs)
    check_same(torch.func.grad(loss)(*moved), torch.func.grad(loss)(*inputs))
    per_sample = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))
    check_same(per_sample(*moved), per_sample(*inputs))
    check_same(torch.func.hessian(loss)(*moved), torch.func.hessian(loss)(*inputs))
    check_same(torch.func.jacrev(loss)(*moved), torch.func.jacfwd(loss)(*inputs))
    out, pullback = torch.func.vjp(lambda w: (w * 2).sin(), moved[0])
    check_same(pullback(torch.ones_like(out))[0], 2 * torch.cos(2 * weight))
    batched = torch.func.vmap(lambda a, b: torch.linalg.norm(a) + b.sort().values.cumsum(0))
    check_same(batched(moved[1], moved[1]), batched(x, x))


def test_checkpointing_repeats_dropout_masks() -> None:
    from torch.utils.checkpoint import checkpoint

    x = torch.ones(1000, device=DEVICE, requires_grad=True)
    torch.manual_seed(3)
    out = checkpoint(lambda t: torch.nn.functional.dropout(t, 0.5) * t, x, use_reentrant=False)
    (grad,) = torch.autograd.grad(out.sum(), x)
    assert torch.equal(grad, 2 * out.detach())


def test_hooks_and_backward_on_a_side_stream() -> None:
    side = torch.Stream(device=DEVICE)
    seen: list[torch.Stream] = []
    x = torch.ones(8, device=DEVICE, requires_grad=True)
    with side:
        y = x * 2
        y.register_hook(lambda g: seen.append(torch.accelerator.current_stream()))
        z = y.sum()
    torch.accelerator.current_stream().wait_stream(side)
    z.backward()
    assert x.grad.tolist() == [2.0] * 8
    assert seen == [side]


def test_backward_warns_of_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        x = torch.ones(2, 2, device=DEVICE, requires_grad=True)
        (x @ x).sum().backward()
    assert x.grad.tolist() == [[4, 4], [4, 4]]


def test_a_process_may_end_right_after_backward(run_python) -> None:
    code = """
import torch
x = torch.ones(4, 4, device="simdev", requires_grad=True)
(x @ x).sum().backward()
"""
    for _ in range(5):
        run_python(code)  # fails the test unless it ends with status 0
