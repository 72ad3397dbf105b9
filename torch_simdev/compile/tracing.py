"""What Dynamo does with the functions of this package when it meets them in code that it compiles."""

from __future__ import annotations

from pathlib import Path

from torch._dynamo import trace_rules
from torch._dynamo.variables import ctx_manager
from torch._dynamo.variables import torch as functions

from .. import amp, devices
from .._utils import _get_device_index

# Answers that stay the same while a process runs: Dynamo evaluates these calls while it traces.
_CONSTANT = (
    amp.is_bf16_supported,
    devices.device_count,
    devices.driver,
    devices.get_device_capability,
    devices.get_device_name,
    devices.is_available,
)
# Answers that Dynamo evaluates while it traces, and asks for again before each call of what it compiled.
_GUARDED = (devices.current_device, devices.is_initialized)


def register() -> None:
    """Tells Dynamo to leave this package's functions alone, as it does with torch.cuda's, except where compiled code
    calls them.  Otherwise it compiles, say, `set_rng_state` when PyTorch calls that between two compiled parts."""
    for place in {Path(__file__).resolve().parent.parent, Path(devices.__file__).parent}:
        trace_rules.SKIP_DIRS.append(f"{place}/")
        trace_rules.get_mod_inlinelist().add(f"{place}/")
    trace_rules._recompile_re()
    for function in _CONSTANT:
        function._dynamo_marked_constant = True  # type: ignore[union-attr]
    for function in _GUARDED:
        name = f"{function.__module__}.{function.__name__}"
        trace_rules.manual_torch_name_rule_map[name] = functions.TorchInGraphFunctionVariable
    functions.constant_fold_functions_need_guards.update(dict.fromkeys(_GUARDED))
    functions.constant_fold_functions.update(dict.fromkeys(_GUARDED))
    if hasattr(ctx_manager, "register_device_context_manager"):  # torch 2.13
        _trace_device_context()


def _trace_device_context() -> None:
    class SimdevDeviceVariable(ctx_manager.GenericDeviceVariable):
        """Represents torch.simdev.device."""

        _exchange_fn = staticmethod(devices._exchange_device)
        _maybe_exchange_fn = staticmethod(devices._maybe_exchange_device)
        _get_device_index_fn = staticmethod(_get_device_index)

        def module_name(self) -> str:
            return "torch.simdev"

        def python_type(self) -> type:
            return devices.device

    ctx_manager.register_device_context_manager(devices.device, SimdevDeviceVariable)
