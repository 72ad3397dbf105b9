"""Graphs: capture and replay, pools, random numbers, what a capture refuses, graphed callables."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest
import torch
from torch import nn

import torch_simdev as simdev

needs_accelerator_graph = pytest.mark.skipif(
    not hasattr(torch.accelerator, "Graph"), reason="torch.accelerator.Graph came with PyTorch 2.13"
)


def capture(function, **arguments):
    """A graph of what `function` does, and what it returned."""
    graph = simdev.Graph(**arguments)
    with simdev.graph(graph):
        result = function()
    return graph, result


# --- Capture and replay -------------------------------------------------------------------------------------


def test_captured_work_runs_at_each_replay(dev):
    x = torch.ones(4, device=dev)
    graph, y = capture(lambda: x.add_(1) * 10)
    assert x.tolist() == [1] * 4
    graph.replay()
    graph.replay()
    assert x.tolist() == [3] * 4
    assert y.tolist() == [30] * 4


def test_inputs_changed_in_place_are_what_a_replay_reads(dev):
    x = torch.arange(6.0, device=dev).view(2, 3)
    weight = torch.randn(3, 5, device=dev)
    (x @ weight).relu().softmax(-1)  # once before, as CUDA asks for
    graph, y = capture(lambda: (x @ weight).relu().softmax(-1))
    for seed in range(3):
        torch.manual_seed(seed)
        given = torch.randn(2, 3)
        x.copy_(given)
        graph.replay()
        torch.testing.assert_close(y.cpu(), (given @ weight.cpu()).relu().softmax(-1))


@needs_accelerator_graph
def test_torch_accelerator_graph(dev, tmp_path):
    x = torch.zeros(2000, device=dev)
    graph = torch.accelerator.Graph(keep_graph=True)
    with torch.Stream(), graph:
        x += 1
    torch.accelerator.synchronize()
    assert x.sum().item() == 0
    graph.instantiate()
    graph.replay()
    graph.replay()
    assert x.unique().tolist() == [2]
    graph.debug_dump(str(tmp_path / "graph.dot"))
    assert "aten::add_" in (tmp_path / "graph.dot").read_text()
    other = torch.accelerator.Graph(pool=graph.pool())
    with torch.Stream(), other:
        x *= 3
    other.replay()
    assert x.unique().tolist() == [6]
    assert other.pool() == graph.pool()


def test_a_graph_is_captured_on_and_replayed_on_the_device_of_its_stream():
    x = torch.ones(3, device="simdev:1")
    with simdev.device(1):
        stream = simdev.Stream()
    graph = simdev.Graph()
    with simdev.graph(graph, stream=stream):
        y = x * 2
    assert simdev.current_device() == 0
    x.fill_(5)
    graph.replay()
    assert y.tolist() == [10] * 3


def test_replays_follow_the_current_stream(dev):
    x = torch.zeros(1, device=dev)
    graph, _ = capture(lambda: x.add_(1))
    stream = simdev.Stream()
    with stream:
        simdev._sleep(30)
        graph.replay()
        graph.replay()
        seen = x.clone()
    assert not stream.query()
    stream.synchronize()
    assert seen.item() == 2


def test_streams_fork_and_join_in_a_capture(dev):
    x = torch.full((1000,), 2.0, device=dev)
    side = simdev.Stream()

    def work():
        main = simdev.current_stream()
        doubled = x * 2
        side.wait_stream(main)
        with side:
            left = doubled + 1
        right = doubled * 10
        main.wait_stream(side)
        return left + right

    graph, y = capture(work, keep_graph=True)
    for value in (2.0, -1.0):
        x.fill_(value)
        graph.replay()
        assert y.unique().tolist() == [value * 2 + 1 + value * 20]


def test_autograd_is_captured(dev):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)).to(dev)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, target = torch.randn(32, 8, device=dev), torch.randn(32, 1, device=dev)

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.mse_loss(model(x), target)
        loss.backward()
        optimizer.step()
        return loss

    reference = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    side = simdev.Stream()
    with side:
        for _ in range(3):
            step()
    side.synchronize()
    reference.load_state_dict({k: v.cpu() for k, v in model.state_dict().items()})
    graph, loss = capture(step)
    losses = []
    for _ in range(5):
        graph.replay()
        losses.append(loss.item())
    host = torch.optim.SGD(reference.parameters(), lr=0.1)
    for seen in losses:
        host.zero_grad()
        expected = nn.functional.mse_loss(reference(x.cpu()), target.cpu())
        expected.backward()
        host.step()
        assert seen == pytest.approx(expected.item(), rel=1e-5)


def test_a_graph_can_be_reset_and_captured_again(dev):
    x = torch.ones(2, device=dev)
    graph, _ = capture(lambda: x.mul_(2))
    with pytest.raises(RuntimeError, match="already owns a captured graph"), simdev.graph(graph):
        pass
    graph.reset()
    with pytest.raises(RuntimeError, match="without a preceding successful capture"):
        graph.replay()
    with simdev.graph(graph):
        x.add_(5)
    graph.replay()
    assert x.tolist() == [6, 6]


def test_keep_graph_leaves_instantiating_to_the_caller(dev):
    x = torch.zeros(1, device=dev)
    graph, _ = capture(lambda: x.add_(1), keep_graph=True)
    graph.replay()  # instantiates
    graph.instantiate()
    graph.replay()
    assert x.item() == 2
    other, _ = capture(lambda: x.add_(1))
    with pytest.raises(RuntimeError, match="only when keep_graph=true"):
        other.instantiate()
    with pytest.raises(RuntimeError, match="capture_end\\(\\) must have been called"):
        simdev.Graph().instantiate()


def test_debug_dump_draws_the_graph(dev, tmp_path):
    x = torch.ones(4, device=dev)
    graph, _ = capture(lambda: (x * 2).exp_(), keep_graph=True)
    path = tmp_path / "graph.dot"
    graph.debug_dump(str(path))
    text = path.read_text()
    assert text.startswith("digraph")
    assert "aten::mul" in text and "aten::exp" in text and "n0 -> n1" in text
    plain, _ = capture(lambda: x * 2)
    with pytest.warns(UserWarning, match="debug not enabled"):
        plain.debug_dump(str(path))


def test_an_empty_graph_is_warned_of(dev):
    with pytest.warns(UserWarning, match="The graph is empty"):
        graph, _ = capture(lambda: None)
    graph.replay()


def test_is_current_stream_capturing(dev):
    assert not simdev.is_current_stream_capturing()
    _, inside = capture(lambda: (torch.ones(1, device=dev), simdev.is_current_stream_capturing())[1])
    assert inside
    assert not simdev.is_current_stream_capturing()


def test_an_error_of_a_kernel_surfaces_after_the_replay_with_its_name(dev):
    x = torch.ones(3, device=dev)
    index = torch.tensor([1], device=dev)
    graph, _ = capture(lambda: x.index_select(0, index))
    graph.replay()
    simdev.synchronize()
    index.fill_(7)
    graph.replay()
    with pytest.raises(RuntimeError, match="aten::index_select"):
        simdev.synchronize()
    index.fill_(2)
    graph.replay()
    simdev.synchronize()


# --- Memory -------------------------------------------------------------------------------------------------


def test_memory_of_a_graph_is_its_pools_until_it_is_gone(dev):
    x = torch.ones(1 << 20, device=dev)
    graph, y = capture(lambda: (x + 1) * (x + 2))
    pool = graph.pool()
    graph.replay()
    del y
    # Neither an allocation nor empty_cache() may take what the next replay writes.
    simdev.empty_cache()
    others = [torch.zeros(1 << 20, device=dev) for _ in range(6)]
    graph.replay()
    assert all(not other.any() for other in others)
    assert simdev.memory_snapshot(pool)
    del graph
    simdev.empty_cache()
    assert simdev.memory_snapshot(pool) == []


def test_temporaries_share_memory_within_a_capture(dev):
    x = torch.ones(1 << 22, device=dev)

    def chain():
        y = x
        for _ in range(20):
            y = y + 1
        return y

    graph, y = capture(chain)
    reserved = sum(segment["total_size"] for segment in simdev.memory_snapshot(graph.pool()))
    assert reserved <= 3 * x.nbytes
    graph.replay()
    assert y[0].item() == 21


def test_graphs_share_a_pool(dev):
    x = torch.ones(1 << 22, device=dev)
    pool = simdev.graph_pool_handle()
    graphs = [simdev.Graph() for _ in range(4)]
    for graph in graphs:
        with simdev.graph(graph, pool=pool):
            x.copy_((x + 1) * 2)
    assert {graph.pool() for graph in graphs} == {pool}
    assert sum(segment["total_size"] for segment in simdev.memory_snapshot(pool)) <= 3 * x.nbytes
    for graph in graphs:
        graph.replay()
    assert x.unique().tolist() == [46]


def test_memory_that_several_streams_use_is_freed_in_a_capture(dev):
    x = torch.ones(1000, device=dev)
    side = simdev.Stream()

    def work():
        main = simdev.current_stream()
        temporary = x * 3
        side.wait_stream(main)
        with side:
            temporary.record_stream(side)
            result = temporary + 1
        del temporary
        torch.zeros(1000, device=dev)  # must not take the temporary's place
        main.wait_stream(side)
        return result

    graph, y = capture(work)
    for _ in range(3):
        graph.replay()
        assert y.unique().tolist() == [4]


def test_a_captured_graph_goes_with_its_last_reference(dev):
    x = torch.ones(10, device=dev)
    graph, _ = capture(lambda: x + 1)
    alive = weakref.ref(graph)
    graph.replay()
    del graph
    gc.collect()
    assert alive() is None
    simdev.synchronize()


# --- Random numbers -----------------------------------------------------------------------------------------


RANDOM = {
    "native": lambda x: torch.rand_like(x),
    "normal": lambda x: torch.randn_like(x),
    "dropout": lambda x: torch.nn.functional.dropout(x, 0.5),
    "in place": lambda x: torch.empty_like(x).exponential_(),
    "launched": lambda x: torch.poisson(x * 50),
    "launched, allocating": lambda x: torch.multinomial(x.abs(), 64, replacement=True),
    "rrelu": lambda x: torch.nn.functional.rrelu(-x, training=True),
    "randperm": lambda x: torch.randperm(1000, device=x.device),
}


@pytest.mark.parametrize("draw", RANDOM.values(), ids=RANDOM.keys())
def test_each_replay_draws_what_eager_calls_would(dev, draw):
    x = torch.ones(256, device=dev)
    draw(x)
    graph, y = capture(lambda: (draw(x), draw(x)))
    torch.manual_seed(7)
    expected = [draw(x).cpu() for _ in range(6)]
    after = simdev.get_rng_state(dev)
    torch.manual_seed(7)
    seen = []
    for _ in range(3):
        graph.replay()
        seen += [part.cpu() for part in y]
    assert not torch.equal(seen[0], seen[2])
    for one, other in zip(seen, expected):
        assert torch.equal(one, other)
    assert torch.equal(simdev.get_rng_state(dev), after)


def test_a_capture_leaves_the_generator_where_it_was(dev):
    torch.manual_seed(3)
    before = simdev.get_rng_state(dev)
    capture(lambda: torch.rand(10, device=dev))
    assert torch.equal(simdev.get_rng_state(dev), before)


def test_every_generator_that_was_drawn_from_advances(dev):
    generator = torch.Generator(dev).manual_seed(11)
    graph, y = capture(lambda: torch.rand(8, device=dev, generator=generator))
    default = simdev.get_rng_state(dev)
    graph.replay()
    first = y.clone()
    graph.replay()
    again = torch.Generator(dev).manual_seed(11)
    assert torch.equal(first, torch.rand(8, device=dev, generator=again))
    assert torch.equal(y, torch.rand(8, device=dev, generator=again))
    assert generator.get_offset() == again.get_offset()
    assert torch.equal(simdev.get_rng_state(dev), default)


def test_the_generator_cannot_be_moved_in_a_capture(dev):
    torch.manual_seed(5)
    generator = simdev.default_generators[0]

    def move():
        torch.manual_seed(5)  # to where it was: allowed
        torch.rand(3, device=dev)
        for change in (
            lambda: generator.manual_seed(6),
            lambda: generator.set_offset(8),
            lambda: simdev.set_rng_state(torch.zeros(16, dtype=torch.uint8)),
        ):
            with pytest.raises(RuntimeError, match="while the current stream is captured"):
                change()

    graph, _ = capture(move)
    graph.replay()


# --- What a capture refuses ---------------------------------------------------------------------------------


def event_of_before():
    event = simdev.Event()
    event.record()
    return event


REFUSED = {
    "synchronize": lambda x: simdev.synchronize(),
    "stream.synchronize": lambda x: simdev.current_stream().synchronize(),
    "stream.query": lambda x: simdev.current_stream().query(),
    "event.query": lambda x: simdev.current_stream().record_event().query(),
    "event.synchronize": lambda x: simdev.current_stream().record_event().synchronize(),
    "item": lambda x: x.sum().item(),
    "cpu": lambda x: x.cpu(),
    "from the host": lambda x: x.copy_(torch.zeros(4)),
    "tensor": lambda x: torch.tensor([1.0, 2.0], device=x.device),
    "nonzero": lambda x: x.nonzero(),
}


@pytest.mark.parametrize("call", REFUSED.values(), ids=REFUSED.keys())
def test_waiting_is_refused_and_invalidates_the_capture(dev, call):
    x = torch.ones(4, device=dev)
    graph = simdev.Graph()
    with simdev.stream(simdev.Stream()):
        graph.capture_begin()
        y = x + 1
        with pytest.raises(RuntimeError, match=r"captur"):
            call(x)
        with pytest.raises(RuntimeError, match=r"captur"):
            graph.capture_end()
        assert not simdev.is_current_stream_capturing()
    del y
    assert (x + 1).tolist() == [2] * 4
    with pytest.raises(RuntimeError, match="without a preceding successful capture"):
        graph.replay()
    with simdev.graph(graph):
        x.add_(1)
    graph.replay()
    assert x.tolist() == [2] * 4


def test_an_operator_that_the_host_waits_for_is_named(dev):
    x = torch.ones(4, device=dev)
    graph = simdev.Graph()
    reason = "the host waits for aten::nonzero, which a graph cannot capture"
    with pytest.raises(RuntimeError, match=reason), simdev.graph(graph):
        x.nonzero()
    assert simdev.current_stream() == simdev.default_stream()
    assert x.nonzero().shape == (4, 1)


def test_the_default_stream_cannot_be_captured(dev):
    graph = simdev.Graph()
    with pytest.raises(RuntimeError, match="must be captured on a non-default stream"):
        graph.capture_begin()
    with simdev.stream(simdev.Stream()), pytest.raises(RuntimeError, match="Unknown capture error mode"):
        graph.capture_begin(capture_error_mode="lenient")


def test_what_a_block_raises_comes_out_of_it(dev):
    graph = simdev.Graph()
    with pytest.raises(KeyError, match="mine"), simdev.graph(graph):
        torch.ones(1, device=dev)
        raise KeyError("mine")
    assert simdev.current_stream() == simdev.default_stream()
    with pytest.raises(RuntimeError, match="without a preceding successful capture"):
        graph.replay()


def test_capture_must_end_where_it_began(dev):
    graph = simdev.Graph()
    with pytest.raises(RuntimeError, match="capture_end\\(\\) called before capture_begin"):
        graph.capture_end()
    stream = simdev.Stream()
    with stream:
        graph.capture_begin()
        torch.ones(1, device=dev)
    with pytest.raises(RuntimeError, match="same stream it began on"):
        graph.capture_end()
    with stream:
        graph.capture_end()
    graph.replay()


def test_a_forked_stream_has_to_be_joined(dev):
    x = torch.ones(1, device=dev)
    side = simdev.Stream()
    with pytest.raises(RuntimeError, match="unjoined"), simdev.graph(simdev.Graph()):
        side.wait_stream(simdev.current_stream())
        with side:
            x.add_(1)
    with side:
        assert not simdev.is_current_stream_capturing()
        x.add_(1)
    side.synchronize()
    assert x.item() == 2


def test_other_threads_and_streams_go_on_while_one_captures(dev):
    x = torch.ones(1000, device=dev)
    graph = simdev.Graph()
    seen = []

    def other():
        torch.manual_seed(1)
        for _ in range(20):
            seen.append((torch.ones(1000, device=dev) + torch.rand(1000, device=dev)).min().item())

    with simdev.graph(graph):
        y = x * 2
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        z = y + 1
    graph.replay()
    assert z.unique().tolist() == [3]
    assert len(seen) == 20 and all(1 <= value < 2 for value in seen)


def test_a_graph_that_is_dropped_in_a_capture_ends_it(dev):
    x = torch.ones(1, device=dev)
    stream = simdev.Stream()
    with stream:
        graph = simdev.Graph()
        graph.capture_begin()
        x.add_(1)
        del graph
        gc.collect()
        assert not simdev.is_current_stream_capturing()
        x.add_(1)
    stream.synchronize()
    assert x.item() == 2


# --- Graphed callables --------------------------------------------------------------------------------------


def test_graphed_module_trains_as_the_eager_one(dev):
    torch.manual_seed(0)
    models = [nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).to(dev) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    graphed = simdev.make_graphed_callables(models[0], (torch.randn(16, 4, device=dev),))
    assert graphed is models[0]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    for _ in range(4):
        x, target = torch.randn(16, 4, device=dev), torch.randn(16, 2, device=dev)
        losses = []
        for model, optimizer in zip(models, optimizers):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), target)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    graphed.eval()  # in the other mode it is the eager module
    assert graphed(torch.randn(3, 4, device=dev)).shape == (3, 2)


def test_graphed_functions_in_sequence(dev):
    def first(x, y):
        return {"sum": x + y, "product": x * y}

    def second(z):
        return z.sin()

    samples = tuple(torch.ones(5, device=dev, requires_grad=True) for _ in range(3))
    one, two = simdev.make_graphed_callables((first, second), (samples[:2], samples[2:]))
    x = torch.arange(5.0, device=dev, requires_grad=True)
    y = torch.full((5,), 2.0, device=dev, requires_grad=True)
    parts = one(x, y)
    two(parts["sum"] + parts["product"]).sum().backward()
    inner = (x + y + x * y).detach().cos()
    torch.testing.assert_close(x.grad, inner * 3)
    torch.testing.assert_close(y.grad, inner * (1 + x.detach()))


def test_graphed_callables_refuse_what_they_cannot_capture(dev):
    module = nn.Linear(2, 2).to(dev)
    module.register_forward_hook(lambda *_: None)
    with pytest.raises(AssertionError, match="hooks"):
        simdev.make_graphed_callables(module, (torch.ones(1, 2, device=dev),))
    with pytest.raises(AssertionError, match="only Tensors"):
        simdev.make_graphed_callables(torch.add, (torch.ones(1, device=dev), 2))
    with torch.autocast("simdev"), pytest.raises(RuntimeError, match="cache_enabled=False"):
        simdev.make_graphed_callables(torch.sin, (torch.ones(1, device=dev),))


def test_asking_about_capture_starts_no_device(run_python):
    run_python(
        "import torch\n"
        "assert not torch.simdev.is_current_stream_capturing()\n"
        "torch.simdev.graph_pool_handle()\n"
        "assert not torch.simdev.is_initialized()\n"
    )
