"""Options of the simdev code generator: `torch.compile(..., backend="simdev", options={...})`, or set here.

A configuration module as Inductor's own: `config.patch(fast_math=True)` works, and the values are part of
the keys
under which Inductor caches compiled graphs.  Options of Inductor itself stay in `torch._inductor.config`.
"""

import sys

from torch.utils._config_module import install_config_module

# Kernel math that trades the last bits for speed: results may differ from eager's by a few units in the
# last place
# more than they otherwise do.
fast_math: bool = False

install_config_module(sys.modules[__name__])
