"""A backend with a name.

By decorator it is known once its module is imported.  By an entry point of the group `torch_dynamo_backends` it is
known as soon as its package is installed, and imported when first asked for: ../example_backend is such a package.
"""

import torch
from torch._dynamo import list_backends, register_backend


@register_backend(name="reversed")
def reverse_additions(gm, example_inputs):
    """Swaps the arguments of each addition, which changes nothing; a place to start from."""
    for node in gm.graph.nodes:
        if node.name.startswith("add") and len(node.args) == 2:
            node.args = node.args[::-1]
    gm.recompile()
    return gm.forward


x = torch.randn(4, device="simdev")
print(torch.compile(lambda x: x + 2 * x, backend="reversed")(x).cpu() - 3 * x.cpu())
print("simdev" in list_backends(), "reversed" in list_backends())
