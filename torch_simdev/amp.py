"""What torch.amp asks of a device.  The lists of operators and their precisions are in csrc/aten."""

from __future__ import annotations

import torch


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Returns the dtypes that `torch.autocast("simdev", dtype=...)` accepts; the first is its default."""
    return [torch.float16, torch.bfloat16]


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Returns True: every device computes in bfloat16."""
    return True
