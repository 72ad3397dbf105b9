"""`mode="reduce-overhead"`: what is recorded, what is skipped, and results that stay what they are."""

from __future__ import annotations

import gc
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._dynamo.utils import counters

import torch_simdev as simdev


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def recorded() -> int:
    return counters["inductor"]["simdev_graphs_recorded"]


def skipped() -> int:
    return counters["inductor"]["cudagraph_skips"]


def reduce_overhead(function=None, **options):
    return torch.compile(function, mode="reduce-overhead", **options)


def _recordings():
    from torch_simdev.compile.graph import Recording

    gc.collect()
    return [found for found in gc.get_objects() if type(found) is Recording]


def close(actual, expected):
    torch.testing.assert_close(actual.detach().cpu(), expected.detach().cpu())


# --- What is recorded ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["inductor", "simdev"])
def test_reduce_overhead_records(dev, backend):
    function = reduce_overhead(lambda x, y: ((x @ y).relu(), x.sin()), backend=backend)
    for step in range(5):
        x, y = torch.randn(8, 8), torch.randn(8, 8)
        product, sine = function(x.to(dev), y.to(dev))
        close(product, (x @ y).relu())
        close(sine, x.sin())
        # The second call records; the third finds that the results of the second are still bound.
        assert recorded() == min(step, 2)
    assert skipped() == 0


def test_plain_compile_records_nothing(dev):
    function = torch.compile(lambda x: x.sin())
    for _ in range(3):
        function(torch.ones(4, device=dev))
    assert recorded() == 0 and skipped() == 0


def test_many_kernels_are_one_recording(dev):
    x = torch.randn(64, device=dev)

    def chain(x):
        for _ in range(10):
            x = (x.view(8, 8) @ x.view(8, 8)).view(-1) * 0.1
        return x

    function = reduce_overhead(chain)
    for _ in range(3):
        result = function(x)
    close(result, chain(x.cpu()))
    [recording] = _recordings()
    assert recording.copied == [0] and len(recording.places) == 1


def test_recorded_once_per_size(dev):
    function = reduce_overhead(lambda x: (x * 2).cumsum(0), dynamic=True)
    for _ in range(3):
        for size in (5, 9, 17):
            x = torch.randn(size)
            close(function(x.to(dev)), (x * 2).cumsum(0))
    assert recorded() == 3
    assert skipped() == 0


def test_too_many_sizes_run_as_they_are(dev):
    from torch_simdev.compile import graph

    function = reduce_overhead(lambda x: x * 2, dynamic=True)
    for _ in range(2):
        for size in range(2, 4 + graph.MAX_SIZES):
            assert function(torch.ones(size, device=dev)).tolist() == [2] * size
    assert recorded() == graph.MAX_SIZES
    assert skipped() == 2


def test_parameters_and_static_tensors_are_not_copied(dev):
    model = nn.Linear(4, 4).to(dev)
    static = torch.randn(4, 4, device=dev)
    torch._dynamo.mark_static_address(static)

    @reduce_overhead
    def function(x, y):
        return model(x) + y

    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(4, 4, device=dev)
            close(function(x, static), model(x) + static)
        [recording] = _recordings()
        assert len(recording.copied) == 1
        model.weight.mul_(2)  # in place: the same memory
        static.fill_(3)
        x = torch.randn(4, 4, device=dev)
        close(function(x, static), model(x) + 3)
    assert recorded() == 1


def test_a_parameter_that_moves_is_recorded_anew(dev):
    model = nn.Linear(4, 4).to(dev)
    function = reduce_overhead(model)
    x = torch.randn(2, 4, device=dev)
    with torch.no_grad():
        for _ in range(3):
            function(x)
        model.weight.data = torch.ones(4, 4, device=dev)
        for _ in range(3):
            close(function(x), x.sum(-1, keepdim=True).expand(2, 4) + model.bias)
    assert skipped() == 0


def test_inputs_of_every_layout(dev):
    function = reduce_overhead(lambda a, b, c: a + b + c)
    for step in range(4):
        a = torch.randn(6, 4).t()
        b = torch.randn(4, 1).expand(4, 6)
        c = torch.randn(9, 12)[::2, 5:11][:4]
        given = [t.to(dev) if t.is_contiguous() else None for t in (a, b, c)]
        given[0] = a.t().contiguous().to(dev).t()
        given[1] = b[:, :1].contiguous().to(dev).expand(4, 6)
        given[2] = torch.zeros(9, 12, device=dev)[::2, 5:11][:4].copy_(c)
        close(function(*given), a + b + c)
        assert recorded() == (step >= 1)


