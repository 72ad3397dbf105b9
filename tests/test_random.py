"""Random numbers: CUDA's generator contract, seeding, and operators as pure functions of (seed, offset)."""

from __future__ import annotations

import pickle
import struct
import threading

import pytest
import torch

import torch_simdev as simdev

DEFAULT_SEED = 67280421310721  # the seed of every PyTorch generator before it is seeded


def parts(state: torch.Tensor) -> tuple[int, int]:
    return struct.unpack("=QQ", bytes(state.tolist()))


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator(device="simdev")


# --- State --------------------------------------------------------------------------------------------------


def test_the_state_is_seed_and_offset_in_16_bytes(generator):
    assert parts(generator.get_state()) == (DEFAULT_SEED, 0)
    generator.manual_seed(11)
    generator.set_offset(40)
    state = generator.get_state()
    assert (state.dtype, state.device.type, state.shape) == (torch.uint8, "cpu", (16,))
    assert parts(state) == (11, 40)
    assert generator.initial_seed() == 11
    assert generator.get_offset() == 40
    generator.manual_seed(12)
    assert parts(generator.get_state()) == (12, 0)


def test_offsets_are_multiples_of_four(generator):
    with pytest.raises(RuntimeError, match="multiple of 4"):
        generator.set_offset(6)
    with pytest.raises(RuntimeError, match="multiple of 4"):
        generator.set_state(torch.tensor(list(struct.pack("=QQ", 1, 3)), dtype=torch.uint8))
    assert parts(generator.get_state()) == (DEFAULT_SEED, 0)


def test_bad_states_are_refused_and_change_nothing(generator):
    with pytest.raises(RuntimeError, match="wrong size"):
        generator.set_state(torch.zeros(15, dtype=torch.uint8))
    with pytest.raises(RuntimeError, match="wrong size"):
        generator.set_state(torch.zeros(32, dtype=torch.uint8)[::2])
    with pytest.raises(TypeError, match="ByteTensor"):
        generator.set_state(torch.zeros(16))
    with pytest.raises(TypeError, match="ByteTensor"):
        generator.set_state(torch.zeros(16, dtype=torch.uint8, device="simdev"))
    assert parts(generator.get_state()) == (DEFAULT_SEED, 0)


def test_a_state_of_the_seed_alone_starts_at_offset_zero(generator):
    generator.set_offset(8)
    generator.set_state(torch.tensor(list(struct.pack("=Q", 5)), dtype=torch.uint8))
    assert parts(generator.get_state()) == (5, 0)


def test_devices():
    assert torch.Generator(device="simdev").device == torch.device("simdev", 0)
    assert torch.Generator(device="simdev:1").device == torch.device("simdev", 1)
    with simdev.device(1):
        assert torch.Generator(device="simdev").device == torch.device("simdev", 1)
    assert [generator.device.index for generator in simdev.default_generators] == [0, 1]


def test_clones_are_independent_and_graphsafe_states_are_shared(generator):
    generator.manual_seed(3)
    clone = generator.clone_state()
    clone.set_offset(4)
    assert generator.get_offset() == 0
    shared = torch.Generator(device="simdev")
    shared.graphsafe_set_state(generator.graphsafe_get_state())
    generator.set_offset(12)
    assert parts(shared.get_state()) == (3, 12)
    with pytest.raises(TypeError, match="simdev generator"):
        generator.graphsafe_set_state(torch.Generator())


def test_pickling(generator):
    generator.manual_seed(9)
    generator.set_offset(16)
    copy = pickle.loads(pickle.dumps(generator))
    assert copy.device == generator.device
    assert parts(copy.get_state()) == (9, 16)


def test_seed_is_random(generator):
    assert generator.seed() != generator.seed()
    assert generator.get_offset() == 0


# --- Default generators -------------------------------------------------------------------------------------


def test_seeding_the_current_device_only():
    simdev.manual_seed_all(1)
    with simdev.device(1):
        simdev.manual_seed(2)
        assert simdev.initial_seed() == 2
    assert [generator.initial_seed() for generator in simdev.default_generators] == [1, 2]
    simdev.seed()
    assert simdev.default_generators[0].initial_seed() != 1
    assert simdev.default_generators[1].initial_seed() == 2


def test_seeding_all_devices():
    torch.manual_seed(21)
    assert [generator.initial_seed() for generator in simdev.default_generators] == [21, 21]
    simdev.seed_all()
    first, second = (generator.initial_seed() for generator in simdev.default_generators)
    assert first == second != 21


@pytest.mark.parametrize("seed", [-1, -(2**63), 2**64 - 1])
def test_seeds_are_mapped_as_the_cpu_maps_them(seed):
    expected = torch.Generator().manual_seed(seed).initial_seed()
    for call in (simdev.manual_seed_all, simdev.manual_seed, torch.manual_seed):
        simdev.manual_seed_all(0)
        call(seed)
        assert simdev.initial_seed() == expected


