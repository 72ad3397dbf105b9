"""torch.compile on the device: both spellings, gradients, dynamic shapes, in-place, several devices."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.conformance.compare import check_same

DEV = "simdev"
BACKENDS = ["inductor", "simdev"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]


@pytest.fixture(autouse=True)
def fresh_dynamo() -> None:
    torch._dynamo.reset()


@pytest.mark.parametrize("backend", BACKENDS)
def test_pointwise_and_gradient(backend: str) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x) * torch.cos(x) + torch.tanh(x)

    x = torch.randn(33, 17)
    d = x.to(DEV).requires_grad_()
    x.requires_grad_()
    out = torch.compile(f, backend=backend, fullgraph=True)(d)
    check_same(out, f(x))
    out.sum().backward()
    f(x).sum().backward()
    check_same(d.grad, x.grad)


FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "softmax": lambda x: torch.softmax(x * 2, -1),
    "layer norm and gelu": lambda x: torch.nn.functional.gelu(
        torch.nn.functional.layer_norm(x, x.shape[-1:])
    ),
    "matmul": lambda x: (x @ x.t()).relu().sum(0),
    "in place": lambda x: x.clone().add_(1).mul_(x),
    "views": lambda x: x.t()[1:, ::2].contiguous() + 1,
    "argmax": lambda x: x.t().argmax(0),
    "index": lambda x: x[torch.arange(3, device=x.device)] + x.mean(),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str) -> None:
    x = torch.randn(8, 12)
    check_same(torch.compile(FUNCTIONS[name])(x.to(DEV)), FUNCTIONS[name](x))


def test_dynamic_shapes_compile_at_most_twice() -> None:
    counter = torch._dynamo.testing.CompileCounterWithBackend("inductor")
    f = torch.compile(lambda x: (x * 2).sum(-1), backend=counter)
    for n in (5, 6, 7, 9, 20):
        x = torch.randn(4, n)
        check_same(f(x.to(DEV)), (x * 2).sum(-1))
    assert counter.frame_count <= 2


def test_several_devices() -> None:
    f = torch.compile(lambda x: x.sin() + 1)
    x = torch.randn(10)
    for index in range(2):
        out = f(x.to(f"{DEV}:{index}"))
        assert out.device.index == index
        check_same(out, x.sin() + 1)


def test_training_with_a_compiled_model() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 1))
    twin = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 1))
    twin.load_state_dict(model.state_dict())
    twin.to(DEV)
    x = torch.randn(32, 8)
    compiled = torch.compile(twin)
    for net, call, inputs in ((model, model, x), (twin, compiled, x.to(DEV))):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            call(inputs).square().mean().backward()
            optimizer.step()
    check_same(list(twin.parameters()), list(model.parameters()), rtol=1e-4, atol=1e-5)