def test_replays_in_another_stream_follow_the_first(dev):
    function = reduce_overhead(lambda x: (x * 2).sum())
    x = torch.ones(1000, device=dev)
    for _ in range(3):
        function(x)
    streams = [simdev.Stream() for _ in range(3)]
    results = []
    for value, stream in enumerate(streams, 1):
        with stream:
            simdev._sleep(10)
            results.append(function(torch.full((1000,), float(value), device=dev)))
    simdev.synchronize()
    assert [result.item() for result in results] == [2000.0, 4000.0, 6000.0]


def test_threads_share_a_recording(dev):
    function = reduce_overhead(lambda x: x * x + 1)
    for _ in range(3):
        function(torch.ones(100, device=dev))
    failures = []

    def work(value):
        for _ in range(20):
            if function(torch.full((100,), value, device=dev)).tolist() != [value * value + 1] * 100:
                failures.append(value)

    threads = [threading.Thread(target=work, args=(float(value),)) for value in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_the_second_device(dev):
    function = reduce_overhead(lambda x: x.exp() + 1)
    for device in ("simdev:1", "simdev:0"):
        for _ in range(3):
            x = torch.randn(10)
            result = function(x.to(device))
            assert result.device == torch.device(device)
            close(result, x.exp() + 1)
    assert recorded() == 4  # on each device one, and one more as `result` was still bound
    assert simdev.current_device() == 0


def test_inference_mode_and_back(dev):
    function = reduce_overhead(lambda x: x * 3)
    for mode in (torch.inference_mode, torch.enable_grad, torch.no_grad, torch.inference_mode):
        with mode():
            for _ in range(3):
                assert function(torch.ones(2, device=dev)).tolist() == [3, 3]


def test_graph_breaks_chain_recordings(dev):
    @reduce_overhead
    def function(x):
        y = x.sin()
        torch._dynamo.graph_break()
        return y.cos() + 1

    for _ in range(4):
        x = torch.randn(16)
        close(function(x.to(dev)), x.sin().cos() + 1)
    assert recorded() == 2
    # The second reads the first one's result where it is.
    assert sorted(len(recording.copied) for recording in _recordings()) == [0, 1]


# --- Outputs ------------------------------------------------------------------------------------------------


def test_outputs_that_are_held_keep_their_values(dev):
    function = reduce_overhead(lambda x: (x * 2, (x * 2)[1:]))
    held = [function(torch.full((4,), float(value), device=dev)) for value in range(6)]
    for value, (whole, part) in enumerate(held):
        assert whole.tolist() == [value * 2.0] * 4
        assert part.tolist() == [value * 2.0] * 3


def test_outputs_that_are_dropped_are_not_copied(dev):
    function = reduce_overhead(lambda x: x * 2)
    x = torch.ones(1 << 20, device=dev)
    for _ in range(3):
        result = function(x)
        del result
    before = simdev.memory_allocated()
    addresses = set()
    for _ in range(5):
        result = function(x)
        addresses.add(result.data_ptr())
        del result
    assert len(addresses) == 1
    assert simdev.memory_allocated() == before
    assert recorded() == 1
    held = function(x)
    for _ in range(5):
        result = function(x + 1)  # the one before is still bound while this runs
        assert result.data_ptr() not in addresses
    assert recorded() == 2
    assert held.unique().tolist() == [2]


def test_a_view_of_an_output_holds_it(dev):
    function = reduce_overhead(lambda x: x + 1)
    for _ in range(3):
        function(torch.zeros(6, device=dev))
    out = function(torch.zeros(6, device=dev))
    view = out.view(2, 3)[1]
    del out
    function(torch.ones(6, device=dev))
    assert view.tolist() == [1, 1, 1]


def test_a_stream_that_still_reads_an_output_is_waited_for(dev):
    function = reduce_overhead(lambda x: x + 1)
    for _ in range(3):
        function(torch.zeros(1000, device=dev))
    side = simdev.Stream()
    out = function(torch.full((1000,), 4.0, device=dev))
    side.wait_stream(simdev.current_stream())
    with side:
        simdev._sleep(50)
        seen = out * 10
    out.record_stream(side)
    del out
    function(torch.zeros(1000, device=dev))
    side.synchronize()
    assert seen.unique().tolist() == [50]
    assert recorded() == 1


def test_a_result_that_is_the_next_input(dev):
    function = reduce_overhead(lambda x: x * 2)
    x = torch.ones(8, device=dev)
    for step in range(1, 9):
        x = function(x)
        assert x.tolist() == [2**step] * 8
    assert skipped() == 0


def test_results_outlive_the_function(dev):
    function = reduce_overhead(lambda x: x + 1)
    for _ in range(3):
        result = function(torch.zeros(1 << 20, device=dev))
    del function
    torch._dynamo.reset()
    simdev.empty_cache()
    torch.zeros(1 << 20, device=dev)
    assert result.unique().tolist() == [1]


def test_outputs_that_are_inputs(dev):
    function = reduce_overhead(lambda x, y: (x, y.view(3, 2), x + y.view(-1)))
    for _ in range(4):
        x, y = torch.randn(6, device=dev), torch.randn(6, device=dev)
        same, view, total = function(x, y)
        assert same.data_ptr() == x.data_ptr() and view.data_ptr() == y.data_ptr()
        close(total, x + y)
        assert view.shape == (3, 2)


def test_random_numbers_go_on(dev):
    function = reduce_overhead(lambda x: F.dropout(x, 0.5) + torch.rand_like(x))
    plain = torch.compile(lambda x: F.dropout(x, 0.5) + torch.rand_like(x))
    x = torch.ones(100, device=dev)
    plain(x)
    torch.manual_seed(0)
    expected = [plain(x).cpu() for _ in range(4)]
    torch.manual_seed(0)
    seen = [function(x).cpu() for _ in range(4)]
    assert recorded() == 1
    for one, other in zip(seen, expected):
        assert torch.equal(one, other)
    assert not torch.equal(seen[2], seen[3])


# --- Training -----------------------------------------------------------------------------------------------


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 2))


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("set_to_none", [True, False])
def test_training_equals_eager(dev, accumulate, set_to_none):
    reference, model = make_model(), make_model().to(dev)
    function = reduce_overhead(model)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (reference, model)]
    for _ in range(5):
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=set_to_none)
        for _ in range(accumulate):
            x, target = torch.randn(4, 8), torch.randn(4, 2)
            F.mse_loss(reference(x), target).backward()
            F.mse_loss(function(x.to(dev)), target.to(dev)).backward()
        for own, other in zip(model.parameters(), reference.parameters()):
            torch.testing.assert_close(own.grad.cpu(), other.grad, rtol=1e-4, atol=1e-5)
        for optimizer in optimizers:
            optimizer.step()
    # Forward and backward; and backward once more when gradients of the one before are still there.
    assert recorded() == 2 + (set_to_none and accumulate > 1)
    assert skipped() == 0


