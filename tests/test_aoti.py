"""Ahead of time: exported models with weights on simdev, packaged, loaded in Python and in a C++ program.

Compiling a package takes C++ compilers tens of seconds, so one package serves the tests of a normal run.
"""

from __future__ import annotations

import gc
import importlib.util
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "aoti"
BATCHES = (1, 3, 100)
MEGABYTE = 1 << 20


class MLP(nn.Module):
    """Its first weight is one megabyte."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.LayerNorm(1024), nn.Linear(1024, 16))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).softmax(-1)


class Function(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Tensor) -> Any:
        return self.function(*args)


def package(
    model: nn.Module, inputs: tuple[Tensor, ...], path: Path, dynamic: Any = None, **options: Any
) -> str:
    with torch.no_grad():
        exported = torch.export.export(model, inputs, dynamic_shapes=dynamic)
        return torch._inductor.aoti_compile_and_package(
            exported, package_path=str(path), inductor_configs=options
        )


def batches() -> tuple[dict[int, Any]]:
    return ({0: torch.export.Dim("batch", min=1, max=1024)},)


@pytest.fixture(scope="module")
def mlp() -> nn.Module:
    torch.manual_seed(0)
    return MLP().to("simdev").eval().requires_grad_(False)


@pytest.fixture(scope="module")
def mlp_package(mlp: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("aoti") / "mlp.pt2"
    return package(mlp, (torch.randn(8, 256, device="simdev"),), path, batches())


@pytest.fixture(scope="module")
def loaded(mlp_package: str) -> Any:
    return torch._inductor.aoti_load_package(mlp_package)


def input_of(batch: int, device: str = "simdev") -> Tensor:
    return torch.randn(batch, 256, generator=torch.Generator().manual_seed(batch)).to(device)


@pytest.mark.parametrize("batch", BATCHES)
def test_equals_eager(loaded, mlp, batch):
    output = loaded(input_of(batch))
    assert output.device == torch.device("simdev", 0)
    torch.testing.assert_close(output, mlp(input_of(batch)))


def test_export_leaves_the_batch_of_attention_dynamic():
    attend = Function(lambda q: F.scaled_dot_product_attention(q, q, q))
    exported = torch.export.export(
        attend, (torch.randn(4, 2, 10, 8, device="simdev"),), dynamic_shapes=(batches(),)
    )
    q = torch.randn(7, 2, 10, 8, device="simdev")
    torch.testing.assert_close(exported.module()(q), attend(q))


def test_runs_our_fused_kernels(mlp_package, loaded):
    with zipfile.ZipFile(mlp_package) as archive:
        (wrapper,) = [name for name in archive.namelist() if name.endswith("wrapper.cpp")]
        code = archive.read(wrapper).decode()
    assert re.search(r"// Fuses aten\.(gelu, aten\.native_layer_norm|native_layer_norm, aten\.gelu)\n", code)
    assert code.count("static const AOTISimdevKernel") == 2  # gelu with layer norm, softmax
    assert code.count("AOTI_SIMDEV_CHECK(aoti_torch_simdev_addmm_out(") == 2
    torch.simdev.reset_fallbacks()
    loaded(input_of(3))
    assert torch.simdev.fallbacks() == {}


def test_returns_before_the_stream_gets_to_it(loaded, mlp):
    x = input_of(3)
    loaded(x)
    stream = torch.Stream(device="simdev")
    stream.wait_stream(torch.accelerator.current_stream())
    with stream:
        torch.simdev._sleep(int(0.3e9))
        output = loaded(x)
        assert not stream.query()
    stream.synchronize()
    torch.testing.assert_close(output, mlp(x))


def test_weights_are_in_device_memory(mlp_package):
    gc.collect()
    before = torch.accelerator.memory_allocated()
    model = torch._inductor.aoti_load_package(mlp_package)
    assert MEGABYTE <= torch.accelerator.memory_allocated() - before < 1.2 * MEGABYTE
    assert "layers.0.weight" in model.get_constant_fqns()
    del model
    gc.collect()
    assert torch.accelerator.memory_allocated() == before


def test_unloading_waits_for_its_kernels(mlp_package, mlp):
    model = torch._inductor.aoti_load_package(mlp_package)
    x = input_of(3)
    torch.simdev._sleep(int(0.1e9))
    output = model(x)
    del model
    gc.collect()
    torch.testing.assert_close(output, mlp(x))


def test_another_device_than_it_was_compiled_on(mlp_package, mlp):
    model = torch._inductor.aoti_load_package(mlp_package, device_index=1)
    output = model(input_of(3, "simdev:1"))
    assert output.device == torch.device("simdev", 1)
    assert torch.accelerator.current_device_index() == 0
    torch.testing.assert_close(output.cpu(), mlp(input_of(3)).cpu())


@pytest.mark.parametrize("device", ["simdev", "cpu"])
def test_weights_can_be_exchanged(mlp_package, device):
    model = torch._inductor.aoti_load_package(mlp_package)
    torch.manual_seed(1)
    other = MLP().to("simdev").eval().requires_grad_(False)
    weights = {name: value.to(device) for name, value in other.state_dict().items()}
    options = {} if device == "simdev" else {"allow_h2d_copy": True}
    model.load_constants(weights, check_full_update=True, **options)
    torch.testing.assert_close(model(input_of(3)), other(input_of(3)))


def test_a_package_needs_an_input_on_the_device(loaded):
    with pytest.raises(
        RuntimeError, match=r"must be on simdev|Expected all tensors to be on the same device"
    ):
        loaded(input_of(3, "cpu"))


@pytest.mark.skipif(shutil.which("cmake") is None, reason="the example is built with CMake")
@pytest.mark.timeout(400)
def test_example_runs_without_python(run_python, tmp_path):
    spec = importlib.util.find_spec("torch_simdev")
    assert spec is not None and spec.origin is not None
    build = tmp_path / "build"

    def run(*command: str) -> str:
        result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    expected = run(sys.executable, str(EXAMPLE / "export_model.py"), "model.pt2")
    prefix, simdev = torch.utils.cmake_prefix_path, Path(spec.origin).parent
    run("cmake", "-B", str(build), f"-DCMAKE_PREFIX_PATH={prefix}", f"-DTORCH_SIMDEV={simdev}", str(EXAMPLE))
    run("cmake", "--build", str(build))
    program = str(build / "run_model")
    printed = run(program, "model.pt2")
    assert len(printed.splitlines()) == 3
    assert printed.splitlines() == expected.splitlines()[-3:]
    assert "libpython" not in run("ldd", program) and "libtorch_python" not in run("ldd", program)


# --- What takes a package of its own ------------------------------------------------------------------------


class CNN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, stride=2, bias=False),
            nn.AdaptiveAvgPool2d(2),
        )
        self.head = nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x).flatten(1))


def transformer() -> nn.Module:
    layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 16, num_layers=2, bidirectional=True, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.lstm(x)[0]


class Counter(nn.Module):
    """Changes a buffer at each call."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1)
        return x.sin() * self.calls


