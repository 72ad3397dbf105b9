"""Every place where Inductor or Dynamo asks for "cpu" or "cuda" by name and simdev needs the answer of the first.

Each workaround is a function with its reason, and the test that fails without it: when upstream has made it
unnecessary, that test passes without the function, and both go.  All of them leave other devices as they were.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch

from .. import _C
from .._utils import DEVICE_TYPE


@dataclass(frozen=True)
class Patch:
    """One workaround of upstream."""

    apply: Callable[[], None]
    test: str  # in tests/test_compile_patches.py, fails without the patch

    @property
    def reason(self) -> str:
        """What upstream does, and what is wrong with it for simdev."""
        return self.apply.__doc__ or ""


PATCHES: list[Patch] = []


def _patch(test: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    def register(apply: Callable[[], None]) -> Callable[[], None]:
        PATCHES.append(Patch(apply, test))
        return apply

    return register


def apply() -> None:
    """Applies all of them, once per process."""
    for patch in PATCHES:
        patch.apply()


def accept_flex_attention() -> None:
    """flex_attention refuses devices that it does not know.  Not in the table: it is also called without torch.compile,
    and is patched when its module is imported.  Test: test_flex_attention."""
    from torch.nn.attention import flex_attention

    upstream = flex_attention._validate_device

    def validate_device(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        if query.device.type != DEVICE_TYPE:
            upstream(query, key, value)

    flex_attention._validate_device = validate_device


def initialise_backends() -> None:
    """Dynamo before torch 2.15 does not know `_dynamo_backend_init`, a function on a backend that is called when
    torch.compile() has resolved it; its exceptions are the caller's.  Applied when Dynamo is imported, to the one place
    where it resolves backends, unless that place knows the name.  Test: test_backend_init_*."""
    from torch._dynamo import eval_frame

    functions = [value for value in vars(eval_frame).values() if inspect.isfunction(value)]
    if any("_dynamo_backend_init" in function.__code__.co_consts for function in functions):
        return
    upstream = eval_frame.get_compiler_fn
    lock = threading.RLock()
    done: set[Callable[[], None]] = set()

    @functools.wraps(upstream)
    def get_compiler_fn(compiler_fn: Any) -> Any:
        resolved = backend = upstream(compiler_fn)
        for wrapped in ("_torchdynamo_orig_backend", "compiler_fn"):  # by Dynamo, and by torch.compile
            backend = getattr(backend, wrapped, backend)
        initialise = getattr(backend, "_dynamo_backend_init", None)
        with lock:
            if initialise is not None and initialise not in done:
                initialise()
                done.add(initialise)
        return resolved

    eval_frame.get_compiler_fn = get_compiler_fn


def format_convolutions_as_the_kernels_do() -> None:
    """A fake convolution on a device that PyTorch does not know is contiguous, whatever its inputs are, and code
    compiled for it would misread the results of kernels that keep channels last.  The device that runs simdev's
    kernels is asked in its place.  Not in the table: fake tensors are also used without torch.compile, and this is
    called when their module is imported.  Test: test_convolutions_keep_channels_last."""
    from torch._subclasses import fake_impls
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, in_kernel_invocation_manager
    from torch.utils._pytree import tree_map_only

    aten = torch.ops.aten
    operators = (aten.convolution, aten._convolution, aten.convolution_backward)
    overloads = [getattr(operator, name) for operator in operators for name in operator.overloads()]
    for overload in set(overloads) & fake_impls.op_implementations_dict.keys():
        upstream = fake_impls.op_implementations_dict[overload]

        def convolution(
            fake_mode: FakeTensorMode,
            func: Any,
            *args: Any,
            upstream: Callable[..., Any] = upstream,
            **kwargs: Any,
        ) -> Any:
            device = args[0].fake_device if args else None
            if device is None or device.type != DEVICE_TYPE:
                return upstream(fake_mode, func, *args, **kwargs)
            kernels = torch.device(_C._delegate_type() or "cpu")

            def on(device: torch.device, tree: Any) -> Any:
                with in_kernel_invocation_manager(fake_mode):
                    return tree_map_only(FakeTensor, lambda t: FakeTensor(fake_mode, t, device), tree)

            args, kwargs = on(kernels, (args, kwargs))
            return on(device, upstream(fake_mode, func, *args, **kwargs))

        fake_impls.op_implementations_dict[overload] = convolution


def ask_again_for_the_current_device() -> None:
    """Fake tensors remember results by their operator's arguments, and "simdev" without an index is another device when
    another one is current: what a function made on one device was taken for what it makes on the next.  Not in the
    table: fake tensors are also used without torch.compile, and are patched when their module is imported.  Test:
    test_a_device_without_index_is_the_current_one."""
    from torch._subclasses import fake_tensor

    upstream = fake_tensor.FakeTensorMode._validate_cache_key

    @functools.wraps(upstream)
    def validate_cache_key(self: Any, func: Any, args: Any, kwargs: Any) -> None:
        device = kwargs.get("device")
        if isinstance(device, torch.device) and device.type == DEVICE_TYPE and device.index is None:
            raise fake_tensor._BypassDispatchCache("device without an index")
        upstream(self, func, args, kwargs)

    fake_tensor.FakeTensorMode._validate_cache_key = validate_cache_key


def make_compiled_optimizers_capturable() -> None:
    """Dynamo turns on `capturable` for new optimizers of CUDA and XPU alone.  Without it an optimizer's counts are on
    the host; Dynamo moves some of them and leaves others there, and fused operators do not mind: the code compiled for
    NAdam has a kernel of the host that reads memory of the device.  Not in the table: it is about Dynamo, and is
    patched with its trace rules.  Test: test_compiled_optimizers_are_capturable."""
    from torch._dynamo.variables.optimizer import OptimizerVariable

    upstream = OptimizerVariable._set_capturable

    def set_capturable(self: Any, tx: Any) -> None:
        states = self.value.state
        for group in self.value.param_groups:
            parameters = group["params"]
            if "capturable" not in group or any(p.device.type != DEVICE_TYPE for p in parameters):
                continue
            if not any(p in states for p in parameters):
                group["capturable"] = True
            for p in parameters:  # counts of steps that were not compiled
                for name, value in states.get(p, {}).items():
                    if isinstance(value, torch.Tensor) and value.is_cpu and value.dim() == 0:
                        states[p][name] = value.to(p.device)
        upstream(self, tx)

    OptimizerVariable._set_capturable = set_capturable


def estimate_without_triton() -> None:
    """Memory that one stream of a trained graph allocates and another reads is kept until a moment that AOTAutograd
    finds by estimated times, and it asks the device's speed of Triton.  The estimates decide when, not whether, one
    stream waits for the other.  Not in the table: it is about AOTAutograd, and is patched when its module is imported.
    Test: test_streams_inside_of_a_trained_graph."""
    from torch._functorch._aot_autograd import streams
    from torch.utils import _runtime_estimation

    upstream = streams.get_roofline_estimate

    @functools.wraps(upstream)
    def get_roofline_estimate(node: torch.fx.Node) -> float:
        if torch.accelerator.current_accelerator() != torch.device(DEVICE_TYPE) or _C._delegate_type():
            return upstream(node)
        # Of a core or two; only their proportion matters.
        speed: dict[str, Any] = {"get_gpu_dram_gbps": lambda: 10.0, "get_device_tflops": lambda dtype: 0.1}
        with mock.patch.multiple(_runtime_estimation, **speed):
            return upstream(node)

    streams.get_roofline_estimate = get_roofline_estimate


def wait_for_streams_in_forward_graphs() -> None:
    """AOTAutograd ties an operator that makes a stream wait to the tensors that are read on that stream afterwards, by
    which it also ties one of the forward pass to the gradients that come in at the start of the backward pass.  Then
    no result of the forward pass can be had without them, and cutting the graph in two fails, on every device.  Not in
    the table: it is about AOTAutograd, and is patched when its module is imported.  Test:
    test_streams_inside_of_a_trained_graph."""
    from torch._functorch._aot_autograd import streams

    upstream: Any = getattr(streams, "_collect_wait_stream_forward_deps", None)
    if upstream is None:  # before torch 2.13
        return

    @functools.wraps(upstream)
    def collect(graph: torch.fx.Graph) -> dict[torch.fx.Node, list[torch.fx.Node]]:
        def belongs(tensor: torch.fx.Node, wait: torch.fx.Node) -> bool:
            is_tangent = tensor.op == "placeholder" and "tangents" in str(tensor.target)
            return streams.is_bwd_node(wait) or not is_tangent

        found = upstream(graph)
        return {wait: [t for t in tensors if belongs(t, wait)] for wait, tensors in found.items()}

    streams._collect_wait_stream_forward_deps = collect


def _device_type(x: Any) -> str | None:
    from torch._inductor import ir

    return ir.get_device_type(x)


@_patch(test="test_softmax_and_batch_norm_schedule")
def fuse_as_for_cpu() -> None:
    """The scheduler reorders and reindexes loops into forms that only Triton's code generator takes, guarded by
    `is_cpu()`; with our C++ kernels that ends in a TypeError."""
    from torch._inductor.scheduler import BaseSchedulerNode

    upstream = BaseSchedulerNode.is_cpu

    def is_cpu(self: BaseSchedulerNode) -> bool:
        device = self.get_device()
        return upstream(self) or (device is not None and device.type == DEVICE_TYPE)

    BaseSchedulerNode.is_cpu = is_cpu


@_patch(test="test_what_is_dear_is_computed_once")
def store_what_is_reused_as_for_cpu() -> None:
    """Whether a value that is used several times is stored or computed again is decided by what arithmetic costs, and
    asked of `is_cpu()`; our kernels run where the CPU's do."""
    from torch._inductor import ir

    upstream = ir.is_cpu

    def is_cpu(x: Any) -> bool:
        return upstream(x) or ir.get_device_type(x) == DEVICE_TYPE

    ir.is_cpu = is_cpu