def test_two_forwards_before_their_backwards(dev):
    reference, model = make_model(), make_model().to(dev)
    function = reduce_overhead(model)
    for _ in range(5):
        inputs = [torch.randn(4, 8) for _ in range(2)]
        expected = [reference(x).square().sum() for x in inputs]
        seen = [function(x.to(dev)).square().sum() for x in inputs]
        for losses in (expected, seen):
            for loss in losses:
                loss.backward()
        for own, other in zip(model.parameters(), reference.parameters()):
            torch.testing.assert_close(own.grad.cpu(), other.grad, rtol=1e-4, atol=1e-5)
            own.grad = other.grad = None
    assert skipped() == 0


def test_backward_without_a_recorded_forward(dev):
    """What the forward pass saves lies somewhere else each time, and is copied then."""
    weight = torch.randn(4, 4, device=dev, requires_grad=True)

    @reduce_overhead
    def function(x, weight):
        y = (x @ weight).tanh()
        torch._dynamo.graph_break()
        return (y * y).sum()

    keep = []
    for step in range(6):
        x = torch.randn(4, 4, device=dev)
        keep.append(torch.empty(100 * step, device=dev))
        function(x, weight).backward()
        eager = weight.detach().clone().requires_grad_()
        (x @ eager).tanh().square().sum().backward()
        torch.testing.assert_close(weight.grad, eager.grad, rtol=1e-4, atol=1e-5)
        weight.grad = None


