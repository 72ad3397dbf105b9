"""The simdev accelerator for PyTorch: the module `torch.simdev`, with names and signatures of `torch.cuda`.

`import torch` loads it by entry point (TORCH_DEVICE_BACKEND_AUTOLOAD=0 turns that off; `import torch_simdev`
loads it anywhere).  Lives here: loading and registration.  What the functions do is in the modules they come
from.  Importing starts no device, no thread, and neither Dynamo nor Inductor.
"""

# ruff: noqa: E402, F401 (imports follow _autoload for the reason given there; most are re-exports)
from __future__ import annotations


def _autoload() -> None:
    """Entry point of the group `torch.backends`, called at the end of `import torch`.

    Importing this module does all the work.  It is defined before the import of torch below because torch
    calls it while this module is half-imported when `import torch_simdev` comes first.
    """


import torch

from . import compat

compat.check_torch()

from . import _C, _utils, amp, compile, graphs, memory, random, streams
from ._utils import _get_device_index
from .amp import get_amp_supported_dtype, is_bf16_supported
from .backing import from_backing, to_backing
from .devices import (
    _exchange_device,
    _is_in_bad_fork,
    _lazy_call,
    _lazy_init,
    _maybe_exchange_device,
    can_device_access_peer,
    current_device,
    device,
    device_count,
    device_of,
    driver,
    get_device_capability,
    get_device_name,
    get_device_properties,
    init,
    is_available,
    is_initialized,
    set_device,
    synchronize,
)
from .fallback import fallback_policy, fallbacks, get_fallback_policy, reset_fallbacks
from .graphs import Graph, graph, graph_pool_handle, is_current_stream_capturing, make_graphed_callables
from .memory import *  # noqa: F403
from .random import (
    _get_rng_state_offset,
    _set_rng_state_offset,
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_rng_state,
    set_rng_state_all,
)
from .streams import (
    Event,
    ExternalStream,
    Stream,
    StreamContext,
    _set_stream_by_id,
    _sleep,
    current_stream,
    default_stream,
    get_stream_from_external,
    set_stream,
    stream,
)

try:
    from ._build_info import VERSION as __version__
except ImportError:
    __version__ = "unknown"


def __getattr__(name: str) -> object:
    # Read anew at each access: both change while the process runs.
    if name == "_initialized":
        return is_initialized()
    if name == "default_generators":
        return random.default_generators()
    if name in compile.INDUCTOR_ATTRIBUTES:
        compile.register_with_inductor()
    raise AttributeError(f"module 'torch.simdev' has no attribute '{name}'")


compat.register(__name__)
_C._register_graphs()  # by the device's name
compile.install()