@_patch(test="test_variance_of_short_rows_takes_two_passes")
def take_two_passes_for_variance_as_for_cpu() -> None:
    """Welford's recurrence divides at each step.  On the CPU rows that stay in the cache are read twice in its place;
    for other devices that is done only where a reduction is short enough to be unrolled."""
    from torch._inductor import config, lowering

    upstream = lowering.use_two_step_variance

    @functools.wraps(upstream)
    def use_two_step_variance(x: Any, *args: Any, **kwargs: Any) -> bool:
        if _device_type(x) != DEVICE_TYPE:
            return upstream(x, *args, **kwargs)
        longest = getattr(
            config.cpp, "use_two_step_variance_threshold", 1024
        )  # torch 2.11 has no such option
        with config.patch(unroll_reductions_threshold=longest):
            return upstream(x, *args, **kwargs)

    lowering.use_two_step_variance = use_two_step_variance


@_patch(test="test_parts_of_a_concatenation_are_loops_of_their_own")
def concatenate_as_for_cpu() -> None:
    """For other devices than the CPU a concatenation, and padding at the end, can be one loop that asks of each element
    which part it is of.  Vectors compute all parts then, by indices that they have to gather; loops over the parts
    one after the other need neither."""
    from torch._inductor import ir, lowering

    upstream = lowering.pointwise_cat

    @functools.wraps(upstream)
    def pointwise_cat(inputs: Any, dim: int = 0) -> Any:
        if _device_type(inputs[0]) != DEVICE_TYPE:
            return upstream(inputs, dim)
        return ir.TensorBox(ir.ConcatKernel.create(inputs, dim))

    lowering.pointwise_cat = pointwise_cat

    upstream_pad: Any = getattr(lowering, "_pad_as_cat", None)
    if upstream_pad is not None:  # torch 2.13

        @functools.wraps(upstream_pad)
        def pad_as_cat(x: Any, *args: Any, **kwargs: Any) -> Any:
            return None if _device_type(x) == DEVICE_TYPE else upstream_pad(x, *args, **kwargs)

        lowering._pad_as_cat = pad_as_cat


