"""What breaks other out-of-tree devices: one test for each fault that their users report.

Deeper tests of a layer are in that layer's own file. Set SIMDEV_CASES to a folder of scripts to run those
too, each in its own process with DEVICE and BACKEND in its environment.
"""

from __future__ import annotations

import copy
import io
import itertools
import os
import pickle
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

simdev = torch.get_device_module("simdev")
MIB = 1 << 20


# --- Devices, streams and events ----------------------------------------------------------------------------


def test_factories_fill_in_the_current_index():
    for index in range(simdev.device_count()):
        with torch.accelerator.device_index(index):
            made = [
                torch.empty(1, device="simdev"),
                torch.zeros(2, 2).to("simdev"),
                torch.tensor([1], device="simdev"),
                torch.ones(3).simdev(),
            ]
            assert [t.device.index for t in made] == [index] * len(made)
    assert torch.device("simdev") != torch.device("simdev", 0)


def test_current_device_is_restored_after_an_exception():
    last = simdev.device_count() - 1
    with pytest.raises(KeyError), torch.accelerator.device_index(last):
        assert torch.accelerator.current_device_index() == last
        raise KeyError
    assert torch.accelerator.current_device_index() == 0


def test_current_device_is_per_thread():
    seen = []

    def other() -> None:
        seen.append(torch.accelerator.current_device_index())
        torch.accelerator.set_device_index(0)

    with torch.accelerator.device_index(1):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert torch.accelerator.current_device_index() == 1
    assert seen == [0]


@pytest.mark.parametrize("offset", [0, 3, 50])
@pytest.mark.parametrize(
    "make",
    [
        lambda device: torch.empty(1, device=device),
        lambda device: torch.ones(1).to(device),
        lambda device: torch.Stream(device=device),
        lambda device: torch.Generator(device),
        lambda device: torch.accelerator.set_device_index(device),
        lambda device: simdev.get_device_properties(device),
        lambda device: simdev.synchronize(device),
    ],
    ids=["empty", "to", "Stream", "Generator", "set_device_index", "get_device_properties", "synchronize"],
)
def test_wrong_ordinal_raises_and_leaves_the_device_usable(dev, make, offset):
    with pytest.raises((RuntimeError, AssertionError, ValueError)):
        make(torch.device("simdev", simdev.device_count() + offset))
    assert torch.ones(2, device=dev).sum().item() == 2


def test_streams_are_distinct_and_nest(dev):
    default = torch.accelerator.current_stream()
    a, b = torch.Stream(device=dev), torch.Stream(device=dev)
    assert len({a.stream_id, b.stream_id, default.stream_id}) == 3
    with pytest.raises(KeyError), a:
        assert torch.accelerator.current_stream() == a
        with b:
            assert torch.accelerator.current_stream() == b
        assert torch.accelerator.current_stream() == a
        raise KeyError
    assert torch.accelerator.current_stream() == default


def test_query_tells_the_truth(dev):
    stream = torch.Stream(device=dev)
    event = torch.Event(device=dev)
    assert stream.query()
    with stream:
        simdev._sleep(100)
        event.record()
    assert not stream.query()
    assert not event.query()
    event.synchronize()
    assert event.query()
    stream.synchronize()
    assert stream.query()


def test_elapsed_time_is_the_devices_and_monotonic(dev):
    events = [torch.Event(device=dev, enable_timing=True) for _ in range(20)]
    for event in events:
        event.record()
    simdev._sleep(30)
    end = torch.Event(device=dev, enable_timing=True)
    end.record()
    end.synchronize()
    steps = [a.elapsed_time(b) for a, b in itertools.pairwise(events)]
    assert all(step >= 0 for step in steps)
    assert 29 <= events[-1].elapsed_time(end) < 1000


