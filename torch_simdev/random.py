"""Random number generators: one per device, each a seed and an offset (the format of CUDA's: 16 bytes).

Generators live on the host, so nothing here initialises a device.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from . import _C
from ._utils import _get_device_index


def default_generators() -> tuple[torch.Generator, ...]:
    """Returns the default generator of every device, as the attribute `torch.simdev.default_generators`."""
    return tuple(_C._default_generator(index) for index in range(_C._device_count()))


def _generator(device: Any) -> torch.Generator:
    return _C._default_generator(_get_device_index(device, optional=True))


def get_rng_state(device: Any = "simdev") -> torch.Tensor:
    """Returns the state of a device's default generator as a ByteTensor of 16 bytes on the CPU."""
    return _generator(device).get_state()


def get_rng_state_all() -> list[torch.Tensor]:
    """Returns the states of all devices' default generators."""
    return [get_rng_state(index) for index in range(_C._device_count())]


def set_rng_state(new_state: torch.Tensor, device: Any = "simdev") -> None:
    """Sets the state of a device's default generator.

    Raises TypeError unless `new_state` is a ByteTensor on the CPU, RuntimeError if it has the wrong size or
    holds an offset that is not a multiple of 4.
    """
    _generator(device).set_state(new_state)


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Sets the states of the devices' default generators, in order."""
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


def manual_seed(seed: int) -> None:
    """Seeds the current device's default generator.

    Raises ValueError for a seed outside [-2**63, 2**64).
    """
    _generator(None).manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seeds the default generators of all devices, used before or not; `torch.manual_seed` does this too.

    Raises ValueError for a seed outside [-2**63, 2**64).
    """
    # A generator of the CPU checks the range and maps negative seeds as PyTorch does.
    _C._manual_seed_all(torch.Generator().manual_seed(int(seed)).initial_seed())


def seed() -> None:
    """Seeds the current device's default generator with a random number."""
    _generator(None).seed()


def seed_all() -> None:
    """Seeds the default generators of all devices with one random number."""
    _C._manual_seed_all(torch.Generator().seed())


def initial_seed() -> int:
    """Returns the seed of the current device's default generator."""
    return _generator(None).initial_seed()


def _get_generator(device: torch.device) -> torch.Generator:
    """Returns the default generator of `device`, under the name that torch.cuda has."""
    return _generator(device)


def _get_rng_state_offset(device: Any = "simdev") -> int:
    """Returns the offset of a device's default generator (DTensor advances it by hand)."""
    return _generator(device).get_offset()


def _set_rng_state_offset(offset: int, device: Any = "simdev") -> None:
    """Sets the offset of a device's default generator; raises RuntimeError unless it is a multiple of 4."""
    _generator(device).set_offset(offset)
