"""Rewrites of graphs that save arithmetic and that Inductor does not make.

They work on the ATen graph that Inductor is about to compile, forward or backward.
"""

from __future__ import annotations

import torch

aten = torch.ops.aten


def halve_trigonometry(gm: torch.fx.GraphModule) -> int:
    """Replaces sin(x) * cos(x) by sin(2 * x) / 2, where neither factor is used otherwise.

    It is the same function with half the work, which is most of a fused kernel's time on a GPU, and the result is
    nearer to the exact one: doubling and halving are exact, and there is one rounding where there were three.

    Returns the number of products replaced.
    """
    replaced = 0
    for node in list(gm.graph.nodes):
        if node.op != "call_function" or node.target is not aten.mul.Tensor or len(node.args) != 2:
            continue
        factors = [factor for factor in node.args if isinstance(factor, torch.fx.Node)]
        if {factor.target for factor in factors} != {aten.sin.default, aten.cos.default}:
            continue
        argument = factors[0].args[0]
        value = node.meta.get("val")
        if argument is not factors[1].args[0] or any(len(factor.users) != 1 for factor in factors):
            continue
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            continue
        with gm.graph.inserting_before(node):
            result = argument
            for target, arguments in (
                (aten.mul.Tensor, (2,)),
                (aten.sin.default, ()),
                (aten.mul.Tensor, (0.5,)),
            ):
                result = gm.graph.call_function(target, (result, *arguments))
                result.meta.update(node.meta)
        node.replace_all_uses_with(result)
        for dead in (node, *factors):
            gm.graph.erase_node(dead)
        replaced += 1
    if replaced:
        gm.recompile()
    return replaced
