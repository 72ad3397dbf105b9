"""torch_simdev.compile.tools: what each instrument shows is what happened, and what it changes is changed."""

from __future__ import annotations

import logging
import operator
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

torch._dynamo = pytest.importorskip("torch._dynamo")
from torch._inductor import decomposition, lowering  # noqa: E402

from torch_simdev.compile.tools import (  # noqa: E402
    STATIONS,
    GraphTool,
    Observer,
    Profiler,
    Rewriter,
    Station,
    Statistics,
    bisect,
    compose,
    count_operators,
    explain,
    hand_over,
    torchscript,
)

aten = torch.ops.aten
compiles_cpp = pytest.mark.slow
pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def loss(x: Tensor, weight: Tensor) -> Tensor:
    return F.gelu(x @ weight).square().sum()


def operands(requires_grad: bool = True) -> tuple[Tensor, Tensor]:
    x = torch.randn(8, 16, device="simdev")
    return x, torch.randn(16, 4, device="simdev").requires_grad_(requires_grad)


# --- Observer -----------------------------------------------------------------------------------------------


def test_observer_shows_both_levels_and_both_directions():
    shown = []
    observer = Observer("aot_eager", show=shown.append)
    x, weight = operands()
    result = torch.compile(loss, backend=observer)(x, weight)
    result.backward()
    torch.testing.assert_close(result, loss(x, weight))
    assert shown == observer.graphs
    assert [(graph.number, graph.level, graph.direction) for graph in shown] == [
        (0, "dynamo", "forward"),
        (0, "aten", "forward"),
        (0, "aten", "backward"),
    ]
    assert shown[0].operators == ["operator.matmul", "torch._C._nn.gelu", "Tensor.square", "Tensor.sum"]
    assert {"aten.mm.default", "aten.gelu.default"} <= set(shown[1].operators)
    assert "aten.gelu_backward.default" in shown[2].operators
    assert "F.gelu(x @ weight)" in shown[0].code  # where in the program a line comes from
    assert "torch.ops.aten.gelu_backward.default" in str(shown[2])


def test_observer_counts_graphs_over_a_break():
    def broken(x: Tensor) -> Tensor:
        y = x + 1
        torch._dynamo.graph_break()
        return y * 2

    observer = Observer("aot_eager", show=lambda graph: None)
    torch.compile(broken, backend=observer)(torch.ones(3, device="simdev"))
    assert [graph.title for graph in observer.graphs] == [
        "graph 0, Dynamo",
        "graph 0, ATen, inference",
        "graph 1, Dynamo",
        "graph 1, ATen, inference",
    ]


@compiles_cpp
@pytest.mark.parametrize("backend", ["simdev", "inductor"])
def test_observer_before_inductor_sees_decomposed_operators(backend):
    observer = Observer(backend, show=lambda graph: None)
    x, weight = operands()
    compiled = torch.compile(loss, backend=observer)
    compiled(x, weight).backward()
    _, forward, backward = observer.graphs
    assert forward.direction == "forward"
    assert backward.direction == "backward"
    assert "aten.erf.default" in forward.operators
    assert "aten.gelu.default" not in forward.operators
    # A second compilation is observed too, though the compiler has the graph in its caches.
    torch._dynamo.reset()
    again = Observer(backend, show=lambda graph: None)
    torch.compile(loss, backend=again)(x, weight)
    assert again.graphs[1].operators == forward.operators


# --- Statistics ---------------------------------------------------------------------------------------------


def test_statistics_of_a_known_graph():
    statistics = Statistics()
    x, weight = operands()
    torch.compile(loss, backend=statistics)(x, weight).backward()
    forward, backward = statistics.graphs
    product = forward.operators["aten.mm.default"]
    assert (product.calls, product.flops) == (1, 2 * 8 * 16 * 4)
    assert product.bytes_read == (8 * 16 + 16 * 4) * 4
    assert product.bytes_written == 8 * 4 * 4
    assert forward.operators["aten.sum.default"].bytes_written == 4
    assert forward.operators["aten.t.default"].bytes_read == 0  # a view
    assert forward.flops == product.flops
    assert (
        backward.operators["aten.mm.default"].flops == 2 * 8 * 16 * 4
    )  # of the weight alone: x needs no gradient
    assert forward.bytes_moved == sum(
        count.bytes_read + count.bytes_written for count in forward.operators.values()
    )
    assert "1,024 FLOPs" in str(statistics)


