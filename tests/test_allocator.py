"""The caching allocator of device memory: sizes, reuse, streams, running out, history, pools.

Sizes and counts are those that CUDA's allocator gives for the same sequence of requests.
"""

from __future__ import annotations

import gc
import itertools
import os
import pickle
import random
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator

import pytest
import torch
from torch.cuda import _memory_viz

import torch_simdev as simdev
from torch_simdev import memory

KB = 1024
MB = 1024 * KB


@pytest.fixture(autouse=True)
def clean_slate() -> Iterator[None]:
    """Each test starts with nothing cached, and with statistics that start from there."""
    reset()
    yield
    reset()


def reset() -> None:
    gc.collect()
    simdev.init()
    simdev.empty_cache()
    for device in range(simdev.device_count()):
        simdev.reset_peak_memory_stats(device)
        simdev.reset_accumulated_memory_stats(device)


def blob(size: int, device: str = "simdev") -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, device=device)


class Growth:
    """How much the current statistics have grown since this object was made."""

    def __init__(self, device: int = 0):
        self.device = device
        self.start = simdev.memory_stats(device)

    def __getitem__(self, name: str) -> int:
        if name.count(".") == 0:
            name += ".all.current"
        return simdev.memory_stats(self.device)[name] - self.start[name]


# --- Sizes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "rounded"), [(1, 512), (512, 512), (513, 1024), (MB, MB), (MB + 1, MB + 512), (20 * MB, 20 * MB)]
)
def test_sizes_are_rounded_to_512_bytes(size, rounded):
    growth = Growth()
    x = blob(size)
    assert growth["allocated_bytes"] == rounded
    assert growth["requested_bytes"] == size
    assert growth["allocation"] == 1
    assert x.data_ptr() % 512 == 0
    del x
    assert growth["allocated_bytes"] == growth["requested_bytes"] == growth["allocation"] == 0


@pytest.mark.parametrize(
    ("size", "segment", "pool"),
    [
        (1, 2 * MB, "small_pool"),
        (MB, 2 * MB, "small_pool"),
        (MB + 1, 20 * MB, "large_pool"),
        (10 * MB - 512, 20 * MB, "large_pool"),
        (10 * MB, 10 * MB, "large_pool"),
        (11 * MB + 1, 12 * MB, "large_pool"),
    ],
)
def test_segments_have_cudas_sizes(size, segment, pool):
    growth = Growth()
    x = blob(size)
    assert growth["reserved_bytes"] == segment
    assert growth[f"reserved_bytes.{pool}.current"] == segment
    assert growth["segment"] == 1
    del x
    assert growth["reserved_bytes"] == segment
    simdev.empty_cache()
    assert growth["reserved_bytes"] == growth["segment"] == 0


def test_an_empty_tensor_has_a_device_and_no_memory():
    growth = Growth(1)
    x = torch.empty(0, 3, device="simdev:1")
    assert x.data_ptr() == 0
    assert x.device == torch.device("simdev:1")
    assert x.untyped_storage().device == torch.device("simdev:1")
    assert growth["allocation"] == growth["reserved_bytes"] == 0
    x.record_stream(simdev.Stream(1))


@pytest.mark.parametrize(
    ("size", "dtype", "error", "message"),
    [
        (-1, torch.float32, RuntimeError, "negative dimension -1"),
        (2**62, torch.float32, RuntimeError, "Storage size calculation overflowed"),
        (2**62, torch.uint8, torch.OutOfMemoryError, "more than 1EB memory"),
        (2**59, torch.uint8, torch.OutOfMemoryError, "Tried to allocate 536870912.00 GiB"),
    ],
)
def test_impossible_sizes_raise_what_cuda_raises(size, dtype, error, message):
    growth = Growth()
    with pytest.raises(error, match=message):
        torch.empty(size, dtype=dtype, device="simdev")
    assert growth["allocated_bytes"] == 0
    assert torch.ones(3, device="simdev").sum().item() == 3


# --- Reuse --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [100, 300 * KB, 3 * MB, 30 * MB])
def test_the_last_freed_block_is_reused_on_the_same_stream_without_waiting(size):
    simdev._sleep(50)
    x = blob(size)
    pointer = x.data_ptr()
    del x
    assert blob(size).data_ptr() == pointer
    assert not simdev.current_stream().query()


def test_streams_have_pools_of_their_own():
    x = blob(1000)
    pointer = x.data_ptr()
    del x
    with simdev.Stream():
        y = blob(1000)
        assert y.data_ptr() != pointer
        assert simdev.memory_stats()["segment.all.current"] == 2
    z = blob(1000)
    assert z.data_ptr() == pointer


def test_devices_have_pools_and_statistics_of_their_own():
    first, second = Growth(0), Growth(1)
    x = blob(5 * MB, "simdev:1")
    assert first["reserved_bytes"] == 0
    assert second["allocated_bytes"] == 5 * MB
    y = blob(5 * MB, "simdev:0")
    assert first["allocated_bytes"] == second["allocated_bytes"] == 5 * MB
    assert x.data_ptr() != y.data_ptr()


