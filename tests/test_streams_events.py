"""Streams and events: identity, the current stream, ordering between streams, and CUDA's rules for timing."""

from __future__ import annotations

import itertools
import threading
import time

import pytest
import torch

import torch_simdev as simdev

BUSY_MS = 150


@pytest.fixture
def busy():
    """A stream that has work for BUSY_MS milliseconds."""
    stream = simdev.Stream()
    simdev._sleep(BUSY_MS, stream)
    yield stream
    stream.synchronize()


# --- Identity -----------------------------------------------------------------------------------------------


def test_streams_are_distinct_until_the_pool_wraps_around():
    drawn = [simdev.Stream() for _ in range(33)]
    ids = [stream.stream_id for stream in drawn]
    assert len(set(ids)) == 32
    assert ids[0] == ids[32]
    assert drawn[0] == drawn[32]
    assert len({stream.native_handle for stream in drawn}) == 32
    assert simdev.default_stream().stream_id == 0
    assert 0 not in ids


def test_pools_are_per_device_and_priority():
    least, greatest = simdev.Stream.priority_range()
    assert greatest < least == 0
    streams = [simdev.Stream(device, priority) for device in (0, 1) for priority in (least, greatest)]
    assert len(set(streams)) == 4
    assert len({stream.native_handle for stream in streams}) == 4
    assert [stream.priority for stream in streams] == [least, greatest] * 2
    assert [stream.device.index for stream in streams] == [0, 0, 1, 1]


def test_priorities_are_clamped():
    least, greatest = simdev.Stream.priority_range()
    assert simdev.Stream(priority=100).priority == least
    assert simdev.Stream(priority=-100).priority == greatest
    assert torch.Stream(device="simdev", priority=-100).stream_id != torch.Stream(device="simdev").stream_id


def test_streams_of_every_make_compare_and_hash_alike():
    stream = simdev.Stream()
    with stream:
        generic = torch.accelerator.current_stream()
    assert generic == stream
    assert stream == generic
    assert hash(generic) == hash(stream)
    assert generic != simdev.Stream()
    assert stream != simdev.Stream(device=1, stream_id=stream.stream_id, device_index=1)
    assert stream != 3
    assert (
        generic.native_handle == stream.native_handle == stream.simdev_stream == stream._as_parameter_.value
    )
    copy = simdev.Stream(
        stream_id=stream.stream_id, device_index=stream.device_index, device_type=stream.device_type
    )
    assert copy == stream
    assert "simdev:0" in repr(stream)


def test_classes_extend_pytorchs():
    assert isinstance(simdev.Stream(), torch.Stream)
    assert isinstance(simdev.Event(), torch.Event)
    assert isinstance(simdev.current_stream(), simdev.Stream)
    with pytest.raises(TypeError, match="unexpected"):
        simdev.Stream(colour="red")


def test_external_streams(dev):
    pooled = simdev.Stream(1)
    external = simdev.ExternalStream(pooled.native_handle, device=1)
    assert isinstance(external, simdev.Stream)
    assert external.native_handle == pooled.native_handle
    assert external.device == pooled.device
    assert simdev.get_stream_from_external(pooled.native_handle, 1) == external
    assert simdev.get_stream_from_external(
        simdev.default_stream(0).native_handle, 0
    ) == simdev.default_stream(0)
    with external:
        total = torch.ones(10, device="simdev:1").sum()
        simdev._sleep(BUSY_MS)
    assert not pooled.query()
    external.synchronize()
    assert pooled.query()
    assert total.item() == 10
    for bad in (0, 3):
        with pytest.raises(ValueError, match="native handle"):
            simdev.ExternalStream(bad)


# --- The current stream -------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [simdev.Stream, lambda: torch.Stream(device="simdev:0")])
def test_a_stream_is_a_context_manager(make):
    outer, inner = make(), make()
    default = simdev.current_stream()
    with pytest.raises(KeyError), outer:
        assert simdev.current_stream() == torch.accelerator.current_stream() == outer
        with inner:
            assert simdev.current_stream() == inner
        assert simdev.current_stream() == outer
        raise KeyError
    assert simdev.current_stream() == default == simdev.default_stream()


@pytest.mark.parametrize(
    "enter", [lambda stream: stream, simdev.stream], ids=["with s", "with simdev.stream(s)"]
)
def test_entering_a_stream_of_another_device_restores_device_and_streams(enter):
    here, there, before = simdev.Stream(0), simdev.Stream(1), simdev.Stream(1)
    simdev.set_stream(before)
    simdev.set_stream(here)
    try:
        with enter(there):
            assert simdev.current_device() == 1
            assert simdev.current_stream() == simdev.current_stream(1) == there
            assert simdev.current_stream(0) == here
        assert simdev.current_device() == 0
        assert simdev.current_stream() == here
        assert simdev.current_stream(1) == before
    finally:
        simdev.set_stream(simdev.default_stream(1))
        simdev.set_stream(simdev.default_stream(0))


