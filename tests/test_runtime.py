"""Devices: counting, choosing, describing, first use, fork, the environment, and the storage hooks."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

import torch_simdev
from torch_simdev import _C

simdev = torch_simdev

ROOT = Path(__file__).resolve().parent.parent
INVALID = "simdev error: invalid device ordinal"
MAPPED_FILES = Path("/proc/self/maps").read_text()
FORKED = "Cannot re-initialize simdev in forked subprocess"


# --- The current device -------------------------------------------------------------------------------------


def test_device_count_is_what_the_environment_says(run_python):
    code = "import torch; print(torch.simdev.device_count(), torch.accelerator.device_count())"
    assert run_python(code, SIMDEV_DEVICE_COUNT="5").stdout.split() == ["5", "5"]


def test_set_device_and_the_ways_to_name_one():
    for one in (1, "simdev:1", torch.device("simdev", 1)):
        simdev.set_device(one)
        assert simdev.current_device() == torch.accelerator.current_device_index() == 1
        simdev.set_device(0)
        assert simdev.current_device() == 0
    simdev.set_device(-1)
    assert simdev.current_device() == 0


def test_the_current_device_belongs_to_the_thread():
    simdev.set_device(1)
    seen = []
    thread = threading.Thread(target=lambda: seen.append(simdev.current_device()))
    thread.start()
    thread.join()
    assert seen == [0]
    assert simdev.current_device() == 1


@pytest.mark.parametrize("guard", [simdev.device, torch.accelerator.device_index])
def test_device_guards_restore_the_device_also_after_an_error(guard):
    with pytest.raises(KeyError), guard(1):
        assert simdev.current_device() == 1
        raise KeyError
    assert simdev.current_device() == 0


def test_device_guards_that_change_nothing():
    simdev.set_device(1)
    for guard in (simdev.device(-1), simdev.device(None), simdev.device("simdev")):
        with guard:
            assert simdev.current_device() == 1
    with simdev.device(torch.device("simdev", 0)):
        assert simdev.current_device() == 0
    assert simdev.current_device() == 1


def test_exchange_device():
    assert simdev._exchange_device(1) == 0
    assert simdev._exchange_device(-1) == -1
    assert simdev._maybe_exchange_device(-1) == -1
    assert simdev._maybe_exchange_device(0) == 1
    assert simdev.current_device() == 0


def test_device_of():
    there = torch.empty(2, device="simdev:1")
    for obj in (there, there.untyped_storage()):
        with simdev.device_of(obj):
            assert simdev.current_device() == 1
    with simdev.device_of(torch.empty(2)):
        assert simdev.current_device() == 0


def test_factories_fill_the_current_index_in():
    assert torch.empty(1, device="simdev").device == torch.device("simdev", 0)
    with simdev.device(1):
        assert torch.empty(1, device="simdev").device == torch.device("simdev", 1)
        assert torch.empty(1, device="simdev:0").device == torch.device("simdev", 0)


BAD_ORDINALS = {
    "set_device": lambda: simdev.set_device(7),
    "more than 8 bits": lambda: simdev.set_device(257),
    "far more": lambda: simdev.synchronize(10**12 + 7),
    "negative": lambda: simdev.synchronize(-7),
    "device guard": lambda: simdev.device(7).__enter__(),
    "synchronize": lambda: simdev.synchronize(7),
    "properties": lambda: simdev.get_device_properties(7),
    "peer": lambda: simdev.can_device_access_peer(0, 7),
    "current_stream": lambda: simdev.current_stream(7),
    "Stream": lambda: simdev.Stream(7),
    "torch.Stream": lambda: torch.Stream(device="simdev:7"),
    "rng state": lambda: simdev.get_rng_state(7),
    "Generator": lambda: torch.Generator(device="simdev:7"),
    "accelerator": lambda: torch.accelerator.set_device_index(7),
    "accelerator stream": lambda: torch.accelerator.current_stream(7),
    "factory": lambda: torch.empty(1, device="simdev:7"),
    "to": lambda: torch.empty(1).to("simdev:7"),
}


@pytest.mark.parametrize("call", BAD_ORDINALS)
def test_bad_ordinals_raise_what_cuda_raises(call):
    with pytest.raises(torch.AcceleratorError, match=INVALID) as caught:
        BAD_ORDINALS[call]()
    assert isinstance(caught.value, RuntimeError)
    assert re.search(r"device index -?[0-9]*7 was given, but there are 2 simdev devices", str(caught.value))
    assert simdev.current_device() == 0


@pytest.mark.parametrize("call", [simdev.set_device, simdev.synchronize, simdev.current_stream])
def test_devices_of_another_type_are_refused(call):
    with pytest.raises(ValueError, match="Expected a simdev device"):
        call("cpu")


def test_set_device_wants_an_index():
    with pytest.raises(ValueError, match="specified index"):
        simdev.set_device("simdev")


# --- What a device is ---------------------------------------------------------------------------------------


def test_properties():
    for index in range(simdev.device_count()):
        properties = simdev.get_device_properties(index)
        assert properties.name == simdev.get_device_name(index) != ""
        assert (properties.major, properties.minor) == simdev.get_device_capability(index)
        assert properties.driver == simdev.driver()
        assert properties.multi_processor_count >= 1
        assert properties.total_memory > 2**20
        assert repr(properties.total_memory // 2**20) in repr(properties)
    first, second = (simdev.get_device_properties(index) for index in (0, 1))
    assert first.uuid != second.uuid
    assert simdev.get_device_properties().uuid == first.uuid


def test_uuids_and_names_are_stable_across_processes(run_python):
    code = "import torch; print(torch.simdev.get_device_properties(1).uuid)"
    assert run_python(code).stdout.strip() == simdev.get_device_properties(1).uuid


def test_peer_access():
    assert isinstance(simdev.can_device_access_peer(0, 1), bool)
    assert not simdev.can_device_access_peer(0, 0)


def test_accelerator_api():
    assert torch.accelerator.is_available()
    assert torch.accelerator.current_accelerator() == torch.device("simdev")
    assert torch.accelerator.device_count() == simdev.device_count()
    torch.accelerator.set_device_index(1)
    assert torch.accelerator.current_device_index() == simdev.current_device() == 1
    assert torch.accelerator.current_stream().device == torch.device("simdev", 1)
    torch.accelerator.synchronize()
    torch.accelerator.synchronize("simdev:0")


@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_every_supported_dtype_can_be_allocated_and_converted(dev):
    dtypes = torch.accelerator.get_device_capability()["supported_dtypes"]
    assert {torch.float32, torch.bfloat16, torch.int64, torch.complex64, torch.float8_e4m3fn} <= dtypes
    assert torch.quint8 not in dtypes
    for dtype in dtypes:
        ones = torch.ones(4).to(dtype)
        assert torch.equal(ones.to(dev).cpu().to(torch.complex64), ones.to(torch.complex64)), dtype
        assert torch.equal(torch.ones(4, device=dev).to(dtype).cpu().to(torch.complex64).real, torch.ones(4))


# --- First use and fork -------------------------------------------------------------------------------------


def test_asking_initialises_nothing(run_python):
    run_python("""