def test_neighbours_merge_when_they_are_free():
    growth = Growth()
    parts = [blob(512 * KB) for _ in range(4)]  # fill a small segment
    addresses = sorted(part.data_ptr() for part in parts)
    assert addresses == [addresses[0] + i * 512 * KB for i in range(4)]
    assert growth["inactive_split"] == 0
    parts.sort(key=torch.Tensor.data_ptr)
    del parts[0], parts[1]  # the first and the third of the segment
    assert growth["inactive_split"] == 2
    assert growth["inactive_split_bytes"] == 1024 * KB
    del parts[0]  # the second joins both
    assert growth["inactive_split"] == 1
    assert growth["inactive_split_bytes"] == 1536 * KB
    whole = blob(1000 * KB)
    assert whole.data_ptr() == addresses[0]
    assert growth["segment"] == 1
    del whole, parts[0]
    assert growth["inactive_split"] == growth["inactive_split_bytes"] == 0
    assert growth["reserved_bytes"] == 2 * MB


def test_the_best_fit_is_taken():
    separators, holes = [], {}
    for size in (8, 2, 4):  # in one segment of 20 MB: holes of these sizes, kept apart
        holes[size] = blob(size * MB)
        separators.append(blob(MB + 512))
    wanted = holes[4].data_ptr()
    holes.clear()
    assert blob(3 * MB).data_ptr() == wanted
    assert simdev.memory_stats()["segment.all.current"] == 1


def test_a_large_block_keeps_a_rest_of_at_most_1_mb():
    blob(20 * MB)  # leaves a free block of 20 MB
    growth = Growth()
    x = blob(19 * MB)
    assert growth["allocated_bytes"] == 20 * MB
    assert growth["requested_bytes"] == 19 * MB
    del x
    y = blob(19 * MB - 512)
    assert growth["allocated_bytes"] == 19 * MB - 512
    assert growth["inactive_split_bytes"] == MB + 512
    del y


def test_fragments_do_not_grow_the_reservation():
    """Small blocks of many sizes, freed in any order, always fit into what their largest sum needed."""
    generator = random.Random(0)
    sizes = [generator.randrange(512, 900 * KB) for _ in range(300)]
    for _ in range(5):
        live = [blob(size) for size in sizes]
        generator.shuffle(live)
        while live:
            live.pop()
        generator.shuffle(sizes)
    stats = simdev.memory_stats()
    assert stats["inactive_split.all.current"] == 0
    assert stats["allocated_bytes.all.current"] == 0
    assert stats["reserved_bytes.all.peak"] < 1.25 * stats["allocated_bytes.all.peak"]


