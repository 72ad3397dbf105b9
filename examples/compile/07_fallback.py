"""A chain of backends: for each graph the first that compiles it is taken, and the failures are logged."""

import logging

import torch

from torch_simdev.compile.tools import compose

logging.basicConfig(format="%(levelname)s %(message)s")


def only_small(gm, example_inputs):
    """A backend with limits, as new ones are: it takes graphs of at most two operators."""
    calls = [node for node in gm.graph.nodes if node.op.startswith("call_")]
    if len(calls) > 2:
        raise NotImplementedError(f"{len(calls)} operators are too many")
    return gm.forward


chain = compose(only_small, "aot_eager", "eager")
x = torch.randn(8, device="simdev")
print(torch.compile(lambda x: x.sin() + 1, backend=chain)(x).cpu())
print(torch.compile(lambda x: x.sin().cos().tanh() + 1, backend=chain)(x).cpu())

# The simdev backend takes a chain as an option; it is tried where simdev's own compiler gives up.
compiled = torch.compile(
    lambda x: x.sin() + 1, backend="simdev", options={"fallback": ["aot_eager", "eager"]}
)
print(compiled(x).cpu())