import torch
simdev = torch.simdev
simdev.is_available(), simdev.device_count(), simdev.current_device(), torch.accelerator.is_available()
torch.manual_seed(1), simdev.manual_seed_all(2), simdev.manual_seed(3), simdev.get_rng_state()
simdev.default_generators, simdev.current_stream(), simdev.is_bf16_supported(), torch.ones(1).is_pinned()
with simdev.device(1), simdev.stream(None), torch.random.fork_rng(devices=[0], device_type="simdev"):
    pass
torch.device("simdev"), simdev.Event(enable_timing=True).query(), simdev.Stream.priority_range()
(torch.ones(2, 2, requires_grad=True) * 2).sum().backward()
assert not simdev.is_initialized() and not simdev._initialized
simdev.init()
assert simdev.is_initialized() and simdev._initialized
""")


def test_only_used_devices_have_a_context(run_python):
    """Autograd asks this of every device before it takes its stream."""
    run_python("""
import torch
from torch_simdev import _C
torch.simdev.init()
assert not _C._is_device_used(0) and not _C._is_device_used(1)
torch.empty(1, device="simdev:1")
assert not _C._is_device_used(0) and _C._is_device_used(1) and not _C._is_device_used(-1)
""")


FORK = """
import os, signal, sys, torch
simdev = torch.simdev
def fork(work):
    pid = os.fork()
    if pid == 0:
        signal.alarm(30)  # a hang ends the child
        try:
            work()
        except BaseException as error:
            print(type(error).__name__, error, sep=": ", flush=True)
            os._exit(3)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""


def test_fork_before_initialisation_works(run_python):
    run_python(f"""{FORK}
assert simdev.device_count() == 2

def work():
    assert torch.ones(3, device="simdev").sum().item() == 3

assert fork(work) == fork(work) == 0
assert torch.ones(4, device="simdev").sum().item() == 4
""")


USES_AFTER_FORK = """
init factory operator to_host to_device new_stream old_stream record synchronize pin accelerator in_a_thread
""".split()