def test_freed_small_blocks_can_serve_other_sizes():
    live = [blob(512) for _ in range(2 * MB // 512)]
    assert simdev.memory_reserved() == 2 * MB
    live.clear()
    x = blob(900 * KB)
    assert simdev.memory_reserved() == 2 * MB
    del x


# --- Several streams ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1000, 5 * MB])
def test_record_stream_keeps_a_block_until_the_other_stream_is_done(size):
    side = simdev.Stream()
    x = torch.full((size,), 3, dtype=torch.uint8, device="simdev")
    pointer = x.data_ptr()
    side.wait_stream(simdev.current_stream())
    simdev._sleep(100, side)
    with side:
        y = x.clone()
    x.record_stream(side)
    growth = Growth()
    del x
    assert growth["allocation"] == -1
    assert growth["active"] == 0  # it still waits
    states = {block["state"] for segment in simdev.memory_snapshot() for block in segment["blocks"]}
    assert "active_awaiting_free" in states
    others = [torch.full((size,), 7, dtype=torch.uint8, device="simdev") for _ in range(4)]
    assert pointer not in {other.data_ptr() for other in others}
    assert not side.query()
    side.synchronize()
    assert y.eq(3).all().item()
    del others, y
    assert pointer in {other.data_ptr() for other in [blob(size) for _ in range(6)]}
    assert simdev.memory_stats()["active.all.current"] == 0


def test_without_record_stream_the_block_is_reused_at_once():
    """What record_stream protects from: the control of the test above."""
    side = simdev.Stream()
    x = blob(1000)
    pointer = x.data_ptr()
    simdev._sleep(20, side)
    del x
    assert blob(1000).data_ptr() == pointer


def test_record_stream_of_the_own_stream_changes_nothing():
    simdev._sleep(50)
    x = blob(1000)
    pointer = x.data_ptr()
    x.record_stream(simdev.current_stream())
    del x
    assert blob(1000).data_ptr() == pointer


def test_record_stream_of_several_streams_waits_for_all():
    sides = [simdev.Stream() for _ in range(3)]
    x = blob(1000)
    pointer = x.data_ptr()
    for side, ms in zip(sides, (1, 150, 1), strict=True):
        simdev._sleep(ms, side)
        x.record_stream(side)
        x.record_stream(side)  # twice is once
    del x
    sides[0].synchronize()
    sides[2].synchronize()
    assert pointer not in {y.data_ptr() for y in [blob(1000) for _ in range(3)]}
    sides[1].synchronize()
    assert pointer in {y.data_ptr() for y in [blob(1000) for _ in range(5)]}


def test_record_stream_of_another_device():
    side = simdev.Stream(1)
    x = blob(1000)
    simdev._sleep(50, side)
    x.record_stream(side)
    growth = Growth()
    del x
    assert growth["active"] == 0
    side.synchronize()
    blob(1000)
    assert growth["active"] == -1


def test_empty_cache_waits_for_other_streams():
    side = simdev.Stream()
    x = blob(30 * MB)
    simdev._sleep(50, side)
    x.record_stream(side)
    del x
    simdev.empty_cache()
    assert simdev.memory_reserved() == 0
    assert side.query()
    assert simdev.memory_stats()["num_sync_all_streams"] > 0


# --- Running out --------------------------------------------------------------------------------------------

LIMITED = {"SIMDEV_MEMORY_LIMIT": "256M", "SIMDEV_DEVICE_COUNT": "1"}


def test_out_of_memory_flushes_retries_and_leaves_the_device_usable(run_python):
    run_python(
        """
import torch, torch_simdev as simdev
MB = 1 << 20
def blob(mb): return torch.empty(mb * MB, dtype=torch.uint8, device="simdev")
free, total = simdev.mem_get_info()
assert total == 256 * MB and free <= total, (free, total)
x = [blob(40) for _ in range(5)]
kept = torch.arange(1000, device="simdev")
del x                                   # 200 MB, in the cache only
y = blob(220)                           # does not fit without giving it back
stats = simdev.memory_stats()
assert stats["num_alloc_retries"] == 1 and stats["num_ooms"] == 0, stats
assert stats["num_device_free"] == 5
calls = []
simdev.memory._attach_out_of_memory_observer(lambda *args: calls.append(args))
simdev.memory._attach_out_of_memory_observer(lambda *args: 1 / 0)
try:
    blob(100)
    raise SystemExit("no error")
except torch.OutOfMemoryError as error:
    text = str(error)
free, total = simdev.mem_get_info()
assert calls == [(0, 100 * MB, total, free)], calls
for part in ("simdev out of memory. Tried to allocate 100.00 MiB. GPU 0", "total capacity of 256.00 MiB",
             "is free", "Of the allocated memory 220.01 MiB is allocated by PyTorch",
             "and 1.99 MiB is reserved by PyTorch but unallocated",
             "SIMDEV_ALLOC_CONF", "SIMDEV_MEMORY_LIMIT"):
    assert part in text, (part, text)
assert isinstance(error_type := torch.OutOfMemoryError("x"), RuntimeError)
assert simdev.memory_stats()["num_ooms"] == 1
assert kept.sum().item() == 499500
del y
z = blob(240)
assert simdev.memory_allocated() == 240 * MB + 8192
""",
        **LIMITED,
    )


def test_out_of_memory_waits_for_what_other_streams_still_use(run_python):
    run_python(
        """
import torch, torch_simdev as simdev
MB = 1 << 20
x = torch.empty(200 * MB, dtype=torch.uint8, device="simdev")
side = simdev.Stream()
simdev._sleep(100, side)
x.record_stream(side)
del x
y = torch.empty(180 * MB, dtype=torch.uint8, device="simdev")
assert side.query()
assert simdev.memory_allocated() == 180 * MB
""",
        **LIMITED,
    )


def test_out_of_memory_in_many_threads_is_raised_only_where_memory_is_short(run_python):
    """Four threads of 60 MB at a time fit into 256 MB, however their flushes and retries interleave."""
    run_python(
        """
import threading, torch, torch_simdev as simdev
MB = 1 << 20
errors = []
def work(seed):
    try:
        with simdev.Stream():
            for i in range(60):
                torch.empty((20 + (seed * 7 + i * 13) % 40) * MB, dtype=torch.uint8, device="simdev")
    except Exception as error:
        errors.append(error)
threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
[t.start() for t in threads]; [t.join() for t in threads]
assert not errors, errors
assert simdev.memory_allocated() == 0
simdev.empty_cache()
assert simdev.mem_get_info()[0] == simdev.mem_get_info()[1]
""",
        **LIMITED,
    )


def test_memory_fraction_limits_what_is_reserved():
    total = simdev.mem_get_info()[1]
    assert simdev.get_per_process_memory_fraction() == 1.0
    simdev.set_per_process_memory_fraction(64 * MB / total)
    try:
        assert simdev.get_per_process_memory_fraction() == 64 * MB / total
        assert simdev.get_per_process_memory_fraction(1) == 1.0
        x = blob(40 * MB)
        with pytest.raises(
            torch.OutOfMemoryError, match=r"64\.00 MiB allowed by set_per_process_memory_fraction"
        ):
            blob(30 * MB)
        del x
        blob(60 * MB)
    finally:
        simdev.set_per_process_memory_fraction(1.0)
    blob(100 * MB)


@pytest.mark.parametrize(("fraction", "error"), [(1, TypeError), (1.5, ValueError), (-0.1, ValueError)])
def test_bad_memory_fractions(fraction, error):
    with pytest.raises(error):
        simdev.set_per_process_memory_fraction(fraction)
    assert simdev.get_per_process_memory_fraction() == 1.0


def test_memory_info_counts_what_the_driver_has_left():
    free, total = simdev.mem_get_info(0)
    x = blob(64 * MB)
    assert simdev.mem_get_info("simdev:0") == (free - 64 * MB, total)
    del x
    assert simdev.mem_get_info(torch.device("simdev")) == (free - 64 * MB, total)
    simdev.empty_cache()
    assert simdev.mem_get_info() == (free, total)


# --- Settings -----------------------------------------------------------------------------------------------


def test_setting_max_split_size(run_python):
    run_python(
        """
import torch, torch_simdev as simdev
MB = 1 << 20
def blob(mb): return torch.empty(mb * MB, dtype=torch.uint8, device="simdev")
blob(100)
assert simdev.memory_stats()["oversize_segments.current"] == 1
assert simdev.memory_stats()["oversize_allocations.allocated"] == 1
assert simdev.memory_stats()["max_split_size"] == 50 * MB
x = blob(30)     # not from the free 100 MB, which must stay whole
assert simdev.memory_stats()["segment.all.current"] == 2
y = blob(90)     # near enough
assert simdev.memory_stats()["segment.all.current"] == 2
assert simdev.memory_allocated() == 130 * MB
""",
        SIMDEV_ALLOC_CONF="max_split_size_mb:50",
    )


def test_setting_roundup(run_python):
    run_python(
        """
import torch, torch_simdev as simdev
def rounded(size):
    before = simdev.memory_allocated()
    x = torch.empty(size, dtype=torch.uint8, device="simdev")
    return simdev.memory_allocated() - before
KB = 1024
assert [rounded(size * KB) for size in (1200, 1024, 1281)] == [1280 * KB, 1024 * KB, 1536 * KB]
""",
        SIMDEV_ALLOC_CONF="roundup_power2_divisions:4",
    )


def test_setting_garbage_collection(run_python):
    run_python(
        """
import torch, torch_simdev as simdev
MB = 1 << 20
simdev.set_per_process_memory_fraction(1.0)
for size in (30, 40, 50, 60):
    torch.empty(size * MB, dtype=torch.uint8, device="simdev")
# More than half of 256 MB was reserved when 60 MB were wanted, all of it free: the oldest went back.
assert simdev.memory_reserved() < 180 * MB
assert simdev.memory_stats()["num_alloc_retries"] == 0
assert simdev.memory_stats()["num_device_free"] >= 1
""",
        **LIMITED,
        SIMDEV_ALLOC_CONF="garbage_collection_threshold:0.4",
    )


@pytest.mark.parametrize("settings", ["no_such_key:1", "max_split_size_mb:many", "max_split_size_mb"])
def test_malformed_settings_are_reported_with_their_name(run_python, settings):
    run_python(
        """
import os, torch
for _ in range(2):
    try:
        torch.empty(3, device="simdev")
        raise SystemExit("no error")
    except (ValueError, RuntimeError) as error:
        assert f"SIMDEV_ALLOC_CONF='{os.environ['SIMDEV_ALLOC_CONF']}' is malformed" in str(error), error
""",
        SIMDEV_ALLOC_CONF=settings,
    )


# --- Statistics ---------------------------------------------------------------------------------------------


def test_statistics_have_the_names_of_cudas():
    split = ["allocation", "segment", "active", "inactive_split"]
    split += ["allocated_bytes", "reserved_bytes", "active_bytes", "inactive_split_bytes", "requested_bytes"]
    kinds = ["current", "peak", "allocated", "freed"]
    names = {
        ".".join(parts) for parts in itertools.product(split, ["all", "small_pool", "large_pool"], kinds)
    }
    names |= {
        ".".join(parts) for parts in itertools.product(["oversize_allocations", "oversize_segments"], kinds)
    }
    names |= {"num_alloc_retries", "num_ooms", "num_sync_all_streams", "max_split_size"}
    names |= {"num_device_alloc", "num_device_free"}
    assert names <= torch.accelerator.memory_stats().keys()
    ours = simdev.memory_stats()
    assert {name for name in ours if "private_pools" not in name} == names | {"num_oom_rejections"}
    assert {key: ours[key] for key in torch.accelerator.memory_stats()} == torch.accelerator.memory_stats()
    assert list(ours) == sorted(ours)
    assert simdev.memory_stats_as_nested_dict()["segment"]["all"]["peak"] == ours["segment.all.peak"]


def test_peaks_and_sums():
    x, y = blob(1000), blob(3 * MB)
    del x
    x = blob(1000)
    stats = simdev.memory_stats()
    assert stats["allocation.all.allocated"] == 3
    assert stats["allocation.all.freed"] == 1
    assert stats["allocation.all.current"] == stats["allocation.all.peak"] == 2
    assert stats["allocation.small_pool.peak"] == stats["allocation.large_pool.peak"] == 1
    assert stats["allocated_bytes.small_pool.allocated"] == 2048
    assert stats["allocated_bytes.all.peak"] == simdev.max_memory_allocated() == 3 * MB + 1024
    assert stats["reserved_bytes.all.peak"] == simdev.max_memory_reserved() == 22 * MB
    del x, y
    simdev.reset_accumulated_memory_stats()
    stats = simdev.memory_stats()
    assert stats["allocation.all.allocated"] == stats["allocation.all.freed"] == 0
    assert stats["allocated_bytes.all.peak"] == 3 * MB + 1024
    simdev.reset_peak_memory_stats()
    assert simdev.max_memory_allocated() == 0
    assert simdev.max_memory_reserved() == 22 * MB
    z = blob(512)
    assert simdev.max_memory_allocated() == 512
    assert simdev.memory_stats()["allocation.all.allocated"] == 1
    del z
    assert simdev.memory_stats()["allocation.all.freed"] == 1


def test_peak_of_a_training_step_is_the_sum_of_what_lives():
    """Forward keeps the activations, backward frees them one by one: the peak is known in advance."""
    size, layers = 256 * KB, 6
    weights = [torch.ones(size // 4, device="simdev", requires_grad=True) for _ in range(layers)]
    x = torch.ones(size // 4, device="simdev")

    def step() -> int:
        activation = x
        for weight in weights:
            activation = activation * weight  # keeps its input; the weight lives anyway
        loss = activation.sum()
        del activation
        simdev.reset_peak_memory_stats()
        loss.backward()
        for weight in weights:
            weight.grad = None
        return simdev.max_memory_allocated()

    peaks = {step() for _ in range(3)}
    live = simdev.memory_allocated()
    assert live == (layers + 1) * size
    # Backward of layer k of n finds the inputs of layers 2 to k, the gradients of layers k+1 to n and of its
    # output, and adds two: n + 2 from the last layer but one on.  The loss and its gradient are scalars.
    assert peaks == {live + (layers + 2) * size + 2 * 512}


@pytest.mark.parametrize("device", [None, 0, "simdev", "simdev:0", torch.device("simdev", 0)])
def test_ways_to_name_the_device(device):
    x = blob(1000)
    assert simdev.memory_allocated(device) == simdev.max_memory_allocated(device) == 1024
    assert simdev.memory_reserved(device) == simdev.max_memory_reserved(device) == 2 * MB
    assert simdev.memory_allocated(1) == 0
    del x
    simdev.reset_peak_memory_stats(device)
    simdev.reset_accumulated_memory_stats(device)
    assert simdev.max_memory_allocated(device) == 0


@pytest.mark.parametrize("call", [simdev.memory_stats, simdev.reset_peak_memory_stats, simdev.mem_get_info])
def test_bad_devices(call):
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        call(7)
    with pytest.raises(ValueError, match="Expected a simdev device"):
        call("cpu")


def test_generic_functions_reach_the_same_allocator():
    x = blob(5 * MB)
    assert torch.accelerator.memory_allocated() == simdev.memory_allocated() == 5 * MB
    assert torch.accelerator.max_memory_allocated() == 5 * MB
    assert torch.accelerator.memory_reserved(0) == torch.accelerator.max_memory_reserved(0) == 20 * MB
    del x
    torch.accelerator.reset_peak_memory_stats()
    assert torch.accelerator.max_memory_allocated() == 0
    torch.accelerator.empty_cache()
    assert torch.accelerator.memory_reserved() == 0


def test_nothing_is_initialised_by_asking(run_python):
    run_python(
        """
import torch, torch_simdev as simdev
torch.accelerator.empty_cache(); simdev.empty_cache(); torch.accelerator.empty_host_cache()
assert simdev.memory_allocated() == simdev.max_memory_reserved() == torch.accelerator.memory_allocated() == 0
assert simdev.memory_stats() == {} and simdev.host_memory_stats() == {} and simdev.memory_snapshot() == []
torch.accelerator.reset_peak_memory_stats()
assert not simdev.is_initialized()
simdev.init()
assert simdev.memory_stats()["allocated_bytes.all.current"] == 0
"""
    )


def test_summary():
    x = blob(3 * MB)
    text = simdev.memory_summary()
    lines = text.splitlines()
    assert {len(line) for line in lines} == {77}
    row = next(line for line in lines if "Allocated memory" in line)
    assert [cell.strip() for cell in row.strip("|").split("|")][1:] == [
        "3072 KiB",
        "3072 KiB",
        "3072 KiB",
        "0 B",
    ]
    assert "device ID 0" in text
    assert "from large pool" in text
    assert "from large pool" not in simdev.memory_summary(0, abbreviated=True)
    del x


def test_the_profiler_sees_allocations():
    with torch.profiler.profile(profile_memory=True) as profile:
        x = blob(5 * MB)
        del x
    events = [event for event in profile.events() if event.name == "[memory]"]
    sizes = [event.self_device_memory_usage for event in profile.events() if event.name == "aten::empty"]
    assert 5 * MB in sizes or any(event.self_device_memory_usage == 5 * MB for event in events)
    assert sum(event.self_device_memory_usage for event in profile.events()) == 0


# --- Other ways in ------------------------------------------------------------------------------------------


def test_raw_allocations():
    side = simdev.Stream(1)
    growth = Growth(1)
    pointer = simdev.caching_allocator_alloc(1000, "simdev:1", side)
    assert growth["allocated_bytes"] == 1024
    simdev.caching_allocator_delete(pointer)
    assert simdev.caching_allocator_alloc(1000, 1, side.simdev_stream) == pointer
    assert simdev.current_device() == 0
    simdev.caching_allocator_delete(pointer)
    assert growth["allocated_bytes"] == 0
    with pytest.raises(RuntimeError, match="invalid device pointer"):
        simdev.caching_allocator_delete(pointer)
    assert simdev.caching_allocator_alloc(0) == 0
    simdev.caching_allocator_delete(0)
    with pytest.raises(TypeError):
        simdev.caching_allocator_alloc(10, stream="x")
    with pytest.raises(TypeError):
        simdev.caching_allocator_alloc(-1)
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        simdev.caching_allocator_alloc(10, 9, 1)


def test_copy_on_write_storage():
    """Shares the memory first, and copies it on the device when one of both is written."""
    x = torch.arange(1000, device="simdev")
    growth = Growth()
    y = torch._lazy_clone(x)
    assert growth["allocation"] == 0
    y += 1
    assert growth["allocation"] == 1
    assert x.sum().item() == 499500
    assert y.sum().item() == 500500


# --- Threads, processes, the end ----------------------------------------------------------------------------


def test_stress_with_threads_streams_and_cross_thread_frees():
    """Eight threads, a stream each: every tensor holds its number until it is checked, whoever frees it."""
    rounds, threads = 150, 8
    shared: list[tuple[torch.Tensor, int, torch.Event]] = []
    lock = threading.Lock()
    errors: list[BaseException] = []

    def check(x: torch.Tensor, value: int) -> None:
        assert x[0].item() == x[-1].item() == value

    def work(seed: int) -> None:
        try:
            generator = random.Random(seed)
            mine: list[tuple[torch.Tensor, int]] = []
            with simdev.Stream() as stream:
                for i in range(rounds):
                    size = generator.choice([7, 100, 1000, 5000, 60_000, 400_000])
                    value = seed * rounds + i
                    x = torch.full((size,), value, dtype=torch.int32, device="simdev")
                    if generator.random() < 0.3:
                        with lock:
                            shared.append((x, value, stream.record_event()))
                    else:
                        mine.append((x, value))
                    del x
                    if generator.random() < 0.3:
                        with lock:
                            item = shared.pop(generator.randrange(len(shared))) if shared else None
                        if item:  # made on another stream: wait for it, use it here, free it here
                            foreign, foreign_value, ready = item
                            del item
                            ready.wait(stream)
                            foreign.record_stream(stream)
                            copy = foreign + 0
                            del foreign
                            check(copy, foreign_value)
                    while len(mine) > generator.randrange(1, 12):
                        check(*mine.pop(generator.randrange(len(mine))))
                    if i % 50 == 49:
                        simdev.empty_cache() if seed == 0 else simdev.memory_snapshot()
                for item in mine:
                    check(*item)
        except BaseException as error:
            errors.append(error)
            raise

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
    assert not errors
    assert not any(worker.is_alive() for worker in workers)
    x = None  # there may be none left
    for x, value, ready in shared:
        ready.synchronize()
        check(x, value)
    del x
    shared.clear()
    simdev.synchronize()
    simdev.empty_cache()
    stats = simdev.memory_stats()
    for name in ("allocation", "allocated_bytes", "active", "active_bytes", "requested_bytes", "segment"):
        assert stats[f"{name}.all.current"] == 0, name
        assert stats[f"{name}.all.allocated"] == stats[f"{name}.all.freed"] > 0, name
    assert stats["inactive_split.all.current"] == stats["reserved_bytes.all.current"] == 0


def test_tensors_in_reference_cycles_are_freed_by_the_collector():
    class Node:
        pass

    growth = Growth()
    node = Node()
    node.self, node.tensor = node, blob(3 * MB)
    gone = weakref.ref(node)
    del node
    assert growth["allocation"] == 1
    gc.collect()
    assert gone() is None
    assert growth["allocation"] == 0


def test_a_forked_child_can_drop_tensors_but_not_use_the_device(run_python):
    result = run_python(
        """
import gc, os, sys, torch, torch_simdev as simdev
x = torch.ones(1000, device="simdev")
y = torch.ones(5 << 20, device="simdev")
side = simdev.Stream()
y.record_stream(side)
pid = os.fork()
if pid == 0:
    del x, y
    gc.collect()
    for use in (lambda: torch.ones(3, device="simdev"), lambda: simdev.caching_allocator_alloc(3),
                simdev.mem_get_info):
        try:
            use()
            os._exit(1)
        except RuntimeError as error:
            if "forked subprocess" not in str(error):
                os._exit(2)
    if simdev.memory_stats() != {} or simdev.memory_allocated() != 0:
        os._exit(3)
    simdev.empty_cache()
    sys.exit(0)
_, status = os.waitpid(pid, 0)
assert os.waitstatus_to_exitcode(status) == 0, status
assert x.sum().item() == 1000 and y.sum().item() == 5 << 20
print("parent is well")
"""
    )
    assert "parent is well" in result.stdout


def test_the_process_ends_well_with_live_tensors(run_python):
    run_python(
        """
import atexit, threading, torch, torch_simdev as simdev
class Node: pass
node = Node(); node.me = node; node.x = torch.ones(1000, device="simdev")
x = torch.ones(5 << 20, device="simdev")
side = simdev.Stream()
simdev._sleep(30, side)
x.record_stream(side)
torch.some_attribute = [x, torch.ones(3, device="simdev:1")]
pool = simdev.MemPool()
local = threading.local(); local.x = torch.ones(3, device="simdev")
atexit.register(lambda: torch.ones(3, device="simdev"))
"""
    )


# --- History ------------------------------------------------------------------------------------------------


@pytest.fixture
def history() -> Iterator[None]:
    """History as it is by default, with Python frames only (C++ frames take seconds to name)."""
    memory._record_memory_history(stacks="python", clear_history=True)
    yield
    memory._record_memory_history(None, clear_history=True)


def allocate_in_a_function(size: int) -> torch.Tensor:
    return blob(size)


def actions(snapshot: dict, device: int = 0) -> list[str]:
    return [entry["action"] for entry in snapshot["device_traces"][device]]


def test_snapshot_tells_what_happened_and_where(history):
    x = allocate_in_a_function(3 * MB)
    y = allocate_in_a_function(1000)
    pointer = x.data_ptr()
    del x
    snapshot = memory._snapshot()
    assert actions(snapshot) == [
        *("segment_alloc", "alloc", "segment_alloc", "alloc"),
        *("free_requested", "free_completed", "snapshot"),
    ]
    assert actions(snapshot, 1) in ([], ["snapshot"])
    trace = snapshot["device_traces"][0]
    assert trace[1]["addr"] == trace[4]["addr"] == pointer
    assert trace[1]["size"] == trace[4]["size"] == 3 * MB
    assert trace[0]["size"] == 20 * MB
    assert trace[0]["stream"] == simdev.current_stream().simdev_stream
    assert trace[0]["time_us"] <= trace[1]["time_us"] <= trace[-1]["time_us"]
    frames = trace[1]["frames"]
    assert "allocate_in_a_function" in [frame["name"] for frame in frames]
    assert any(frame["filename"] == __file__ and frame["line"] > 0 for frame in frames)
    segments = {segment["segment_type"]: segment for segment in snapshot["segments"]}
    assert segments["large"]["total_size"] == 20 * MB
    assert segments["large"]["allocated_size"] == segments["large"]["active_size"] == 0
    small = segments["small"]
    assert (small["allocated_size"], small["requested_size"], small["device"]) == (1024, 1000, 0)
    block = next(block for block in small["blocks"] if block["state"] == "active_allocated")
    assert (block["size"], block["requested_size"], block["address"]) == (1024, 1000, y.data_ptr())
    assert "allocate_in_a_function" in [frame["name"] for frame in block["frames"]]
    for segment in snapshot["segments"]:
        assert sum(block["size"] for block in segment["blocks"]) == segment["total_size"]
    traceback = memory._allocation_traceback(y.untyped_storage().data_ptr())
    assert "allocate_in_a_function" in [frame["name"] for frame in traceback]
    assert memory._allocation_traceback(pointer) is None


def test_pytorchs_memory_viewer_reads_the_snapshot(history, tmp_path):
    x = [allocate_in_a_function(size) for size in (1000, 3 * MB, 30 * MB)]
    side = simdev.Stream()
    x[1].record_stream(side)
    del x[1]
    with pytest.raises(torch.OutOfMemoryError):
        blob(2**45)
    file = tmp_path / "snapshot.pickle"
    memory._dump_snapshot(str(file))
    snapshot = pickle.loads(file.read_bytes())
    summary = _memory_viz.segsum(snapshot)
    assert "segments: " in summary
    assert "[" in summary
    trace = _memory_viz.trace(snapshot)
    for text in ("= cudaMalloc(", "del ", "# free completed", "raise OutOfMemoryError"):
        assert text in trace
    same = str
    assert "allocate_in_a_function" in _memory_viz.segments(snapshot, format_flamegraph=same)
    assert "active_allocated" in _memory_viz.memory(snapshot, format_flamegraph=same)
    assert (
        _memory_viz.compare(snapshot["segments"], memory._snapshot()["segments"], format_flamegraph=same)
        == ""
    )
    for html in (
        _memory_viz.trace_plot(snapshot),
        _memory_viz.trace_plot(snapshot, plot_segments=True),
        _memory_viz.trace_plot(pickle.loads(file.read_bytes()), filter_freed=True),
        _memory_viz.segment_plot(snapshot),
    ):
        assert "MemoryViz.js" in html
    command = [sys.executable, _memory_viz.__file__, "stats", str(file)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    assert "total_allocated: 30.0MiB" in result.stdout
    del x


def test_history_of_a_block_that_another_stream_uses(history):
    side = simdev.Stream()
    x = blob(1000)
    simdev._sleep(50, side)
    x.record_stream(side)
    del x
    assert actions(memory._snapshot())[-2:] == ["free_requested", "snapshot"]
    side.synchronize()
    blob(1000)
    assert "free_completed" in actions(memory._snapshot())


def test_history_keeps_the_last_entries():
    memory._record_memory_history(stacks="python", max_entries=5, clear_history=True)
    try:
        for size in range(1, 20):
            blob(size)
        trace = memory._snapshot()["device_traces"][0]
        assert len(trace) == 5
        assert [entry["size"] for entry in trace if entry["action"] == "alloc"] == [19]
        assert trace[-1]["action"] == "snapshot"
    finally:
        memory._record_memory_history(None, clear_history=True)
    blob(1)
    assert memory._snapshot()["device_traces"][0] == []


def test_history_options():
    record = memory._record_memory_history
    try:
        record(stacks="python", context=None, skip_actions=["free_requested", "snapshot"], clear_history=True)
        x = blob(100)
        del x
        snapshot = memory._snapshot()
        assert actions(snapshot) == ["segment_alloc", "alloc", "free_completed"]
        assert all(entry["frames"] == [] for entry in snapshot["device_traces"][0])
        record("state", stacks="python", context="state", clear_history=True)
        live = [allocate_in_a_function(100)]
        snapshot = memory._snapshot()
        assert actions(snapshot) == []
        blocks = [block for segment in snapshot["segments"] for block in segment["blocks"] if block["frames"]]
        assert len(blocks) == len(live)
        for arguments in ({"enabled": "some"}, {"context": "some"}, {"stacks": "c"}, {"skip_actions": ["x"]}):
            with pytest.raises(ValueError, match="must be one of"):
                record(**arguments)
        with pytest.raises(NotImplementedError):
            record(compile_context=True)
    finally:
        record(None, clear_history=True)


def test_history_with_cpp_frames_in_threads(run_python):
    """Stack traces take the GIL, the allocator's lock does not: both together in many threads."""
    run_python(
        """
import threading, torch, torch_simdev as simdev
simdev.memory._record_memory_history(stacks="all", max_entries=50)
def work():
    with simdev.Stream():
        for i in range(200):
            x = torch.ones(100 + i, device="simdev"); y = x + x
threads = [threading.Thread(target=work) for _ in range(4)]
[t.start() for t in threads]
for _ in range(3): simdev.memory_snapshot()
[t.join() for t in threads]
snapshot = simdev.memory._snapshot()
entries = snapshot["device_traces"][0]
assert len(entries) == 50
names = {frame["name"] for entry in entries for frame in entry["frames"]}
assert "work" in names, names
assert any("at::" in name or "CapturedTraceback" in name for name in names), names
""",
        timeout=240,
    )


# --- Private pools ------------------------------------------------------------------------------------------


def pools_of(*tensors: torch.Tensor) -> list[tuple[int, int]]:
    snapshot = simdev.memory_snapshot()

    def pool(x: torch.Tensor) -> tuple[int, int]:
        return next(
            segment["segment_pool_id"]
            for segment in snapshot
            if segment["address"] <= x.data_ptr() < segment["address"] + segment["total_size"]
        )

    return [pool(x) for x in tensors]


def test_private_pool():
    pool = simdev.MemPool()
    blob(5 * MB)  # free memory of the default pool is not used ...
    before = blob(1000)
    with simdev.use_mem_pool(pool):
        assert pool.use_count() == 2
        x, y = blob(1000), blob(3 * MB)
        with pytest.raises(RuntimeError, match="already recording"), simdev.use_mem_pool(pool):
            pass
        assert pool.use_count() == 2
    assert pool.use_count() == 1
    after = blob(3 * MB)
    assert pools_of(before, x, y, after) == [(0, 0), pool.id, pool.id, (0, 0)]
    assert {segment["segment_pool_id"] for segment in pool.snapshot()} == {pool.id}
    assert sum(segment["total_size"] for segment in pool.snapshot()) == 22 * MB
    name = "reserved_bytes_by_private_pools." + "_".join(map(str, pool.id)) + ".all.current"
    assert simdev.memory_stats()[name] == 22 * MB
    pointer = y.data_ptr()
    del y
    other = blob(3 * MB)  # ... nor the other way round
    assert other.data_ptr() != pointer
    with simdev.use_mem_pool(pool):
        assert blob(3 * MB).data_ptr() == pointer
    simdev.empty_cache()
    assert sum(segment["total_size"] for segment in pool.snapshot()) == 22 * MB  # held
    del x
    identifier = pool.id
    del pool
    gc.collect()
    assert simdev.memory_snapshot(identifier)
    simdev.empty_cache()
    assert simdev.memory_snapshot(identifier) == []
    assert simdev.memory_stats()[name] == 0


def test_a_private_pool_outlives_its_owner_while_tensors_live():
    pool = simdev.MemPool()
    with simdev.use_mem_pool(pool):
        x = torch.arange(1000, device="simdev")
    del pool
    gc.collect()
    simdev.empty_cache()
    assert x.sum().item() == 499500
    simdev.empty_cache()
    growth = Growth()
    del x
    simdev.empty_cache()
    assert growth["reserved_bytes"] == -2 * MB


def test_a_private_pool_is_for_one_thread_and_device():
    pool = simdev.MemPool()
    result = []
    with simdev.use_mem_pool(pool, 0):
        thread = threading.Thread(target=lambda: result.append(blob(1000)))
        thread.start()
        thread.join()
        result += [blob(1000, "simdev:1"), blob(1000)]
        with simdev.Stream():
            result.append(blob(1000))
    assert pools_of(*result) == [(0, 0), (0, 0), pool.id, pool.id]


def test_record_stream_while_a_private_pool_is_begun():
    pool = simdev.MemPool()
    side = simdev.Stream()
    simdev._sleep(20, side)
    with simdev.use_mem_pool(pool):
        x = blob(1000)
        x.record_stream(side)
        growth = Growth()
        del x
        assert growth["active"] == 0
    side.synchronize()
    blob(1000)
    assert growth["active"] == -1


# --- Sanitizer ----------------------------------------------------------------------------------------------


def test_sanitizer_shows_reads_of_freed_memory(run_python):
    run_python(
        """
import torch, torch_simdev as simdev
fresh = torch.empty(1000, device="simdev")
assert fresh.isnan().all().item()
for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64):
    for size in (1000, 2 << 20):
        x = torch.ones(size, dtype=dtype, device="simdev")
        alias = torch.empty(0, dtype=dtype, device="simdev").set_(x)
        del x, alias
        y = torch.empty(size, dtype=dtype, device="simdev")
        assert y.isnan().all().item(), (dtype, size)
        del y
assert torch.empty(10, dtype=torch.int64, device="simdev").eq(-1).all().item()
""",
        SIMDEV_MEMORY_SANITIZER="1",
    )


def test_sanitizer_reports_use_on_another_stream_without_record_stream(run_python):
    code = """
import sys, torch, torch_simdev as simdev
side = simdev.Stream()
x = torch.zeros(1000, device="simdev")
side.wait_stream(simdev.current_stream())
simdev._sleep(100, side)
with side:
    x.fill_(3.0)
if sys.argv[1:] == ["--record"] or {record}:
    x.record_stream(side)
del x
side.synchronize()
y = torch.zeros(1000, device="simdev")
simdev.synchronize()
assert y.sum().item() == 0
"""
    result = run_python(code.format(record=False), check=False, SIMDEV_MEMORY_SANITIZER="1")
    assert result.returncode != 0
    assert "memory sanitizer: the free block of 4096 bytes" in result.stderr
    assert "record_stream" in result.stderr
    run_python(code.format(record=True), SIMDEV_MEMORY_SANITIZER="1")
    run_python(code.format(record=False), SIMDEV_MEMORY_SANITIZER="0")


def test_the_other_tests_of_streams_pass_under_the_sanitizer():
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", __file__, "-k"]
    command += ["record_stream and not sanitizer or stress or training or copy_on_write"]
    environment = {**os.environ, "SIMDEV_MEMORY_SANITIZER": "1"}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stdout
