"""Every module of PyTorch's ModuleInfo database, forward and backward, on simdev against the CPU."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch.testing._internal.common_modules import ModuleInfo, module_db

from tests.conformance.compare import DEVICE, check_same, copy_inputs, move, tensors

# Random by themselves in training mode; run in evaluation mode only.
RANDOM = {"Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "AlphaDropout", "FeatureAlphaDropout", "RReLU"}


def by_name() -> dict[str, ModuleInfo]:
    return {info.module_cls.__name__: info for info in module_db}


def check_module(info: ModuleInfo, dtype: torch.dtype = torch.float32) -> int:
    """Compares all samples in both modes; returns how many the CPU could run.

    Raises AssertionError at the first difference, naming module, mode and sample.
    """
    checked = 0
    for training in (True, False):
        if training and info.module_cls.__name__ in RANDOM:
            continue
        samples = info.module_inputs_func(
            info, device="cpu", dtype=dtype, requires_grad=True, training=training
        )
        for index, sample in enumerate(samples):
            torch.manual_seed(0)
            constructor = sample.constructor_input
            module = info.module_cls(*constructor.args, **constructor.kwargs).to(dtype).train(training)
            for child in module.modules():
                if isinstance(child, torch.nn.Dropout):
                    child.p = 0.0  # inside Transformer layers: equal masks cannot be drawn on two devices
                elif isinstance(getattr(child, "dropout", None), float):
                    child.dropout = 0.0
            call = sample.forward_input
            inputs = (call.args, call.kwargs)
            if any(isinstance(p, torch.nn.parameter.UninitializedTensorMixin) for p in module.parameters()):
                module(*call.args, **call.kwargs)  # makes a lazy module's parameters
            twin = copy.deepcopy(module)
            device_inputs, inputs = move(inputs), copy_inputs(inputs)
            try:
                expected, expected_grads = run(module, inputs)
            except (RuntimeError, NotImplementedError):
                continue
            where = f"{info.module_cls.__name__}, training={training}, sample {index}: "
            try:
                actual, grads = run(twin.to(DEVICE), device_inputs)
                check_same(actual, expected, rtol=1e-4, atol=1e-5)
                check_same(grads, expected_grads, strides=False, rtol=1e-3, atol=1e-4)
                check_same(dict(twin.named_buffers()), dict(module.named_buffers()))
            except Exception as error:
                raise AssertionError(f"{where}{type(error).__name__}: {error}") from error
            checked += 1
    return checked


def run(module: torch.nn.Module, inputs: Any) -> tuple[Any, list[torch.Tensor | None]]:
    """The outputs, and the gradients of the sum of their elements' squares."""
    args, kwargs = inputs
    leaves = [t for t in tensors(inputs) if t.requires_grad]
    out = module(*args, **kwargs)
    roots = [t for t in tensors(out) if t.requires_grad and (t.is_floating_point() or t.is_complex())]
    sources = leaves + list(module.parameters())
    sources = [t for t in sources if t.requires_grad]
    if not roots or not sources:
        return out, []
    loss = torch.stack([t.abs().square().sum() for t in roots]).sum()
    return out, list(torch.autograd.grad(loss, sources, allow_unused=True))