@pytest.fixture(scope="module")
def forked() -> dict[str, tuple[int, str]]:
    """Exit status and output of each way to use the device in a child of a process that has used it."""
    code = f"""{FORK}
import threading
from pathlib import Path
x = torch.ones(3, device="simdev")
stream, event = simdev.Stream(), simdev.Event()
event.record(stream)

def in_a_thread():
    caught = []
    def work():
        try:
            torch.ones(1, device="simdev").item()
        except RuntimeError as error:
            caught.append(error)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    raise caught[0]

uses = dict(
    init=simdev.init,
    factory=lambda: torch.empty(1, device="simdev"),
    operator=lambda: x + x,
    to_host=lambda: x.cpu(),
    to_device=lambda: torch.ones(1).to("simdev"),
    new_stream=simdev.Stream,
    old_stream=stream.synchronize,
    record=event.record,
    synchronize=simdev.synchronize,
    pin=lambda: torch.ones(1).pin_memory(),
    accelerator=torch.accelerator.synchronize,
    in_a_thread=in_a_thread,
)
for name, use in uses.items():
    print("#", name, flush=True)
    print(fork(use), flush=True)
assert x.sum().item() == 3
"""
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=True
    )
    results = {}
    for part in run.stdout.split("# ")[1:]:
        name, *output, status = part.strip().splitlines()
        results[name] = (int(status), "\n".join(output))
    return results


@pytest.mark.parametrize("use", USES_AFTER_FORK)
def test_use_after_fork_says_so_and_never_hangs(forked, use):
    status, output = forked[use]
    assert status == 3, output
    assert output.startswith("RuntimeError: " + FORKED)
    assert "'spawn' start method" in output


@pytest.mark.skipif("libgomp" not in MAPPED_FILES, reason="PyTorch's OpenMP is not GCC's")
def test_threads_that_sleep_have_no_openmp_team(run_python):
    """Members of idle teams would make libgomp put those of busy ones to sleep, see csrc/driver/openmp_team.h."""
    result = run_python(
        """
import time
from collections import Counter
from pathlib import Path
import torch

def threads(name):  # a member of a team has its master's name
    return Counter(file.read_text().strip() for file in Path("/proc/self/task").glob("*/comm"))[name]

def when(condition):
    end = time.monotonic() + 30
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)

host = Path("/proc/self/comm").read_text().strip()
alone = threads(host)
a = torch.randn(600, 600).exp()
print(threads(host) - alone)
x = a.to("simdev")
for _ in range(100):
    x = (x @ x).softmax(1)
torch.simdev.synchronize()
print(threads(host) - alone)
when(lambda: threads("sim0:stream") == 1)
print(threads("sim0:stream"))
expected = a
for _ in range(100):
    expected = (expected @ expected).softmax(1)
torch.testing.assert_close(x.cpu(), expected)  # with new teams
""",
        OMP_NUM_THREADS="3",
        SIMDEV_NUM_THREADS="3",
        SIMDEV_DRIVER="simulator",
    )
    in_host, after_waiting, worker = map(int, result.stdout.split())
    assert in_host >= 1 and after_waiting == 0
    assert worker == 1


@pytest.mark.skipif("libgomp" not in MAPPED_FILES, reason="PyTorch's OpenMP is not GCC's")
@pytest.mark.skipif(not Path("/proc/thread-self/schedstat").exists(), reason="the kernel does not count")
def test_members_of_teams_sleep_while_threads_queue_for_processors(run_python):
    """See csrc/driver/openmp_crowd.h: a further team tells libgomp that the machine is full."""
    result = run_python(
        """
import os, subprocess, sys, time
from pathlib import Path
import torch

def crowd():
    return sum(file.read_text().strip() == "simdev:crowd" for file in Path("/proc/self/task").glob("*/comm"))

def work_until(condition, seconds=60):
    x = torch.randn(700, 700, device="simdev")
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        for _ in range(20):
            x = (x @ x).softmax(1)
        torch.simdev.synchronize()
    return condition()

processors = len(os.sched_getaffinity(0))
loop = "import time\\nend = time.monotonic() + 100\\nwhile time.monotonic() < end: pass"
busy = [subprocess.Popen([sys.executable, "-c", loop]) for _ in range(3 * processors)]
try:
    print(work_until(lambda: crowd() > processors))
finally:
    for process in busy:
        process.kill()
        process.wait()
print(crowd())
""",
        OMP_NUM_THREADS="2",
        SIMDEV_NUM_THREADS="2",
        SIMDEV_DRIVER="simulator",
    )
    became_crowded, members = result.stdout.split()
    assert became_crowded == "True" and int(members) > 1


def test_a_forked_child_may_count_seed_and_free(run_python):
    run_python(f"""{FORK}
x, y = torch.ones(3, device="simdev"), torch.ones(3, device="simdev")
stream, event = simdev.Stream(), simdev.Event()
y.record_stream(stream)
event.record(stream)

def work():
    global x, y, event, stream
    assert simdev._is_in_bad_fork() and not simdev.is_initialized()
    assert simdev.device_count() == 2 and simdev.is_available()
    torch.manual_seed(3)
    del x, y, event, stream
    weight = torch.ones(2, requires_grad=True)
    (weight * 2).sum().backward()
    assert weight.grad.sum() == 4

assert fork(work) == 0
assert not simdev._is_in_bad_fork() and x.sum().item() == 3
""")