def operators(x: Tensor, index: Tensor) -> tuple[Tensor, ...]:
    """Through C functions of their own, through the dispatcher, and in fused kernels."""
    batched = torch.baddbmm(x, x, x)
    return (
        torch.bmm(batched, x).cos(),
        torch.sort(x, -1, descending=True).values,
        torch.cumsum(x.exp(), 1),
        torch.zeros_like(x).scatter_reduce(2, index, x, "amax", include_self=False),
        x.flatten().topk(3).indices,
        x.view(torch.int32) + 1,
        F.scaled_dot_product_attention(x[None], x[None], x[None], is_causal=True),
    )


def close(actual: Any, expected: Any) -> None:
    torch.testing.assert_close(actual, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("make", "shape"),
    [(CNN, (4, 3, 16, 16)), (transformer, (4, 10, 64)), (Recurrent, (4, 10, 8))],
    ids=["cnn", "transformer", "recurrent"],
)
def test_models(tmp_path, make, shape):
    torch.manual_seed(0)
    model = make().to("simdev").eval().requires_grad_(False)
    path = package(model, (torch.randn(shape, device="simdev"),), tmp_path / "model.pt2", batches())
    loaded = torch._inductor.aoti_load_package(path)
    for batch in BATCHES:
        x = torch.randn(batch, *shape[1:], device="simdev")
        close(loaded(x), model(x))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_operators_outside_of_kernels(tmp_path):
    x = torch.randn(3, 5, 5, device="simdev")
    index = torch.randint(5, (3, 5, 5), device="simdev")
    path = package(Function(operators), (x, index), tmp_path / "model.pt2")
    close(torch._inductor.aoti_load_package(path)(x, index), operators(x, index))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_buffer_that_changes(tmp_path):
    x = torch.randn(4, device="simdev")
    path = package(Counter().to("simdev"), (x,), tmp_path / "model.pt2")
    loaded = torch._inductor.aoti_load_package(path)
    for calls in (1, 2, 3):
        close(loaded(x), x.sin() * calls)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_constants_folded_at_run_time(tmp_path):
    torch.manual_seed(0)

    class Folded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(16, 16))

        def forward(self, x: Tensor) -> Tensor:
            return x @ (self.weight.t() * 2 + 1).tanh()

    model = Folded().to("simdev").requires_grad_(False)
    x = torch.randn(4, 16, device="simdev")
    options = {"aot_inductor.use_runtime_constant_folding": True}
    path = package(model, (x,), tmp_path / "model.pt2", **options)
    close(torch._inductor.aoti_load_package(path)(x), model(x))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_an_index_out_of_bounds_is_a_device_error(tmp_path):
    table = torch.arange(10.0, device="simdev")
    lookup = lambda table, index: table[index] + 1
    index = torch.tensor([3, 9], device="simdev")
    path = package(Function(lookup), (table, index), tmp_path / "model.pt2")
    loaded = torch._inductor.aoti_load_package(path)
    assert loaded(table, index).tolist() == [4.0, 10.0]
    loaded(table, torch.tensor([3, 10], device="simdev"))
    with pytest.raises(torch.AcceleratorError, match="index out of bounds"):
        torch.accelerator.synchronize()