@_patch(test="test_convolutions_add_their_bias")
def convolve_with_bias_as_for_cpu() -> None:
    """For other devices than the CPU the bias of a convolution is added in a kernel, since cuDNN is slow with one.  Our
    kernels are not, and a result with its bias need not be read and written once more."""
    from torch._inductor import ir, lowering
    from torch._inductor.kernel import conv

    upstream = conv.convolution
    upstream_type = ir.get_device_type

    def device_type(x: Any) -> str | None:
        found = upstream_type(x)
        return "cpu" if found == DEVICE_TYPE else found

    @functools.wraps(upstream)
    def convolution(x: Any, weight: Any, bias: Any, *args: Any, **kwargs: Any) -> Any:
        if bias is None or upstream_type(x) != DEVICE_TYPE:
            return upstream(x, weight, bias, *args, **kwargs)
        with mock.patch.object(ir, "get_device_type", device_type):
            return upstream(x, weight, bias, *args, **kwargs)

    for target, lowered in list(lowering.lowerings.items()):
        if lowered is upstream:
            lowering.lowerings[target] = convolution


@_patch(test="test_argmax_of_permuted_tensor")
def argreduce_by_logical_index() -> None:
    """argmax and argmin over several dimensions count in logical order for Triton and for the CPU only; for other
    devices they count in the order of memory, which is wrong for a permuted tensor.  In PyTorch 2.11 only Triton's
    kernels can, and a contiguous copy is what is counted."""
    from torch._inductor import ir, lowering

    upstream = lowering._make_reduction_inner
    kernels_count = "cpu_backend" in inspect.getsource(upstream)

    @functools.wraps(upstream)
    def make_reduction_inner(x: Any, *args: Any, **kwargs: Any) -> Any:
        if _device_type(x) != DEVICE_TYPE:
            return upstream(x, *args, **kwargs)
        if not kernels_count:
            if kwargs.get("reduction_type") in ("argmax", "argmin"):
                x = ir.ExternKernel.require_contiguous(lowering.clone(x))
            return upstream(x, *args, **kwargs)
        with mock.patch.object(lowering, "is_triton", lambda _: True):  # noqa: PT008 - not a test
            return upstream(x, *args, **kwargs)

    lowering._make_reduction_inner = make_reduction_inner


