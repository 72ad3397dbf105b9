"""What Dynamo does with the functions of this package when it meets them in code that it compiles."""

from __future__ import annotations

from pathlib import Path

from torch._dynamo import trace_rules

from .. import amp, devices

# Answers that stay the same while a process runs: Dynamo evaluates these calls while it traces.
_CONSTANT = (
    amp.is_bf16_supported,
    devices.device_count,
    devices.driver,
    devices.get_device_capability,
    devices.get_device_name,
    devices.is_available,
)


def register() -> None:
    """Tells Dynamo to leave this package's functions alone, as it does with torch.cuda's, except where compiled code
    calls them.  Otherwise it compiles, say, `set_rng_state` when PyTorch calls that between two compiled parts."""
    for place in {Path(__file__).resolve().parent.parent, Path(devices.__file__).parent}:
        trace_rules.SKIP_DIRS.append(f"{place}/")
        trace_rules.get_mod_inlinelist().add(f"{place}/")
    trace_rules._recompile_re()
    for function in _CONSTANT:
        function._dynamo_marked_constant = True  # type: ignore[union-attr]