def test_no_stream_changes_nothing():
    current = simdev.current_stream()
    with simdev.stream(None):
        assert simdev.current_stream() == current
    simdev.set_stream(None)
    assert simdev.current_stream() == current


def test_the_current_stream_belongs_to_the_thread():
    seen = []
    with simdev.Stream():
        thread = threading.Thread(target=lambda: seen.append(simdev.current_stream()))
        thread.start()
        thread.join()
    assert seen == [simdev.default_stream()]


def test_accelerator_set_stream_changes_the_device_too():
    there = torch.Stream(device="simdev:1")
    torch.accelerator.set_stream(there)
    assert simdev.current_device() == 1
    assert simdev.current_stream() == there
    simdev._set_stream_by_id(0, 1, there.device_type)
    assert simdev.current_stream() == simdev.default_stream(1)


def test_operators_run_on_the_current_stream(dev):
    stream = simdev.Stream()
    x = torch.zeros(8, device=dev)
    simdev.synchronize()
    with stream:
        simdev._sleep(BUSY_MS)
        x.add_(1)
    assert not stream.query()
    assert simdev.default_stream().query()
    stream.synchronize()
    assert x.sum().item() == 8


# --- Ordering -----------------------------------------------------------------------------------------------


def test_work_is_asynchronous():
    stream = simdev.Stream()
    start = time.perf_counter()
    simdev._sleep(BUSY_MS, stream)
    assert not stream.query()
    stream.synchronize()
    done = time.perf_counter()
    assert stream.query()
    assert (done - start) * 1e3 >= BUSY_MS


def test_streams_of_a_device_overlap():
    streams = [simdev.Stream() for _ in range(4)]
    start = time.perf_counter()
    for stream in streams:
        simdev._sleep(BUSY_MS, stream)
    simdev.synchronize()
    assert (time.perf_counter() - start) * 1e3 < 4 * BUSY_MS - BUSY_MS / 2


def test_sleep_is_bounded():
    for bad in (-1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="milliseconds"):
            simdev._sleep(bad)
    stream = simdev.Stream()
    start = time.perf_counter()
    simdev._sleep(50_000_000, stream)
    assert not stream.query()
    stream.synchronize()
    assert 1.9 < time.perf_counter() - start < 20


@pytest.mark.parametrize("device", [0, 1], ids=["same device", "other device"])
def test_a_stream_waits_for_an_event(busy, device):
    waiting = simdev.Stream(device)
    event = busy.record_event()
    assert isinstance(event, simdev.Event)
    waiting.wait_event(event)
    start = time.perf_counter()
    simdev._sleep(0, waiting)
    assert (time.perf_counter() - start) * 1e3 < BUSY_MS / 2  # the host does not wait
    assert not waiting.query()
    waiting.synchronize()
    assert event.query()
    assert busy.query()


def test_a_stream_waits_for_a_stream(busy):
    waiting = simdev.Stream()
    waiting.wait_stream(busy)
    assert not waiting.query()
    waiting.synchronize()
    assert busy.query()


def test_waiting_counts_what_was_recorded_at_that_time(busy):
    event, other = simdev.Event(), simdev.Stream()
    event.record(other)  # complete at once
    waiting = simdev.Stream()
    waiting.wait_event(event)
    event.record(busy)  # later records do not count
    waiting.synchronize()
    assert not event.query()


def test_values_cross_streams_through_an_event(dev):
    producer, consumer = simdev.Stream(), simdev.Stream()
    x = torch.zeros(1000, device=dev)
    simdev.synchronize()
    for step in range(1, 21):
        with producer:
            producer.wait_stream(consumer)
            x.fill_(step)
        with consumer:
            consumer.wait_stream(producer)
            total = x.sum().item()  # waits for the current stream, hence inside
        assert total == 1000 * step