def test_statistics_count_results_of_several_tensors_and_expanded_inputs_once():
    class Norm(nn.Module):
        def forward(self, x: Tensor, bias: Tensor) -> Tensor:
            return torch.native_layer_norm(x + bias, (16,), None, None, 1e-5)[0]

    exported = torch.export.export(Norm(), (torch.randn(8, 16), torch.randn(1, 1).expand(8, 16)))
    counts = count_operators(exported.graph_module).operators
    assert counts["aten.add.Tensor"].bytes_read == 8 * 16 * 4 + 4
    assert counts["aten.native_layer_norm.default"].bytes_written == (8 * 16 + 8 + 8) * 4


def test_statistics_of_dynamic_sizes_are_those_of_the_inputs():
    statistics = Statistics()
    x = torch.randn(6, 10, device="simdev")
    torch.compile(lambda x: x @ x.t(), backend=statistics, dynamic=True)(x)
    assert statistics.graphs[0].flops == 2 * 6 * 10 * 6


# --- Rewriter -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("replacements", [{torch.sin: torch.cos}, {aten.sin.default: aten.cos.default}])
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("simdev", marks=compiles_cpp)])
def test_rewriter_proves_its_change(replacements, backend):
    x = torch.randn(20, device="simdev")
    proof = Rewriter(replacements, backend).prove(
        lambda x: torch.sin(x) + torch.sin(2 * x), lambda x: torch.cos(x) + torch.cos(2 * x), x
    )
    assert proof.replaced == 2
    torch.testing.assert_close(proof.rewritten, torch.cos(x) + torch.cos(2 * x))
    torch.testing.assert_close(proof.original, torch.sin(x) + torch.sin(2 * x))


def test_rewriter_refuses_what_it_cannot_prove():
    x = torch.randn(20, device="simdev")
    rewriter = lambda old, new: Rewriter({old: new}, "aot_eager")
    with pytest.raises(AssertionError, match="no node was replaced"):
        rewriter(torch.cos, torch.sin).prove(torch.sin, torch.cos, x)
    with pytest.raises(AssertionError, match="still the original's"):
        rewriter(aten.sin.default, aten.sin.default).prove(torch.sin, torch.sin, x)
    with pytest.raises(AssertionError, match="not close"):
        rewriter(aten.sin.default, aten.cos.default).prove(torch.sin, torch.tanh, x)


def test_rewriter_refuses_another_dtype():
    with pytest.raises(Exception, match=r"isnan.* returns .*torch.bool.* where aten.sin.default returned"):
        torch.compile(torch.sin, backend=Rewriter({aten.sin.default: aten.isnan.default}, "aot_eager"))(
            torch.ones(3, device="simdev")
        )


@compiles_cpp
def test_a_rewritten_graph_is_not_what_others_find_in_the_cache():
    function = lambda x: torch.sin(x) * 3
    x = torch.randn(20, device="simdev")
    Rewriter({aten.sin.default: aten.cos.default}).prove(function, lambda x: torch.cos(x) * 3, x)
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(function, backend="simdev")(x), function(x))


# --- Profiler -----------------------------------------------------------------------------------------------


def test_profiler_times_each_operator_of_both_directions():
    profiler = Profiler()
    x, weight = operands()
    compiled = torch.compile(loss, backend=profiler)
    expected = loss(x, weight)
    expected_gradient = torch.autograd.grad(expected, weight)[0]
    for _ in range(3):
        result = compiled(x, weight)
        torch.testing.assert_close(result, expected)
        torch.testing.assert_close(torch.autograd.grad(result, weight)[0], expected_gradient)
    times = {(time.title, time.operator): time for time in profiler.times()}
    assert times["graph 0, ATen, forward", "aten.gelu.default"].calls == 3
    assert times["graph 0, ATen, backward", "aten.gelu_backward.default"].calls == 3
    assert all(time.milliseconds >= 0 for time in times.values())
    assert not any("aten.t." in name for _, name in times)  # views do nothing on the device
    profiler.reset()
    assert all(time.calls == 0 for time in profiler.times())


