"""flex_attention compiled: Inductor's C++ template for inference, PyTorch's formulas where gradients are needed.

The template computes the attention alone.  Training needs the logsumexp of each row and a backward as well, for which
Inductor has kernels for Triton only.  There the operator is replaced, before it is lowered, by the formulas that define
it in eager execution.  They are fused like other operators, and like there they hold the scores of all pairs.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch._higher_order_ops.flex_attention import sdpa_dense, sdpa_dense_backward
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.virtualized import V
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_flatten, tree_unflatten

from .._utils import DEVICE_TYPE
from .scheduling import codegen_settings


def lower_inference(lower_cpu: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Lowers an attention whose statistics nobody asks for: to Inductor's C++ template."""
    position = 6  # of kernel_options
    options = {**args[position], "OUTPUT_LOGSUMEXP": False}
    # What score_mod does to an element is generated here already.
    with V.graph.set_current_device(args[0].get_device()), codegen_settings():
        return lower_cpu(*args[:position], options, *args[position + 1 :], **kwargs)


def expand_training(gm: GraphModule) -> None:
    """Replaces what `lower_inference` cannot compute, forward and backward, by its formulas."""
    attention, backward = (
        torch.ops.higher_order.flex_attention,
        torch.ops.higher_order.flex_attention_backward,
    )
    for node in gm.graph.find_nodes(op="call_function", target=attention):
        if _on_simdev(node) and any(_index(user) > 0 and user.users for user in node.users):
            _replace(gm, node, sdpa_dense)
    for node in gm.graph.find_nodes(op="call_function", target=backward):
        if _on_simdev(node):
            captured, gradients = node.args[12], node.meta["val"][3]  # of score_mod
            _replace(gm, node, sdpa_dense_backward, [c for c, g in zip(captured, gradients) if g is not None])


def _on_simdev(node: Node) -> bool:
    return node.args[0].meta["val"].device.type == DEVICE_TYPE


def _index(user: Node) -> int:
    """Returns which of an operator's results a node takes."""
    assert user.target is operator.getitem
    return user.args[1]


def _replace(
    gm: GraphModule, node: Node, formula: Callable[..., Any], differentiated: Collection[Node] = ()
) -> None:
    """Puts the operators of a formula into the graph, in place of a node with the same arguments and results.

    The formula asks whether a tensor requires a gradient, which only those that are differentiated do.
    """
    leaves, structure = tree_flatten((node.args, node.kwargs))
    is_input = [isinstance(leaf, Node) and leaf.op != "get_attr" for leaf in leaves]
    inputs = [leaf for leaf, takes in zip(leaves, is_input) if takes]

    def function(*tensors: Any) -> Any:
        remaining = iter(tensors)
        filled = [
            next(remaining) if takes else getattr(gm, leaf.target) if isinstance(leaf, Node) else leaf
            for leaf, takes in zip(leaves, is_input)
        ]
        args, kwargs = tree_unflatten(filled, structure)
        return formula(*args, **kwargs)

    values = [leaf.meta["val"] for leaf in inputs]
    asked = [v.detach().requires_grad_() if leaf in differentiated else v for leaf, v in zip(inputs, values)]
    with detect_fake_mode(values), torch.no_grad():
        traced = make_fx(function)(*asked)
        traced = make_fx(torch.func.functionalize(traced), select_decomp_table())(*values)

    copies: dict[Node, Any] = dict(zip(traced.graph.find_nodes(op="placeholder"), inputs))
    with gm.graph.inserting_before(node):
        for each in traced.graph.nodes:
            if each.op == "get_attr":
                name = f"{node.name}{each.target}"
                setattr(gm, name, getattr(traced, each.target))
                copies[each] = gm.graph.create_node("get_attr", name)
                copies[each].meta.update(each.meta)
            elif each.op == "call_function":
                copies[each] = gm.graph.node_copy(each, copies.__getitem__)
    [results] = traced.graph.output_node().args
    _take_from(node, torch.fx.map_arg(results, copies.__getitem__))
    gm.recompile()


def _take_from(node: Node, results: Any) -> None:
    """Gives the users of a node that returns a tuple its elements, and removes it."""
    for user in list(node.users):
        result = results[_index(user)]
        if isinstance(result, Node):
            user.replace_all_uses_with(result)
            user.graph.erase_node(user)
        else:
            _take_from(user, result)
    node.graph.erase_node(node)