def test_elapsed_time_refuses_what_it_cannot_know(dev):
    timed, untimed, unrecorded = (torch.Event(device=dev, enable_timing=t) for t in (True, False, True))
    timed.record()
    untimed.record()
    torch.accelerator.synchronize()
    for start, end in [(timed, untimed), (untimed, timed), (timed, unrecorded), (unrecorded, timed)]:
        with pytest.raises((RuntimeError, ValueError)):
            start.elapsed_time(end)
    assert timed.elapsed_time(timed) == 0


def test_cpu_autograd_works_beside_the_device():
    assert torch.accelerator.current_accelerator().type == "simdev"
    for device in ["cpu", "simdev", *(["cuda"] if torch.cuda.is_available() else [])]:
        w = torch.ones(4, 4, device=device, requires_grad=True)
        (w @ w).sum().backward()
        assert w.grad.device == w.device
        assert w.grad.sum().item() == 128


# --- Memory -------------------------------------------------------------------------------------------------


def test_accelerator_memory_statistics_follow_the_tensors(dev):
    torch.accelerator.empty_cache()
    before = torch.accelerator.memory_allocated()
    torch.accelerator.reset_peak_memory_stats()
    x = torch.empty(4 * MIB, dtype=torch.uint8, device=dev)
    assert torch.accelerator.memory_allocated() == before + 4 * MIB
    assert torch.accelerator.memory_reserved() >= torch.accelerator.memory_allocated()
    del x
    assert torch.accelerator.memory_allocated() == before
    assert torch.accelerator.max_memory_allocated() == before + 4 * MIB
    stats = torch.accelerator.memory_stats()
    assert stats["allocated_bytes.all.current"] == before
    assert stats["allocated_bytes.all.peak"] == before + 4 * MIB


def test_memory_info_is_consistent_with_what_is_reserved(dev):
    torch.accelerator.empty_cache()
    free, total = torch.accelerator.get_memory_info(dev)
    x = torch.empty(64 * MIB, dtype=torch.uint8, device=dev)
    used_free, used_total = torch.accelerator.get_memory_info(dev)
    assert used_total == total >= free
    assert 0 < used_free <= free - x.nbytes
    assert used_free + torch.accelerator.memory_reserved(dev) <= total
    del x
    torch.accelerator.empty_cache()
    assert torch.accelerator.get_memory_info(dev)[0] == free


def test_record_stream_keeps_a_block_until_the_other_stream_is_done(dev):
    side = torch.Stream(device=dev)
    host = torch.zeros(MIB)
    x = torch.full((MIB,), 3.0, device=dev)
    side.wait_stream(torch.accelerator.current_stream())
    with side:
        simdev._sleep(50)
        copied = x + 0
    x.record_stream(side)
    del x
    later = [torch.full((MIB,), -1.0, device=dev) for _ in range(4)]
    side.synchronize()
    host.copy_(copied)
    assert host.eq(3).all()
    assert all(t.eq(-1).all().item() for t in later)