def test_profiler_finds_the_long_operator():
    profiler = Profiler()
    a = torch.randn(600, 600, device="simdev")
    compiled = torch.compile(lambda a: (a[:2] + 1) @ a.sin() @ a @ a, backend=profiler)
    compiled(a)
    profiler.reset()
    torch.simdev._sleep(20)  # the host is ahead: the times are the device's alone
    compiled(a)
    times = profiler.times()
    assert times == sorted(times, key=lambda time: -time.milliseconds)
    by_node = {time.node: time.milliseconds for time in times}
    assert by_node["sin"] > by_node["add"]
    assert str(times[0]) in str(profiler).splitlines()[0]


# --- bisect -------------------------------------------------------------------------------------------------


def verdicts(bisection) -> list[tuple[str, str]]:
    return [(finding.station.name, finding.verdict) for finding in bisection.findings]


@compiles_cpp
def test_bisect_finds_nothing_in_a_training_step():
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.GELU(), nn.Dropout(0.5)).to("simdev")
    before = [value.clone() for value in model.state_dict().values()]
    result = bisect(model, torch.randn(32, 8, device="simdev", requires_grad=True))
    assert result.culprit is None
    assert verdicts(result) == [
        (station.name, "skipped" if station.name == "device" else "right") for station in STATIONS
    ]  # dropout draws random numbers
    assert "random numbers" in result.findings[0].detail
    assert str(result).endswith("every station is right")
    torch.testing.assert_close(before, list(model.state_dict().values()))  # copies were run


def test_bisect_blames_the_device_for_a_broken_operator():
    library = torch.library.Library("aten", "IMPL")
    library.impl("erfinv", lambda x: x * 2, "PrivateUse1")
    try:
        result = bisect(torch.erfinv, torch.rand(10, device="simdev"))
    finally:
        library._destroy()
    assert verdicts(result) == [("device", "wrong")]
    assert result.culprit.name == "device"
    assert "result 0" in result.findings[0].detail


def test_bisect_blames_dynamo_for_a_broken_capture():
    """A rewritten graph of Dynamo's stands for a wrong capture."""
    eager = Rewriter({torch.sin: torch.cos}, "eager")
    broken = Station("eager", "Dynamo", lambda function: torch.compile(function, backend=eager))
    stations = [broken if station.name == "eager" else station for station in STATIONS]
    result = bisect(torch.sin, torch.rand(10, device="simdev"), stations=stations)
    assert result.culprit.name == "eager"


def test_bisect_blames_a_broken_decomposition():
    with mock.patch.dict(decomposition.decompositions, {aten.silu.default: lambda x: x}):
        result = bisect(F.silu, torch.randn(10, device="simdev"))
    assert verdicts(result)[-1] == ("aot_eager_decomp_partition", "wrong")
    assert "the wrong result starts at aot_eager_decomp_partition: decompositions" in str(result)


def test_bisect_blames_a_broken_gradient_alone():
    broken = lambda gradient, x: gradient
    with mock.patch.dict(decomposition.decompositions, {aten.silu_backward.default: broken}):
        result = bisect(F.silu, torch.randn(10, device="simdev", requires_grad=True))
    assert verdicts(result)[-1] == ("aot_eager_decomp_partition", "wrong")
    assert result.findings[-1].detail.startswith("gradient 0")


@compiles_cpp
def test_bisect_blames_a_broken_lowering():
    with mock.patch.dict(lowering.lowerings, {aten.tanh.default: lowering.lowerings[aten.sigmoid.default]}):
        result = bisect(torch.tanh, torch.randn(10, device="simdev"))
    assert verdicts(result)[-1] == ("inductor", "wrong")