@pytest.mark.slow
def test_no_packages_under_a_delegate(run_python):
    code = """
import torch
model = torch.nn.Linear(4, 4).to("simdev").requires_grad_(False)
exported = torch.export.export(model, (torch.ones(2, 4, device="simdev"),))
try:
    torch._inductor.aoti_compile_and_package(exported)
except NotImplementedError as error:
    print(error)
"""
    printed = run_python(code, SIMDEV_DRIVER="delegate").stdout
    assert "packages for simdev run on the simulated chip" in printed


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_weights_on_the_host_stay_there(tmp_path):
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("scale", torch.tensor(2.5))
            self.weight = nn.Parameter(torch.randn(8))

        def forward(self, x: Tensor) -> Tensor:
            return (x + self.weight) * self.scale

    model = Mixed().requires_grad_(False)
    model.weight = nn.Parameter(model.weight.to("simdev"), requires_grad=False)
    x = torch.randn(8, device="simdev")
    path = package(model, (x,), tmp_path / "model.pt2")
    close(torch._inductor.aoti_load_package(path)(x), model(x))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("dynamic", [False, True])
def test_cpp_wrapper(dynamic):
    """The option of torch.compile: the same C++, in a module that is loaded at once."""
    torch._dynamo.reset()
    model = MLP().to("simdev").requires_grad_(False)
    compiled = torch.compile(model, dynamic=dynamic, options={"cpp_wrapper": True})
    for batch in BATCHES[: 3 if dynamic else 1]:
        close(compiled(input_of(batch)), model(input_of(batch)))
    torch._dynamo.reset()