def test_out_of_memory_flushes_the_cache_then_raises_and_recovers(dev):
    torch.accelerator.empty_cache()
    free, total = torch.accelerator.get_memory_info(dev)
    torch.empty(free // 2, dtype=torch.uint8, device=dev)  # leaves half of the memory in the cache
    big = torch.empty(int(free * 0.9), dtype=torch.uint8, device=dev)
    del big
    for size in (total * 2, 1 << 60):
        with pytest.raises(torch.OutOfMemoryError, match="out of memory"):
            torch.empty(size, dtype=torch.uint8, device=dev)
    assert torch.ones(2, device=dev).sum().item() == 2
    torch.accelerator.empty_cache()


# --- Random numbers -----------------------------------------------------------------------------------------

RANDOM = {
    "normal_": lambda device, g=None: torch.empty(16, device=device).normal_(generator=g),
    "uniform_": lambda device, g=None: torch.empty(16, device=device).uniform_(generator=g),
    "exponential_": lambda device, g=None: torch.empty(16, device=device).exponential_(generator=g),
    "bernoulli_": lambda device, g=None: torch.empty(16, device=device).bernoulli_(generator=g),
    "log_normal_": lambda device, g=None: torch.empty(16, device=device).log_normal_(generator=g),
    "geometric_": lambda device, g=None: torch.empty(16, device=device).geometric_(0.5, generator=g),
    "cauchy_": lambda device, g=None: torch.empty(16, device=device).cauchy_(generator=g),
    "random_": lambda device, g=None: torch.empty(16, device=device).random_(generator=g),
    "rand": lambda device, g=None: torch.rand(16, device=device, generator=g),
    "randn": lambda device, g=None: torch.randn(16, device=device, generator=g),
    "randint": lambda device, g=None: torch.randint(0, 99, (16,), device=device, generator=g),
    "randperm": lambda device, g=None: torch.randperm(16, device=device, generator=g),
    "multinomial": lambda device, g=None: torch.multinomial(torch.ones(50, device=device), 9, generator=g),
}


@pytest.mark.parametrize("name", RANDOM)
def test_random_operators_follow_the_seed(dev, name):
    draw = RANDOM[name]
    torch.manual_seed(3)
    first, second = draw(dev).cpu(), draw(dev).cpu()
    torch.manual_seed(3)
    assert torch.equal(first, draw(dev).cpu())
    assert torch.equal(second, draw(dev).cpu())
    assert not torch.equal(first, second)
    generator = torch.Generator(dev).manual_seed(3)
    assert torch.equal(first, draw(dev, generator).cpu())


@pytest.mark.parametrize("name", RANDOM)
def test_random_operators_refuse_a_cpu_generator(dev, name):
    with pytest.raises(RuntimeError, match="generator"):
        RANDOM[name](dev, torch.Generator())


def test_fork_rng_restores_the_devices_generator():
    torch.manual_seed(1)
    with torch.random.fork_rng(devices=[0], device_type="simdev"):
        inside = torch.randn(4, device="simdev")
    after = torch.randn(4, device="simdev")
    assert torch.equal(inside.cpu(), after.cpu())


def test_rng_state_round_trip_on_every_device():
    for index in range(simdev.device_count()):
        state = simdev.get_rng_state(index)
        first = torch.rand(5, device=f"simdev:{index}")
        simdev.set_rng_state(state, index)
        assert torch.equal(first.cpu(), torch.rand(5, device=f"simdev:{index}").cpu())


def test_manual_seed_reaches_every_device_without_initialising(run_python):
    code = """
import torch
torch.manual_seed(5)
simdev = torch.get_device_module("simdev")
assert not simdev.is_initialized()
draws = [torch.rand(4, device=f"simdev:{i}").tolist() for i in range(simdev.device_count())]
torch.manual_seed(5)
assert draws == [torch.rand(4, device=f"simdev:{i}").tolist() for i in range(simdev.device_count())]
assert {simdev.initial_seed()} == {5}
"""
    run_python(code)


# --- Serialization ------------------------------------------------------------------------------------------

LOCATIONS = {
    "none": (None, "simdev:1"),
    "cpu": ("cpu", "cpu"),
    "str": ("simdev", "simdev:0"),
    "str with index": ("simdev:0", "simdev:0"),
    "device": (torch.device("simdev", 0), "simdev:0"),
    "dict": ({"simdev:1": "cpu"}, "cpu"),
    "dict to device": ({"simdev:1": "simdev:0"}, "simdev:0"),
    "callable": (lambda storage, location: storage, "cpu"),
}


@pytest.mark.parametrize("name", LOCATIONS)
@pytest.mark.parametrize("weights_only", [True, False])
def test_map_location(name, weights_only):
    location, expected = LOCATIONS[name]
    file = io.BytesIO()
    torch.save({"w": torch.arange(3.0, device="simdev:1")}, file)
    file.seek(0)
    loaded = torch.load(file, map_location=location, weights_only=weights_only)["w"]
    assert str(loaded.device) == expected
    assert loaded.tolist() == [0, 1, 2]


def test_location_tag_carries_the_index():
    for index in range(simdev.device_count()):
        storage = torch.empty(1, device=f"simdev:{index}").untyped_storage()
        assert torch.serialization.location_tag(storage) == f"simdev:{index}"


def test_one_save_keeps_aliasing(dev):
    base = torch.arange(6.0, device=dev)
    file = io.BytesIO()
    torch.save([base, base[2:4], base.view(2, 3).t()], file)
    file.seek(0)
    loaded, part, turned = torch.load(file)
    part.zero_()
    assert loaded.device == dev
    assert loaded.tolist() == [0, 1, 0, 0, 4, 5]
    assert turned.tolist() == [[0, 0], [1, 4], [0, 5]]


def test_pickle_and_deepcopy(dev):
    view = torch.arange(6.0, device=dev)[2:4]
    unpickled = pickle.loads(pickle.dumps(view))
    assert unpickled.device == dev
    assert unpickled.tolist() == [2, 3]

    original = nn.BatchNorm1d(3).to(dev)
    copied = copy.deepcopy(original)
    for a, b in zip(original.state_dict().values(), copied.state_dict().values()):
        assert a.device == b.device == dev
        assert a.untyped_storage().data_ptr() != b.untyped_storage().data_ptr()


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop])
def test_training_continues_from_a_checkpoint(dev, kind):
    torch.manual_seed(0)
    x = torch.randn(8, 4, device=dev)

    def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        model(x).square().sum().backward()
        optimizer.step()

    model = nn.Linear(4, 2).to(dev)
    optimizer = kind(model.parameters(), lr=0.01)
    step(model, optimizer)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    checkpoint = torch.load(file, weights_only=True)
    other = nn.Linear(4, 2).to(dev)
    resumed = kind(other.parameters(), lr=0.01)
    other.load_state_dict(checkpoint["model"])
    resumed.load_state_dict(checkpoint["optimizer"])
    step(model, optimizer)
    step(other, resumed)
    assert torch.equal(model.weight.cpu(), other.weight.cpu())
    copy.deepcopy(resumed.state_dict())