def test_backward_runs_on_the_streams_of_the_forward_pass(dev):
    seen = []

    class Slow(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            seen.append((simdev.current_stream(), simdev.current_device()))
            simdev._sleep(BUSY_MS)
            return gradient * 2

    for index in (0, 1):
        stream = simdev.Stream(index)
        weight = torch.ones(100, device=f"simdev:{index}", requires_grad=True)
        stream.wait_stream(simdev.current_stream(index))
        with stream:
            loss = Slow.apply(weight).sum()
        simdev.current_stream(index).wait_stream(stream)
        loss.backward()
        # The caller's current stream waits for the gradient; nothing else needs to be done.
        with simdev.device(index):
            assert weight.grad.eq(2).all().item()
        assert seen.pop() == (stream, index)


def test_two_threads_on_streams_of_their_own(dev):
    results = {}

    def work(number):
        with simdev.Stream():
            x = torch.zeros(100, device=dev)
            for _ in range(200):
                x.add_(number)
            results[number] = x.sum().item()

    threads = [threading.Thread(target=work, args=(number,)) for number in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {number: 100 * 200 * number for number in (1, 2, 3)}


# --- Events -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [simdev.Event, lambda: torch.Event(device="simdev")])
def test_an_event_never_recorded_is_complete(make):
    event = make()
    assert event.query()
    event.synchronize()
    event.wait()
    event.wait(simdev.Stream())
    assert event.event_id == 0


def test_the_event_is_made_at_its_first_record(busy):
    event = simdev.Event()
    assert "uninitialized" in repr(event)
    event.record(busy)
    assert event.event_id != 0
    assert hex(event.event_id) in repr(event)
    assert not event.query()
    event.synchronize()
    assert event.query()
    assert busy.query()


def test_elapsed_time_measures_the_device():
    start, end = (simdev.Event(enable_timing=True) for _ in range(2))
    stream = simdev.Stream()
    start.record(stream)
    simdev._sleep(BUSY_MS, stream)
    end.record(stream)
    end.synchronize()
    assert BUSY_MS - 1 <= start.elapsed_time(end) < BUSY_MS * 5
    assert end.elapsed_time(start) == pytest.approx(-start.elapsed_time(end))


def test_elapsed_time_is_never_negative_in_stream_order(dev):
    events = [torch.Event(device=dev, enable_timing=True) for _ in range(50)]
    for event in events:
        event.record()
        torch.ones(16, device=dev)
    events[-1].synchronize()
    times = [first.elapsed_time(second) for first, second in itertools.pairwise(events)]
    assert min(times) >= 0


@pytest.mark.parametrize("make", [simdev.Event, lambda **flags: torch.Event(device="simdev", **flags)])
def test_elapsed_time_refuses_what_cuda_refuses(busy, make):
    def recorded(**flags):
        event = make(**flags)
        event.record()
        event.synchronize()
        return event

    timed = recorded(enable_timing=True)
    with pytest.raises(ValueError, match="enable_timing"):
        timed.elapsed_time(recorded())
    with pytest.raises(ValueError, match="recorded"):
        timed.elapsed_time(make(enable_timing=True))
    pending = make(enable_timing=True)
    pending.record(busy)
    with pytest.raises(RuntimeError, match="completed"):
        timed.elapsed_time(pending)
    pending.synchronize()
    assert timed.elapsed_time(pending) >= 0


def test_elapsed_time_takes_events_of_either_class():
    ours, generic = simdev.Event(enable_timing=True), torch.Event(device="simdev", enable_timing=True)
    ours.record()
    generic.record()
    generic.synchronize()
    assert ours.elapsed_time(generic) >= 0
    with pytest.raises(TypeError, match=r"torch\.Event"):
        ours.elapsed_time("later")


def test_an_event_belongs_to_the_device_of_its_first_record():
    event = simdev.Event()
    event.record(simdev.Stream(0))
    with pytest.raises(RuntimeError, match="does not match recording stream's device"):
        event.record(simdev.Stream(1))
    event.record(simdev.Stream(0))
    event.synchronize()


def test_an_event_may_be_destroyed_while_pending(busy):
    event = busy.record_event()
    waiting = simdev.Stream()
    waiting.wait_event(event)
    del event
    assert not waiting.query()
    waiting.synchronize()
    assert busy.query()


def test_an_event_may_be_recorded_again(busy):
    event = simdev.Event(enable_timing=True)
    event.record()
    event.synchronize()
    event.record(busy)
    assert not event.query()
    event.synchronize()
    assert event.query()


@pytest.mark.parametrize("flag", ["interprocess", "external"])
def test_unsupported_events_are_refused(flag):
    with pytest.raises(NotImplementedError, match=flag):
        simdev.Event(**{flag: True})


def test_synchronizing_a_device_waits_for_all_its_streams():
    streams = [simdev.Stream(1) for _ in range(3)]
    for stream in streams:
        simdev._sleep(BUSY_MS / 2, stream)
    simdev.synchronize(1)
    assert all(stream.query() for stream in streams)


def test_waiting_releases_the_gil(busy):
    progress = []
    thread = threading.Thread(target=lambda: progress.append(1))

    def work():
        thread.start()
        thread.join()
        progress.append(busy.query())

    helper = threading.Thread(target=work)
    helper.start()
    busy.synchronize()
    helper.join()
    assert progress == [1, False]


@pytest.mark.skipif(not hasattr(torch.Stream, "is_capturing"), reason="not in torch 2.11")
def test_streams_are_not_captured_here():
    assert not simdev.current_stream().is_capturing()
    assert not torch.accelerator.current_stream().is_capturing()
