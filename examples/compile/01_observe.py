"""The graphs of a small training step, as they pass: what Dynamo captured, and what AOTAutograd made of it.

Dynamo's graph calls the functions of the program.  AOTAutograd's graphs call ATen operators, and there are two: the
forward one returns, beside the result, what the backward one will need.
"""

import torch

from torch_simdev.compile.tools import Observer


def loss(x, weight):
    return torch.nn.functional.gelu(x @ weight).square().mean()


x = torch.randn(8, 16, device="simdev")
weight = torch.randn(16, 4, device="simdev", requires_grad=True)

observer = Observer("aot_eager")  # with "simdev", the ATen graphs are those that Inductor lowers
torch.compile(loss, backend=observer)(x, weight).backward()

print([graph.title for graph in observer.graphs])
