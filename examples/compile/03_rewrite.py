"""A compiler pass in one line: each exact GELU becomes the approximation by tanh, before anything is lowered.

The proof runs the function uncompiled and rewritten, and holds the difference against a prediction.
"""

from functools import partial

import torch
from torch.nn import functional as F

from torch_simdev.compile.tools import Rewriter

fast_gelu = partial(F.gelu, approximate="tanh")
fast_gelu.__name__ = fast_gelu.__qualname__ = "fast_gelu"  # FX writes the name into the graph's code


def block(x):
    return F.gelu(x) * 2


def predicted(x):
    return fast_gelu(x) * 2


x = torch.randn(1000, device="simdev")
rewriter = Rewriter({F.gelu: fast_gelu})
proof = rewriter.prove(block, predicted, x)
print(proof)
print("largest change:", (proof.rewritten - proof.original).abs().max().item())

# The same at the level of ATen, where the node's example result is computed anew.
aten = torch.ops.aten
print(Rewriter({aten.sin.default: aten.cos.default}).prove(torch.sin, torch.cos, x))
