"""Another compiler in Inductor's place: AOTAutograd's graphs, handed over whole.

First TorchScript.  Then one made here in a few lines: it turns a graph of pointwise operators into one numpy function
that computes on the host.  It refuses what it does not know, so a chain lets another backend go on.
"""

import numpy as np
import torch

from torch_simdev.compile.tools import compose, hand_over, torchscript

aten = torch.ops.aten
NUMPY = {
    aten.sin.default: np.sin,
    aten.cos.default: np.cos,
    aten.tanh.default: np.tanh,
    aten.mul.Tensor: np.multiply,
    aten.add.Tensor: np.add,
}


def to_numpy(gm, example_inputs):
    calls = [node for node in gm.graph.nodes if node.op == "call_function"]
    unknown = {str(node.target) for node in calls if node.target not in NUMPY or node.kwargs}
    if unknown:
        raise NotImplementedError(f"not in numpy's table: {', '.join(sorted(unknown))}")
    for node in calls:
        node.target = NUMPY[node.target]
    gm.recompile()
    device = example_inputs[0].device

    def run(*inputs):
        results = gm.forward(*(value.cpu().numpy() for value in inputs))
        return tuple(torch.from_numpy(result).to(device) for result in results)

    return run


def known(x):
    return torch.sin(x) * torch.cos(x) + torch.tanh(x)


def unknown(x):
    return torch.softmax(known(x), 0)


x = torch.randn(5, device="simdev")
torch.testing.assert_close(torch.compile(known, backend=hand_over(torchscript))(x), known(x))
print("TorchScript agrees with eager")

chain = compose(hand_over(to_numpy), "aot_eager")
for function in (known, unknown):
    torch.testing.assert_close(torch.compile(function, backend=chain)(x), function(x))
    print(f"{function.__name__}: the chain agrees with eager")
