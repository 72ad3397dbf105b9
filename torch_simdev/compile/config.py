"""Options of the simdev code generator: `torch.compile(..., backend="simdev", options={...})`, or set here.

A configuration module as Inductor's own: `config.patch(fast_math=True)` works, and the values are part of the keys
under which Inductor caches compiled graphs.  Options of Inductor itself stay in `torch._inductor.config`.
"""

import sys

from torch.utils._config_module import install_config_module

# exp and sigmoid of float vectors to 20 units in the last place instead of 1, at three quarters of the time.
fast_math: bool = False

install_config_module(sys.modules[__name__])
