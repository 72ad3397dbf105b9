"""The modules of torch.nn and the optimizers of torch.optim, by PyTorch's own databases, against the CPU."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch.testing._internal.common_optimizers import optim_db

from tests.conformance import modules
from tests.conformance.compare import check_same

DEV = "simdev"
MODULES = modules.by_name()


@pytest.mark.parametrize("name", MODULES)
def test_module(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        checked = modules.check_module(MODULES[name])
    if not checked:
        pytest.skip("no sample runs on the CPU")


def optimizer_cases() -> list[tuple[str, int, dict[str, object]]]:
    """(optimizer, index of its configuration, flags) for every configuration in every form it has."""
    cases = []
    for info in optim_db:
        name = info.optim_cls.__name__
        for index, _ in enumerate(info.optim_inputs_func("cpu")):
            for flag in ("plain", *info.supported_impls):
                cases.append((name, index, {} if flag == "plain" else {flag: True}))
    return cases


@pytest.mark.parametrize(
    ("name", "index", "flags"), optimizer_cases(), ids=lambda v: "-".join(v) if isinstance(v, dict) else None
)
def test_optimizer(name: str, index: int, flags: dict[str, bool]) -> None:
    (info,) = (one for one in optim_db if one.optim_cls.__name__ == name)
    config = info.optim_inputs_func("cpu")[index]
    results = []
    for device in ("cpu", DEV):
        kwargs = {
            k: v.to(device) if isinstance(v, torch.Tensor) and v.dim() else v
            for k, v in config.kwargs.items()
        }
        kwargs.update(flags)
        differentiable = kwargs.get("differentiable", False)
        if differentiable:
            kwargs.pop("foreach", None)
        torch.manual_seed(0)
        shapes = [(4, 3), (3, 4)] if name == "Muon" else [(4, 3), (3,), ()]
        values = [torch.randn(shape) for shape in shapes]
        leaves = [v.to(device).requires_grad_() for v in values]
        # Differentiable steps are recorded, which leaves forbid.
        parameters = [leaf.clone() for leaf in leaves] if differentiable else leaves
        cls = info.optim_cls
        try:
            optimizer = cls(parameters, **kwargs)
            for step in range(3):
                for p in parameters:
                    grad = torch.cos(torch.arange(p.numel()) + step).reshape(p.shape)
                    p.grad = (grad.to_sparse() if info.only_supports_sparse_grads else grad).to(device)

                def closure() -> torch.Tensor:
                    return sum((p.detach() ** 2).sum() for p in parameters)  # noqa: B023

                with torch.set_grad_enabled(differentiable):
                    optimizer.step(closure if info.step_requires_closure else None)
            grads = torch.autograd.grad([p.sum() for p in parameters], leaves) if differentiable else ()
        except (RuntimeError, ValueError, NotImplementedError) as error:
            if device == "cpu":
                pytest.skip(f"the CPU refuses: {error}")
            raise
        results.append([*(p.detach() for p in parameters), *grads])
    check_same(results[1], results[0], rtol=1e-4, atol=1e-5)