@_patch(test="test_smallest_and_largest_byte")
def reduce_bytes_as_integers() -> None:
    """A vector register holds more bytes than Inductor's C++ kernels load into it, and amin, amax, argmin and argmax go
    on to compare the rest of the register, which is zero: the smallest of positive bytes is 0, the largest of negative
    ones too. Converted to int32 they fill the registers."""
    from torch._inductor import lowering

    bytes_ = (torch.int8, torch.uint8)

    def widening(upstream: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(upstream)
        def reduce(x: Any, *args: Any, **kwargs: Any) -> Any:
            if _device_type(x) != DEVICE_TYPE or x.get_dtype() not in bytes_:
                return upstream(x, *args, **kwargs)
            result = upstream(lowering.to_dtype(x, torch.int32), *args, **kwargs)
            if isinstance(result, tuple):  # with the index
                return lowering.to_dtype(result[0], x.get_dtype()), result[1]
            is_index = result.get_dtype() == torch.int64
            return result if is_index else lowering.to_dtype(result, x.get_dtype())

        return reduce

    for name in ("amin", "amax", "argmin", "argmax", "min", "max"):
        operator = getattr(torch.ops.aten, name)
        for overload in {getattr(operator, n) for n in operator.overloads()} & lowering.lowerings.keys():
            lowering.lowerings[overload] = widening(lowering.lowerings[overload])


@_patch(test="test_streams_inside_of_a_graph")
def guard_the_device() -> None:
    """The scheduler opens a device guard, and gets hold of the streams of a graph that has several, for the types of
    device it knows.  What the guard looks like is up to our wrapper."""
    from torch._inductor import scheduler

    upstream = scheduler.device_need_guard

    def device_need_guard(device: str) -> bool:
        return device == DEVICE_TYPE or upstream(device)

    scheduler.device_need_guard = device_need_guard


def record_graphs() -> None:
    """Inductor records compiled graphs of CUDA alone: it takes any other device for a reason against it, and
    what records is written for CUDA's own graphs.  It also cuts graphs at operators that cannot be captured
    where nodes are not on a GPU that it knows, which is everywhere.  Not in the table: caches may hand out
    compiled graphs before anything of ours is compiled, so it is patched when `compile_fx` is imported.
    Test: test_reduce_overhead_records.
    """
    from torch._inductor import compile_fx, config, cudagraph_utils
    from torch._inductor.output_code import CompiledFxGraph
    from torch._inductor.utils import BoxedBool

    upstream_reason = cudagraph_utils.check_lowering_disable_cudagraph
    upstream_compile = compile_fx._compile_fx_inner
    upstream_post_compile = CompiledFxGraph.post_compile

    def check_lowering_disable_cudagraph(devices: dict[torch.device, torch.fx.Node]) -> str | None:
        if all(device.type != DEVICE_TYPE for device in devices):
            return upstream_reason(devices)
        from .graph import reason_against

        return reason_against(devices)

    @functools.wraps(upstream_compile)
    def compile_fx_inner(gm: torch.fx.GraphModule, example_inputs: Any, **kwargs: Any) -> Any:
        values = (node.meta.get("val") for node in gm.graph.nodes)
        if any(isinstance(value, torch.Tensor) and value.device.type == DEVICE_TYPE for value in values):
            with config.patch(graph_partition=False):
                return upstream_compile(gm, example_inputs, **kwargs)
        return upstream_compile(gm, example_inputs, **kwargs)

    @functools.wraps(upstream_post_compile)
    def post_compile(self: Any, example_inputs: Any, constants: Any, graph_kwargs: Any) -> None:
        if DEVICE_TYPE not in self.device_types:
            upstream_post_compile(self, example_inputs, constants, graph_kwargs)
            return
        upstream_post_compile(
            self, example_inputs, constants, {**graph_kwargs, "cudagraphs": BoxedBool(False)}
        )
        if graph_kwargs["cudagraphs"]:
            from .graph import record

            record(self, constants.unwrap(self))
        elif config.triton.cudagraphs and self.disabled_cudagraphs_reason:  # counted already, in silence
            cudagraph_utils.cudagraphs_log.warning(
                "skipping cudagraphs due to %s", self.disabled_cudagraphs_reason
            )

    cudagraph_utils.check_lowering_disable_cudagraph = check_lowering_disable_cudagraph
    compile_fx._compile_fx_inner = compile_fx_inner
    CompiledFxGraph.post_compile = post_compile


@_patch(test="test_generated_cpp_includes_our_headers")
def build_against_our_library() -> None:
    """The command lines for generated C++ know the headers and libraries of some devices only."""
    from torch._inductor import cpp_builder

    from .launch import PACKAGE

    upstream = cpp_builder.get_cpp_torch_device_options

    @functools.wraps(upstream)
    def get_cpp_torch_device_options(device_type: str, *args: Any, **kwargs: Any) -> Any:
        options = upstream(device_type, *args, **kwargs)
        if device_type == DEVICE_TYPE:
            _, include_dirs, _, _, libraries_dirs, libraries, _ = options
            include_dirs += [str(PACKAGE / "include"), str(PACKAGE / "include" / "aoti")]
            libraries_dirs.append(str(PACKAGE / "lib"))
            libraries.append("torch_simdev")
        return options

    cpp_builder.get_cpp_torch_device_options = get_cpp_torch_device_options


@_patch(test="test_optional_tensors_of_a_package")
def write_optional_tensors_as_such() -> None:
    """A package describes the operators that it finds in the dispatcher.  A list of optional tensors, such as the
    indices of a masked selection, is described as a list of tensors where none is missing, and then is passed as one,
    which the dispatcher refuses.  Inductor calls these operators of the devices it knows by a function of their own."""
    from torch._export.serde.schema import Argument, OptionalTensorArgument
    from torch._inductor import ir
    from torch._inductor.virtualized import V

    upstream = ir.FallbackKernel.export_extern_kernel_node

    @functools.wraps(upstream)
    def export_extern_kernel_node(self: Any) -> Any:
        arguments = upstream(self)
        if V.graph.aot_mode and _device_type(self) == DEVICE_TYPE:
            optional = {
                a.name for a in self.op_overload._schema.arguments if str(a.type) == "List[Optional[Tensor]]"
            }
            for given in V.extern_kernel_nodes[-1].node.inputs:
                if given.name in optional and given.arg.type == "as_tensors":
                    tensors = [OptionalTensorArgument.create(as_tensor=each) for each in given.arg.as_tensors]
                    given.arg = Argument.create(as_optional_tensors=tensors)
        return arguments

    ir.FallbackKernel.export_extern_kernel_node = export_extern_kernel_node