# --- Data loading -------------------------------------------------------------------------------------------


def test_pin_memory_needs_no_device_argument():
    x = torch.arange(8.0)
    pinned = x.pin_memory()
    assert not x.is_pinned()
    assert pinned.is_pinned()
    assert torch.equal(pinned, x)
    assert pinned.device.type == "cpu"
    assert pinned.pin_memory() is pinned
    assert torch.empty(3, pin_memory=True).is_pinned()
    assert torch.zeros(3, pin_memory=True).is_pinned()
    assert torch.tensor([1.0, 2.0], pin_memory=True).is_pinned()
    assert not torch.empty(3, device="simdev").is_pinned()


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_data_loader_pins_its_batches(workers):
    loader = DataLoader(TensorDataset(torch.arange(8.0)), batch_size=4, pin_memory=True, num_workers=workers)
    sums = []
    for (batch,) in loader:
        assert batch.is_pinned()
        sums.append(batch.to("simdev", non_blocking=True).sum().item())
    assert sums == [6, 22]


class Batch:
    """What a collate function of the user's own may return."""

    def __init__(self, samples: list) -> None:
        self.values = torch.stack([sample[0] for sample in samples])

    def pin_memory(self) -> Batch:
        self.values = self.values.pin_memory()
        return self


@pytest.mark.parametrize("workers", [0, 1])
def test_data_loader_calls_a_batchs_own_pin_memory(workers):
    data = TensorDataset(torch.arange(4.0))
    loader = DataLoader(data, 2, collate_fn=Batch, pin_memory=True, num_workers=workers)
    batches = list(loader)
    assert len(batches) == 2
    assert all(batch.values.is_pinned() for batch in batches)


@pytest.mark.parametrize("device", ["simdev", torch.device("simdev")])
def test_data_loader_still_takes_a_device_to_pin_for(recwarn, device):
    loader = DataLoader(TensorDataset(torch.arange(4.0)), 2, pin_memory=True, pin_memory_device=device)
    assert all(batch.is_pinned() for (batch,) in loader)