# --- The environment ----------------------------------------------------------------------------------------


def test_an_unknown_driver_counts_as_no_device_and_is_named_on_use(run_python):
    result = run_python(
        """
import torch
assert torch.simdev.device_count() == 0 and not torch.simdev.is_available()
torch.manual_seed(0)
torch.ones(1, device="simdev")
""",
        check=False,
        SIMDEV_DRIVER="warpdrive",
    )
    assert result.returncode == 1
    assert "Warning: simdev initialization" in result.stderr
    last = result.stderr.strip().splitlines()[-1]
    assert "RuntimeError" in last or "ValueError" in last
    assert "warpdrive" in last
    assert "simulator" in last


@pytest.mark.parametrize("count", ["0", "many"])
def test_no_device_says_why(run_python, count):
    code = """
import warnings
import torch
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    assert not torch.simdev.is_available() and torch.simdev.default_generators == ()
print(len(caught))
torch.manual_seed(0)
for use in (torch.simdev.init, torch.simdev.current_stream, lambda: torch.ones(1).to("simdev")):
    try:
        use()
    except RuntimeError as error:
        print(str(error).splitlines())
"""
    warned, *errors = run_python(code, SIMDEV_DEVICE_COUNT=count).stdout.strip().splitlines()
    assert len(errors) == 3
    if count == "0":
        assert warned == "0"
        assert all("No simdev device is available" in error for error in errors)
    else:
        assert int(warned) > 0
        assert all("SIMDEV_DEVICE_COUNT" in error and "many" in error for error in errors)


def test_a_malformed_variable_is_named_with_what_it_accepts(run_python):
    code = "import torch; torch.simdev.get_fallback_policy()"
    result = run_python(code, check=False, SIMDEV_FALLBACK="sometimes")
    last = result.stderr.strip().splitlines()[-1]
    assert last == "ValueError: SIMDEV_FALLBACK='sometimes' is malformed: expected one of allow|warn|error"


def test_the_table_of_variables_is_complete_and_well_formed():
    rows = _C._environment()
    names = [name for name, *_ in rows]
    assert len(set(names)) == len(names)
    for name, kind, default, values, doc in rows:
        assert name.startswith("SIMDEV_")
        assert doc.endswith(".")
        assert (kind == "choice") == bool(values)
        if kind == "choice":
            assert default in values.split("|")
        documented = (ROOT / "docs/environment.md").read_text()
        shown = f"`{default}`" if default else ""
        assert f"| `{name}` | {shown} |".replace("  ", " ") in documented


# --- Storages and pointers ----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 3, 4, 9, 300_000])
def test_resizing_a_storage_keeps_its_bytes(dev, size):
    tensor = torch.arange(4, dtype=torch.uint8, device=dev)
    storage = tensor.untyped_storage()
    storage.resize_(size)
    assert storage.nbytes() == size
    if size:
        kept = min(size, 4)
        view = torch.empty(0, dtype=torch.uint8, device=dev).set_(storage)
        assert view.tolist()[:kept] == [0, 1, 2, 3][:kept]
    assert storage.device == dev


def test_resizing_is_in_stream_order(dev):
    """The old bytes are copied after the kernel that writes them; their block is not reused before that."""
    stream = simdev.Stream()
    tensor = torch.zeros(1000, device=dev)
    simdev.synchronize()
    with stream:
        simdev._sleep(50)
        tensor.fill_(7)
        tensor.untyped_storage().resize_(8000)
    others = [torch.full((1000,), -1.0, device=dev) for _ in range(4)]
    assert not stream.query()
    stream.synchronize()
    assert tensor.eq(7).all().item()
    assert all(other.eq(-1).all().item() for other in others)


def test_resizing_leaves_the_current_device_alone():
    storage = torch.zeros(4, device="simdev:1").untyped_storage()
    storage.resize_(10_000)
    assert storage.device.index == 1
    assert simdev.current_device() == 0
    with pytest.raises(RuntimeError):
        storage.resize_(2**60)
    assert simdev.current_device() == 0
    assert storage.nbytes() == 10_000


def test_only_pinned_memory_counts_as_pinned(dev):
    pageable = torch.ones(8)
    pinned = pageable.pin_memory()
    assert pinned.is_pinned()
    assert pinned[3:].is_pinned()
    assert not pageable.is_pinned()
    assert not torch.ones(8, device=dev).is_pinned()


def test_importing_leaves_cpu_autograd_alone():
    weight = torch.ones(4, 4, requires_grad=True)
    (weight @ weight).sum().backward()
    assert weight.grad.sum().item() == 128