def test_compiled_optimizer(dev):
    reference, model = make_model(), make_model().to(dev)
    optimizers = [torch.optim.Adam(m.parameters(), lr=0.01) for m in (reference, model)]
    step = reduce_overhead(optimizers[1].step)
    for _ in range(4):
        x = torch.randn(4, 8)
        for m, given in ((reference, x), (model, x.to(dev))):
            m.zero_grad()
            m(given).square().sum().backward()
        optimizers[0].step()
        step()
        for own, other in zip(model.parameters(), reference.parameters()):
            torch.testing.assert_close(own.detach().cpu(), other.detach(), rtol=1e-4, atol=1e-5)


# --- What is not recorded -----------------------------------------------------------------------------------


def mutates(x):
    x.add_(1)
    return x * 2


def has_cpu_part(x):
    return x + torch.ones(4).sin().sum()


def needs_the_host(x):
    return x[x > 0].sum()


SKIPPED = {"mutated inputs": mutates, "cpu device": has_cpu_part, "incompatible op": needs_the_host}


@pytest.mark.parametrize("reason", SKIPPED)
def test_skips_are_counted_and_results_right(dev, reason, caplog):
    torch._logging.set_logs(cudagraphs=True)
    try:
        with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
            function = reduce_overhead(SKIPPED[reason])
            for _ in range(3):
                x = torch.randn(4)
                given = x.to(dev)
                close(function(given), SKIPPED[reason](x))
                close(given, x)
    finally:
        torch._logging.set_logs()
    assert skipped() == 1
    assert recorded() == 0


def test_two_devices_are_skipped(dev):
    function = reduce_overhead(lambda x, y: (x + 1, y + 1))
    for _ in range(3):
        a, b = function(torch.ones(2, device="simdev:0"), torch.ones(2, device="simdev:1"))
        assert a.tolist() == b.tolist() == [2, 2]
    assert recorded() == 0 and skipped() == 1


def test_an_operator_that_falls_back_is_skipped(dev):
    function = reduce_overhead(lambda x: torch.linalg.eigvalsh(x @ x.T) + 1)
    for _ in range(3):
        x = torch.randn(3, 3)
        torch.testing.assert_close(
            function(x.to(dev)).cpu(), torch.linalg.eigvalsh(x @ x.T) + 1, rtol=1e-3, atol=1e-4
        )
    assert recorded() == 0
    assert skipped() == 1
    assert (torch.ones(2, device=dev) + 1).tolist() == [2, 2]


def test_mutated_parameters_are_recorded(dev):
    module = nn.BatchNorm1d(3).to(dev)
    reference = nn.BatchNorm1d(3)
    function = reduce_overhead(module)
    with torch.no_grad():
        for _ in range(5):
            x = torch.randn(8, 3)
            close(function(x.to(dev)), reference(x))
            close(module.running_mean, reference.running_mean)
            assert module.num_batches_tracked.item() == reference.num_batches_tracked.item()
    assert recorded() == 1 and skipped() == 0


def test_a_capture_around_it(dev):
    function = reduce_overhead(lambda x: x * 2)
    x = torch.ones(4, device=dev)
    for _ in range(3):
        function(x)
    graph = simdev.Graph()
    with simdev.graph(graph):
        y = function(x) + 1
    x.fill_(5)
    graph.replay()
    assert y.tolist() == [11] * 4


def test_cuda_or_cpu_functions_are_left_alone():
    function = reduce_overhead(lambda x: x * 2)
    for _ in range(3):
        assert function(torch.ones(3)).tolist() == [2] * 3
    assert recorded() == 0


def test_a_new_process_records_what_the_cache_hands_out(run_python, tmp_path):
    code = """
import torch
from torch._dynamo.utils import counters
function = torch.compile(lambda x: x.sin() + 1, mode="reduce-overhead")
for _ in range(3):
    function(torch.ones(5, device="simdev"))
print(counters["inductor"]["simdev_graphs_recorded"], counters["inductor"]["fxgraph_cache_hit"])
"""
    first, second = (run_python(code, TORCHINDUCTOR_CACHE_DIR=str(tmp_path)).stdout.split() for _ in range(2))
    assert first[0] == second[0] == "1"
    assert int(first[1]) == 0