# --- What an accelerator refuses ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "use",
    [
        lambda x: x.numpy(),
        lambda x: np.asarray(x),
        lambda x: np.array([x]),
        lambda x: x + torch.arange(3.0),
        lambda x: torch.arange(3.0) + x,
        lambda x: nn.Linear(3, 1)(x),
        lambda x: torch.cat([x, torch.ones(1)]),
        lambda x: torch.stack([torch.ones(3), x]),
        lambda x: torch.where(x > 1, x, torch.ones(3)),
        lambda x: x.copy_(torch.ones(3)).add_(torch.ones(3)),
        lambda x: torch.mm(x.view(1, 3), torch.ones(3, 1)),
        lambda x: x.to("simdev:1") + x,
    ],
)
def test_forgotten_transfers_raise(dev, use):
    x = torch.arange(3.0, device=dev)
    with pytest.raises((TypeError, RuntimeError, ValueError)):
        use(x)
    assert x.add(0).sum().item() == 3


def test_values_are_real_and_repr_names_the_device(dev):
    x = torch.arange(3.0, device=dev)
    assert float(x.sum()) == 3
    assert x.tolist() == [0, 1, 2]
    assert repr(x) == "tensor([0., 1., 2.], device='simdev:0')"


# --- Registration -------------------------------------------------------------------------------------------


def test_methods_are_generated_for_everything_that_moves():
    tensor = torch.ones(2).simdev()
    assert tensor.is_simdev
    assert not torch.ones(2).is_simdev
    assert nn.Linear(1, 1).simdev().weight.device.type == "simdev"
    storage = torch.UntypedStorage(4).simdev()
    assert storage.device.type == "simdev"
    assert storage.is_simdev
    packed = nn.utils.rnn.pack_sequence([torch.ones(3), torch.ones(2)]).simdev()
    assert packed.data.device.type == "simdev"
    assert packed.is_simdev
    assert tensor.simdev() is tensor
    assert tensor.simdev(1).device.index == 1


# What test harnesses of other projects look up on a device's module.
HARNESS_NAMES = """
    Event Stream _is_in_bad_fork current_device current_stream default_stream device device_count device_of
    empty_cache get_amp_supported_dtype get_device_capability get_device_name get_device_properties
    get_rng_state get_rng_state_all init initial_seed is_available is_bf16_supported is_initialized
    manual_seed manual_seed_all max_memory_allocated max_memory_reserved mem_get_info memory_allocated
    memory_reserved memory_snapshot memory_stats memory_summary reset_accumulated_memory_stats
    reset_peak_memory_stats seed seed_all set_device set_rng_state set_rng_state_all set_stream stream
    synchronize
""".split()


def test_module_has_the_names_that_harnesses_look_up():
    assert [name for name in HARNESS_NAMES if not hasattr(simdev, name)] == []
    assert torch.simdev is simdev is sys.modules["torch.simdev"]
    with simdev.device(0):
        simdev.synchronize()


def test_autoload_can_be_called_again(recwarn):
    import torch_simdev

    torch_simdev._autoload()
    assert torch.get_device_module("simdev") is simdev
    assert torch.ones(1).simdev().is_simdev
    assert not recwarn.list


# --- Scripts from elsewhere ---------------------------------------------------------------------------------

FOLDER = os.environ.get("SIMDEV_CASES")
SCRIPTS = sorted(Path(FOLDER).glob("*.py")) if FOLDER else []


@pytest.mark.skipif(not SCRIPTS, reason="SIMDEV_CASES does not name a folder of scripts")
@pytest.mark.parametrize("script", SCRIPTS or [None], ids=lambda path: path.stem if path else "none")
def test_script(script):
    environment = {**os.environ, "DEVICE": "simdev", "BACKEND": "simdev"}
    start = time.perf_counter()
    result = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True, timeout=240
    )
    report = f"after {time.perf_counter() - start:.0f} s\n{result.stdout[-2000:]}\n{result.stderr[-4000:]}"
    assert result.returncode == 0, report
