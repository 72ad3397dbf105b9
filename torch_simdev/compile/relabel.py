"""torch.compile where the device is another device of PyTorch (the CUDA driver): its compiler compiles the graph.

A graph that Dynamo captured on simdev tensors is re-labelled as one of the delegate's tensors before anything looks at
it: its inputs become the delegate's tensors over the same memory, and so do constants and devices named in it.
AOTAutograd, Inductor and Triton then see a CUDA graph, forward and backward, with CUDA's kernels, CUDA graphs and
random numbers.  What it returns is labelled back.  No element is copied.

Does not live here: how tensors are converted (csrc/bindings/delegate.cpp).
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from .. import _C
from .._utils import DEVICE_TYPE
from .peephole import halve_trigonometry


def delegate_type() -> str | None:
    """Returns the type of device that simdev runs on ("cuda"), or None for the simulated chip."""
    return _C._delegate_type()


def _is_ours(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == DEVICE_TYPE


def _device(device: torch.device, target: str) -> torch.device:
    index = None if target == "cpu" else device.index
    return torch.device(target) if index is None else torch.device(target, index)


def _constant(value: Any, target: str) -> Any:
    """A constant in the graph, for the other device."""
    if isinstance(value, torch.device) and value.type == DEVICE_TYPE:
        return _device(value, target)
    if isinstance(value, str) and (value == DEVICE_TYPE or value.startswith(DEVICE_TYPE + ":")):
        return str(_device(torch.device(value), target))
    return value


def _fake(value: Any, target: str) -> Any:
    """A tensor without memory, as tracing recorded it, for the other device."""
    from torch._subclasses.fake_tensor import FakeTensor

    if not isinstance(value, FakeTensor) or value.device.type != DEVICE_TYPE:
        return value
    with value.fake_mode:
        return torch.empty_strided(
            value.size(), value.stride(), dtype=value.dtype, device=_device(value.device, target)
        ).requires_grad_(value.requires_grad)


def relabel_graph(gm: torch.fx.GraphModule, target: str) -> None:
    """Makes a graph that was captured on simdev tensors one of `target`'s, in place; subgraphs too."""
    for module in gm.modules():
        for name, value in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]:
            if _is_ours(value):
                converted = _C._to_backing(value.detach())
                if isinstance(value, torch.nn.Parameter):
                    converted = torch.nn.Parameter(converted, requires_grad=value.requires_grad)
                    module._parameters[name] = converted
                else:
                    module._buffers[name] = converted
        if not isinstance(module, torch.fx.GraphModule):
            continue
        for name, value in list(vars(module).items()):
            if _is_ours(value):
                converted = _C._to_backing(value.detach())
                setattr(module, name, converted)
        for node in module.graph.nodes:
            constant = functools.partial(_constant, target=target)
            node.args = pytree.tree_map(constant, node.args)
            node.kwargs = pytree.tree_map(constant, node.kwargs)
            if node.op == "call_method" and node.target == DEVICE_TYPE:  # tensor.simdev()
                node.target = "to"
                node.args = (*node.args[:1], target)
            for key in ("example_value", "val"):
                if key in node.meta:
                    node.meta[key] = pytree.tree_map(functools.partial(_fake, target=target), node.meta[key])
        module.recompile()


def _outputs_of_ours(gm: torch.fx.GraphModule) -> list[bool] | None:
    """Which outputs are simdev tensors; None where the graph does not say."""
    [output] = (node for node in gm.graph.nodes if node.op == "output")
    values = output.args[0] if isinstance(output.args[0], (tuple, list)) else (output.args[0],)
    ours = []
    for value in values:
        meta = getattr(value, "meta", {})
        example = meta.get("example_value", meta.get("val"))
        if isinstance(value, torch.fx.Node) and example is None:
            return None
        ours.append(_is_ours(example))
    return ours


def _example(value: Any) -> Any:
    """An example input as the other device's leaf tensor, with what Dynamo knows about it."""
    if not _is_ours(value):
        return value
    converted = _C._to_backing(value.detach())
    if isinstance(value, torch.nn.Parameter):
        converted = torch.nn.Parameter(converted, requires_grad=value.requires_grad)
    else:
        converted.requires_grad_(value.requires_grad)
    for name, attribute in vars(value).items():
        if name.startswith("_dynamo"):
            setattr(converted, name, attribute)
    context = torch._guards.TracingContext.try_get()
    if context is not None and value in context.tensor_to_context:
        context.tensor_to_context[converted] = context.tensor_to_context[value]
    return converted


@contextlib.contextmanager
def _autocast_as_ours(target: str) -> Iterator[None]:
    """The graph is traced under the autocast that was on when it was captured, which was ours."""
    enabled = torch.is_autocast_enabled(DEVICE_TYPE)
    with torch.autocast(
        target,
        dtype=torch.get_autocast_dtype(DEVICE_TYPE) if enabled else None,
        enabled=enabled or torch.is_autocast_enabled(target),
        cache_enabled=torch.is_autocast_cache_enabled(),
    ):
        yield


