"""What a graph costs, operator by operator: calls, floating-point operations, bytes.

A layer whose FLOPs per byte are few is bound by memory: there fusion pays.
"""

import torch

from torch_simdev.compile.tools import Statistics

model = torch.nn.Sequential(
    torch.nn.Linear(256, 1024), torch.nn.GELU(), torch.nn.LayerNorm(1024), torch.nn.Linear(1024, 10)
).to("simdev")
statistics = Statistics()
torch.compile(model, backend=statistics)(torch.randn(64, 256, device="simdev")).sum().backward()

print(statistics)
for graph in statistics.graphs:
    print(f"{graph.title}: {graph.flops / graph.bytes_moved:.1f} FLOPs per byte")