@pytest.mark.parametrize("call", [simdev.manual_seed, simdev.manual_seed_all])
def test_seeds_out_of_range_are_refused(call):
    simdev.manual_seed_all(4)
    with pytest.raises((ValueError, RuntimeError), match="Overflow"):
        call(2**64)
    assert simdev.initial_seed() == 4


def test_a_seed_set_before_initialisation_is_remembered(run_python):
    code = """
import warnings; warnings.simplefilter("error")
import torch
torch.manual_seed({seed})
assert not torch.simdev.is_initialized()
print(torch.rand(3, device="simdev:1").tolist(), torch.simdev.default_generators[0].initial_seed())
"""
    first, again, other = (run_python(code.format(seed=seed)).stdout for seed in (5, 5, 6))
    assert first == again != other
    assert first.endswith(" 5\n")


def test_states_by_device():
    simdev.manual_seed_all(0)
    states = simdev.get_rng_state_all()
    assert [parts(state) for state in states] == [(0, 0), (0, 0)]
    simdev._set_rng_state_offset(20, "simdev:1")
    assert (simdev._get_rng_state_offset(), simdev._get_rng_state_offset(1)) == (0, 20)
    simdev.set_rng_state(simdev.get_rng_state(1), torch.device("simdev", 0))
    assert simdev._get_rng_state_offset() == 20
    simdev.set_rng_state_all(states)
    assert [parts(state) for state in simdev.get_rng_state_all()] == [(0, 0), (0, 0)]


def test_fork_rng_restores_exactly():
    torch.manual_seed(1)
    simdev._set_rng_state_offset(8, 1)
    before = simdev.get_rng_state_all()
    with torch.random.fork_rng(devices=[0, 1], device_type="simdev"):
        inside = torch.randn(4, device="simdev")
        simdev.seed_all()
    assert all(torch.equal(a, b) for a, b in zip(before, simdev.get_rng_state_all(), strict=True))
    assert torch.equal(inside.cpu(), torch.randn(4, device="simdev").cpu())


# --- Operators ----------------------------------------------------------------------------------------------

RANDOM = {
    "rand": lambda n, **kw: torch.rand(n, **kw),
    "randn": lambda n, **kw: torch.randn(n, **kw),
    "randint": lambda n, **kw: torch.randint(0, 1000, (n,), **kw),
    "randperm": lambda n, **kw: torch.randperm(n, **kw),
    "bernoulli": lambda n, generator=None, device=None: torch.bernoulli(
        torch.full((n,), 0.5, device=device), generator=generator
    ),
    "exponential_": lambda n, generator=None, device=None: torch.empty(n, device=device).exponential_(
        generator=generator
    ),
    "multinomial": lambda n, generator=None, device=None: torch.multinomial(
        torch.ones(n, device=device), n // 2, generator=generator
    ),
    "normal": lambda n, generator=None, device=None: torch.normal(
        torch.zeros(n, device=device), 1.0, generator=generator
    ),
}


@pytest.mark.parametrize("name", RANDOM)
def test_operators_are_pure_functions_of_the_state(name, generator):
    draw = lambda: RANDOM[name](64, device="simdev", generator=generator).cpu()
    generator.manual_seed(2)
    first = draw()
    offset = generator.get_offset()
    assert offset > 0
    assert offset % 4 == 0
    second = draw()
    assert not torch.equal(first, second)
    generator.set_offset(0)
    assert torch.equal(draw(), first)
    generator.set_offset(offset)
    assert torch.equal(draw(), second)


@pytest.mark.parametrize("name", RANDOM)
def test_operators_use_the_default_generator_of_their_device(name):
    simdev.manual_seed_all(8)
    untouched = simdev.get_rng_state(0)
    there = RANDOM[name](64, device="simdev:1").cpu()
    assert torch.equal(simdev.get_rng_state(0), untouched)
    assert simdev._get_rng_state_offset(1) > 0
    assert torch.equal(RANDOM[name](64, device="simdev:0").cpu(), there)


@pytest.mark.parametrize("name", RANDOM)
def test_operators_refuse_generators_of_another_device(name):
    with pytest.raises(RuntimeError, match="generator"):
        RANDOM[name](8, device="simdev", generator=torch.Generator())
    with pytest.raises(RuntimeError, match="generator"):
        RANDOM[name](8, device="simdev:0", generator=torch.Generator(device="simdev:1"))


def test_dropout_depends_on_the_seed_alone(dev):
    ones = torch.ones(1000, device=dev)
    torch.manual_seed(3)
    first = torch.nn.functional.dropout(ones, 0.5)
    torch.manual_seed(3)
    assert torch.equal(first, torch.nn.functional.dropout(ones, 0.5))
    assert 350 < first.count_nonzero().item() < 650


def test_threads_never_draw_the_same_numbers(dev, generator):
    draws = []

    def work():
        for _ in range(20):
            draws.append(torch.rand(8, device=dev, generator=generator))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rows = torch.stack(draws).cpu()
    assert len({tuple(row) for row in rows.tolist()}) == 80