@compiles_cpp
def test_bisect_blames_a_lowering_that_fails():
    def fails(x):
        raise NotImplementedError("no tanh today")

    with mock.patch.dict(lowering.lowerings, {aten.tanh.default: fails}):
        result = bisect(torch.tanh, torch.randn(10, device="simdev"))
    assert verdicts(result)[-1] == ("inductor", "failed")


@compiles_cpp
def test_bisect_blames_our_code_generator_for_a_broken_kernel(monkeypatch):
    from torch_simdev.compile.scheduling import SimdevKernelGroup

    right = SimdevKernelGroup.codegen_group
    broken = lambda self, name=None: right(self, name).replace(".floor()", ".ceil()")
    monkeypatch.setattr(SimdevKernelGroup, "codegen_group", broken)
    result = bisect(torch.floor, torch.randn(64, device="simdev"))
    assert verdicts(result)[-2:] == [("inductor", "right"), ("simdev", "wrong")]


def test_bisect_runs_on_copies_that_lie_in_memory_as_the_arguments_do():
    x = torch.arange(12.0, device="simdev")[2:].as_strided((3, 4), (1, 0))
    seen = []

    def function(x: Tensor, y: Tensor) -> Tensor:
        seen.append((x.device.type, x.stride(), x.storage_offset(), x.tolist()))
        return y.add_(1)

    y = torch.ones(3, device="simdev")
    eager = [station for station in STATIONS if station.name == "device"]
    assert verdicts(bisect(function, x, y, stations=eager)) == [("device", "right")]
    assert {device for device, *_ in seen} == {"cpu", "simdev"}
    assert {str(rest) for _, *rest in seen} == {str([(1, 0), 2, x.tolist()])}
    assert y.tolist() == [1, 1, 1]


def test_bisect_blames_a_backend_that_forgets_to_change_an_argument():
    def forgets(gm, example_inputs):
        return lambda *inputs: gm.forward(*(value.clone() for value in inputs))

    stations = [Station("forgets", "it", lambda function: torch.compile(function, backend=forgets))]
    result = bisect(lambda x: x.add_(1).sum(), torch.ones(3, device="simdev"), stations=stations)
    assert verdicts(result) == [("forgets", "wrong")]
    assert result.findings[0].detail.startswith("argument 0")


@compiles_cpp
def test_bisect_of_cpu_tensors():
    result = bisect(torch.tanh, torch.randn(10))
    assert [finding.station.name for finding in result.findings if finding.verdict == "right"] == [
        "eager",
        "aot_eager",
        "aot_eager_decomp_partition",
        "inductor",
    ]


def test_bisect_raises_what_the_function_raises():
    with pytest.raises(RuntimeError, match="must match the size"):
        bisect(torch.add, torch.ones(2, device="simdev"), torch.ones(3, device="simdev"))


# --- compose ------------------------------------------------------------------------------------------------


def refuses(gm, example_inputs, **kwargs):
    for node in gm.graph.nodes:  # leaves the graph in pieces behind
        node.target = operator.neg if node.op == "call_function" else node.target
    raise NotImplementedError("not this graph")


def test_the_first_backend_that_compiles_is_taken(caplog):
    x, weight = operands()
    calls = []
    last = lambda gm, example_inputs: calls.append(gm)
    with caplog.at_level(logging.WARNING):
        result = torch.compile(loss, backend=compose(refuses, "aot_eager", last))(x, weight)
    torch.testing.assert_close(result, loss(x, weight))
    result.backward()
    assert weight.grad is not None
    assert calls == []
    assert [
        record.getMessage() for record in caplog.records if "backend" in record.name + record.getMessage()
    ] == [
        "backend refuses did not compile a graph: NotImplementedError: not this graph",
        "backend aot_eager compiled the graph",
    ]


