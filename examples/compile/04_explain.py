"""Everything that torch.compile made of a function: graphs, the break between them, guards, and kernels."""

import torch

from torch_simdev.compile.tools import explain


def function(x, scale):
    y = torch.nn.functional.layer_norm(torch.nn.functional.gelu(x), x.shape[-1:])
    if scale.item() > 1:  # a number from the device decides: Dynamo has to break the graph here
        y = y * scale
    return torch.cumsum(y, 0).softmax(-1)


x = torch.randn(256, 512, device="simdev")
explanation = explain(function)(x, torch.tensor(2.0, device="simdev"))
print(explanation)

kernel = explanation.kernels[0]
print(
    f"\nThe first kernel moves 1/{kernel.eager_bytes / kernel.bytes_moved:.1f} of eager's bytes. Its source:\n"
)
print(kernel.source)
