"""Which operators did not run on the device: counting them, and what to do when one comes up.

The operator layer (csrc/aten) counts; SIMDEV_FALLBACK sets the policy that a process starts with.
"""

from __future__ import annotations

from . import _C

_POLICIES = ("allow", "warn", "error")


def fallbacks() -> dict[str, int]:
    """Returns how often each operator ran on the host since `reset_fallbacks()`, by its full name."""
    return _C._fallback_counts()


def reset_fallbacks() -> None:
    """Forgets all counts."""
    _C._reset_fallback_counts()


class fallback_policy:
    """Sets what an operator without a device implementation does, in all threads.

    Takes effect at once, as `torch.set_grad_enabled` does; used in a `with` statement it restores the
    previous policy at the end.

    Arguments:
        policy: "allow" runs it on the host, "warn" warns as well, "error" raises NotImplementedError.

    Raises ValueError for another word.
    """

    def __init__(self, policy: str):
        if policy not in _POLICIES:
            raise ValueError(f"Expected a fallback policy out of {', '.join(_POLICIES)}, but got: {policy!r}")
        self._previous = _C._exchange_fallback_policy(_POLICIES.index(policy))

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exc_info: object) -> None:
        _C._exchange_fallback_policy(self._previous)


def get_fallback_policy() -> str:
    """Returns the policy in force: "allow", "warn" or "error"."""
    current = _C._exchange_fallback_policy(0)
    _C._exchange_fallback_policy(current)
    return _POLICIES[current]