@compiles_cpp
def test_a_chain_goes_on_where_lowering_fails(caplog):
    def fails(x):
        raise NotImplementedError("no tanh today")

    x = torch.randn(10, device="simdev", requires_grad=True)
    with mock.patch.dict(lowering.lowerings, {aten.tanh.default: fails}), caplog.at_level(logging.WARNING):
        result = torch.compile(lambda x: torch.tanh(x) * x, backend=compose("simdev", "aot_eager"))(x)
    assert "backend simdev did not compile a graph: " in caplog.text
    assert "no tanh today" in caplog.text
    torch.testing.assert_close(result, torch.tanh(x) * x)
    expected = torch.autograd.grad((torch.tanh(x) * x).sum(), x)
    torch.testing.assert_close(torch.autograd.grad(result.sum(), x), expected)


def test_a_chain_that_fails_says_what_each_said():
    with pytest.raises(
        Exception, match=r"No backend compiled the graph\. refuses: NotImplementedError: not this"
    ):
        torch.compile(loss, backend=compose(refuses, refuses))(*operands())
    with pytest.raises(ValueError, match="at least one"):
        compose()
    with pytest.raises(Exception, match="nonesuch"):
        compose("nonesuch")


def test_a_chain_leaves_dynamos_own_signals_alone():
    def restarts(gm, example_inputs):
        raise torch._dynamo.exc.SkipFrame("not a failure")

    reached = []
    compiled = torch.compile(
        lambda x: x + 1, backend=compose(restarts, lambda gm, inputs: reached.append(gm))
    )
    assert compiled(torch.ones(2, device="simdev")).tolist() == [2, 2]
    assert reached == []


def test_the_simdev_backend_takes_a_chain(monkeypatch, caplog):
    from torch_simdev.compile import backend

    def fails(*args, **kwargs):
        raise NotImplementedError("no code today")

    monkeypatch.setattr(backend, "compile_fx", fails)
    x = torch.randn(10, device="simdev")
    compiled = torch.compile(torch.sin, backend="simdev", options={"fallback": ["eager"]})
    with caplog.at_level(logging.WARNING):
        torch.testing.assert_close(compiled(x), torch.sin(x))
    assert "backend simdev did not compile a graph: NotImplementedError: no code today" in caplog.text


# --- hand_over ----------------------------------------------------------------------------------------------


def test_torchscript_optimises_forward_and_backward():
    x, weight = operands()
    expected = loss(x, weight)
    result = torch.compile(loss, backend=hand_over(torchscript))(x, weight)
    torch.testing.assert_close(result, expected)
    torch.testing.assert_close(torch.autograd.grad(result, weight), torch.autograd.grad(expected, weight))


def test_an_optimiser_gets_whole_graphs_and_runs_them():
    graphs = []

    def optimiser(gm, example_inputs):
        graphs.append([node.target for node in gm.graph.nodes if node.op == "call_function"])
        assert example_inputs[0].shape == (5,)
        return lambda x: (x + 10,)

    compiled = torch.compile(lambda x: x.sin() + 1, backend=hand_over(optimiser))
    assert compiled(torch.zeros(5, device="simdev")).tolist() == [10.0] * 5
    assert graphs == [[aten.sin.default, aten.add.Tensor]]


# --- explain ------------------------------------------------------------------------------------------------


@compiles_cpp
def test_explain_of_the_seed_function():
    x = torch.randn(64, 64, device="simdev")
    explanation = explain(lambda x: torch.sin(x) * torch.cos(x) + torch.tanh(x))(x)
    assert (explanation.graph_count, explanation.breaks) == (1, [])
    [kernel] = explanation.kernels
    assert kernel.operators == ["aten.sin", "aten.cos", "aten.mul", "aten.tanh", "aten.add"]
    size = x.nbytes
    assert (kernel.bytes_read, kernel.bytes_written) == (size, size)
    assert kernel.eager_bytes == (2 + 2 + 3 + 2 + 3) * size
    assert "SIMDEV_KERNEL_ENTRY" in kernel.source
    assert explanation.fallbacks == {}
    assert any(guard.startswith("TENSOR_MATCH L['x']") for guard in explanation.guards)
    assert f"moves {2 * size:,} bytes, eager {12 * size:,}" in str(explanation)