class _Inner:
    """Inductor's inner compiler, whose compiled graphs take and return simdev tensors.

    AOTAutograd so never sees another tensor when it runs: what it saves, and the nodes of the autograd graph, are ours.
    """

    def __init__(self, compiler: Callable[..., Any]):
        functools.update_wrapper(self, compiler)
        self.compiler = compiler
        self.graphs: list[tuple[torch.fx.GraphModule, Any]] = []

    def __call__(self, gm: torch.fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
        halve_trigonometry(gm)
        code = self.compiler(gm, *args, **kwargs)
        self.graphs.append((gm, code))
        # A type of its own for each, so that a call reaches the C function without a Python frame.
        graph = type("RelabelledGraph", (), {"__call__": _C._relabelled_boxed(code)})()
        graph._boxed_call = True  # an attribute of the object, since wrappers take over only those
        return graph


def _other(value: Any) -> Any:
    """What a compiled graph has labelled as ours, as the host's or the delegate's own tensor that it is."""
    return _C._to_backing(value) if _is_ours(value) else value


def _needs_aot_autograd(inner: _Inner, inputs: Sequence[Any]) -> bool:
    """Whether the compiled graph needs what AOTAutograd does around it: gradients, aliases, mutations."""
    context = torch._guards.TracingContext.try_get()
    meta = context.fw_metadata if context is not None else None
    if meta is None or len(inner.graphs) != 1:
        return True
    [(graph, code)] = inner.graphs
    return not (
        getattr(code, "current_callable", None) is not None
        and sum(node.op == "placeholder" for node in graph.graph.nodes) == len(inputs)
        and not any(isinstance(value, torch.Tensor) and value.requires_grad for value in inputs)
        and not meta.mutated_inp_runtime_indices
        and not meta.mutated_graph_handled_indices_seen_by_autograd
        and meta.num_outputs_aliased == 0
        and meta.num_intermediate_bases == 0
        and not meta.is_rng_op_functionalized
        and not meta.tokens
    )


def compile_relabelled(
    compiler: Callable[..., Any],
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    inner_compile: Callable[..., Any],
    **kwargs: Any,
) -> Callable[..., Any]:
    """Compiles a graph of simdev tensors by the delegate's compiler.

    Arguments:
        compiler: Inductor's compile_fx.
        gm, example_inputs: from Dynamo.
        inner_compile, kwargs: the compiler's other arguments.

    Returns a function of simdev tensors.  Raises NotImplementedError for an ahead-of-time package.
    """
    from torch._inductor.virtualized import V

    target = delegate_type()
    assert target is not None
    if V.aot_compilation:
        raise NotImplementedError(
            f"ahead-of-time packages for simdev run on the simulated chip. Here simdev is {target}: export "
            f"the model from device {target!r} instead."
        )
    if not _can_generate_code(target):
        return gm.forward
    ours = _outputs_of_ours(gm)
    inputs = [_example(value) for value in example_inputs]
    relabel_graph(gm, target)
    inner = _Inner(inner_compile)
    # Its cache would hand out graphs that are not wrapped.
    with _autocast_as_ours(target), torch._functorch.config.patch(enable_autograd_cache=False):
        compiled = compiler(gm, inputs, inner_compile=inner, **kwargs)
    if ours is None or all(ours):
        if _needs_aot_autograd(inner, inputs):
            return compiled
        code = inner.graphs[0][1]
        return _C._relabelled_plain(code.current_callable, code)

    def run(*arguments: Any) -> Any:
        results = compiled(*arguments)
        # The others are of the host, or the delegate's own.
        return tuple(value if mine else _other(value) for value, mine in zip(results, ours))

    return run


@functools.cache
def _can_generate_code(target: str) -> bool:
    from torch.utils._triton import has_triton

    if target != "cuda" or has_triton():
        return True
    warnings.warn(
        "torch.compile on simdev's CUDA driver needs Triton, which is not there or does not support this "
        "GPU: graphs run operator by operator.",
        stacklevel=2,
    )
    return False


def _needs_relabelling(gm: Any, example_inputs: Sequence[Any]) -> bool:
    if not isinstance(gm, torch.fx.GraphModule) or delegate_type() is None:
        return False
    return any(_is_ours(value) for value in example_inputs) or any(
        _is_ours(value)
        for node in gm.graph.nodes
        for value in pytree.tree_leaves(node.meta.get("example_value"))
    )


def install() -> None:
    """Puts the re-labelling in front of Inductor's entry point, for graphs of simdev tensors under a delegate."""
    from torch._inductor import compile_fx as module

    upstream = module.compile_fx

    @functools.wraps(upstream)
    def compile_fx(
        model_: Any,
        example_inputs_: Sequence[Any],
        inner_compile: Callable[..., Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        inner_compile = inner_compile or module.compile_fx_inner
        if _needs_relabelling(model_, example_inputs_):
            return compile_relabelled(upstream, model_, example_inputs_, inner_compile, **kwargs)
        return upstream(model_, example_inputs_, inner_compile, **kwargs)

    module.compile_fx = compile_fx
