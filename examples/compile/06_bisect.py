"""Which station makes a result wrong?  One is broken on purpose: the lowering of tanh gives sigmoid."""

from unittest import mock

import torch
from torch._inductor import lowering

from torch_simdev.compile.tools import bisect

aten = torch.ops.aten


def function(x):
    return torch.tanh(x) + x


x = torch.randn(64, device="simdev")
with mock.patch.dict(lowering.lowerings, {aten.tanh.default: lowering.lowerings[aten.sigmoid.default]}):
    print(bisect(function, x))