@compiles_cpp
def test_explain_of_breaks_calls_and_fallbacks():
    library = torch.library.Library("simdev_explain", "DEF")
    library.define("on_the_host(Tensor x) -> Tensor")
    library.impl("on_the_host", lambda x: x + 1, "CPU")  # without a Meta kernel it cannot be launched

    @torch._dynamo.disable
    def on_the_host(x: Tensor) -> Tensor:
        return torch.ops.simdev_explain.on_the_host(x)

    def function(x: Tensor) -> Tensor:
        y = torch.cumsum(x @ x, 0)
        if y.sum().item() > 1e9:
            y = y + 1
        return on_the_host(y.sin())

    try:
        explanation = explain(function)(torch.randn(16, 16, device="simdev"))
    finally:
        library._destroy()
    assert explanation.graph_count == 2
    item, disabled = explanation.breaks
    assert "item" in item
    assert "test_compile_tools.py" in item
    assert "disable" in disabled
    first, second = explanation.graphs
    assert sum(first.called.values()) == 1  # the product
    assert first.not_lowered == {"aten.cumsum.default": 1}
    assert [kernel.operators for kernel in second.kernels] == [["aten.sin"]]
    assert explanation.fallbacks == {"simdev_explain::on_the_host": 1}
    assert str(explanation).startswith("Dynamo's graphs: 2, breaks: 2, ")


@compiles_cpp
def test_explain_names_what_is_neither_a_kernel_nor_an_operator():
    def function(x: Tensor) -> Tensor:
        y = torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))
        return y.cpu() + 1

    explanation = explain(function)(torch.randn(4, device="simdev"))
    [graph] = explanation.graphs
    assert {"Conditional": 1, "DeviceCopy": 1}.items() <= graph.called.items()


@compiles_cpp
def test_explain_of_a_training_step():
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32)).to("simdev")
    explanation = explain(model)(torch.randn(8, 16, device="simdev"))
    assert [graph.title for graph in explanation.graphs] == [
        "graph 0, ATen, forward",
        "graph 0, ATen, backward",
    ]
    forward, backward = explanation.graphs
    assert "aten.gelu" in {name for kernel in forward.kernels for name in kernel.operators}
    fused = {name for kernel in backward.kernels for name in kernel.operators}
    assert {"aten.gelu_backward", "aten.native_layer_norm_backward"} <= fused
    assert "aten.gelu" not in fused  # it is computed again, which eager does not do
    assert all(kernel.bytes_moved < kernel.eager_bytes for kernel in forward.kernels)
    assert all(parameter.grad is None for parameter in model.parameters())


@compiles_cpp
def test_explain_of_cpu_tensors():
    [kernel] = explain(torch.tanh)(torch.randn(100)).kernels
    assert kernel.operators == ["aten.tanh"]
    assert kernel.bytes_moved == kernel.eager_bytes == 800


# --- The backend --------------------------------------------------------------------------------------------


@compiles_cpp
def test_cpu_tensors_get_inductors_own_code():
    from torch._inductor.utils import run_and_get_code

    x = torch.randn(100)
    result, (code,) = run_and_get_code(torch.compile(torch.tanh, backend="simdev"), x)
    torch.testing.assert_close(result, torch.tanh(x))
    assert "cpp_fused_tanh" in code
    assert "simdev" not in code.lower()


def test_a_tool_of_ones_own_changes_graphs_at_both_levels():
    class Own(GraphTool):
        def at_dynamo(self, graph):
            for node in graph.module.graph.nodes:
                if node.target is operator.add:
                    node.target = operator.sub
            graph.module.recompile()

        def at_aten(self, graph):
            for node in graph.module.graph.nodes:
                if node.target is aten.sub.Tensor:
                    node.args = (node.args[0], 100)
            graph.module.recompile()

    compiled = torch.compile(lambda x: x + 1, backend=Own("aot_eager"))
    assert compiled(torch.zeros(2, device="simdev")).tolist() == [-100, -100]
