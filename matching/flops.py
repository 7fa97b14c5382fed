"""FLOPs of a module, counted from its graph: what torch.export traces, not a formula of a paper.

Two counts, given apart because papers count the first alone or both:

- products: matrix products and convolutions, two operations a multiply-add;
- elementwise: everything else that computes, one operation an element of the largest tensor that
  goes in or comes out. A softmax, a LayerNorm, a sum or a sort is one such operation, so this is a
  lower bound on the arithmetic. An operation that is not named here counts so, too.

What only moves, shapes or makes numbers (views, concatenation, indexing, padding) is free. An
operation that may hide a matrix product and is not known here is an error, never zero.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Node

_FREE = frozenset(
    "_to_copy alias arange as_strided cat clone constant_pad_nd copy detach embedding empty "
    "empty_like expand flip full full_like gather index index_select lift_fresh lift_fresh_copy "
    "narrow new_empty new_full new_ones new_zeros ones ones_like permute repeat reshape roll "
    "scalar_tensor select slice split split_with_sizes squeeze stack t transpose unbind unfold "
    "unsqueeze view zeros zeros_like".split()
)
# Parts of names of operations that decomposition should have taken apart into products.
_HIDDEN_PRODUCTS = (
    *("attention", "attn", "cdist", "conv", "corr", "cov", "dot", "einsum"),
    *("gru", "linalg", "linear", "lstm", "matmul", "mm", "mv", "rnn", "solve"),
)


def count_flops(
    module: nn.Module,
    example: tuple[Any, ...],
    method: str = "forward",
) -> dict[str, int]:
    """Counts one call of module.method(*example), at the sizes of the example.

    The module is counted as it stands: eval() leaves dropout out.

    Returns:
        "products", "elementwise" and their sum, "total".
    """
    called = module if method == "forward" else _Method(module, method)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch.export, about the weights of recurrent layers
        graph = torch.export.export(called, example).run_decompositions().graph
    products = elementwise = 0
    for node in graph.nodes:
        if node.op == "call_function" and _tensors(node.meta.get("val")):
            of_node = _count(node)
            products, elementwise = products + of_node[0], elementwise + of_node[1]
    return {"products": products, "elementwise": elementwise, "total": products + elementwise}


class _Method(nn.Module):
    """A method of a module as a forward, which is what torch.export takes."""

    def __init__(self, module: nn.Module, method: str) -> None:
        super().__init__()
        self.module, self.method = module, method

    def forward(self, *inputs: Any) -> Any:
        return getattr(self.module, self.method)(*inputs)


def _count(node: Node) -> tuple[int, int]:
    """Products and elementwise operations of one node that has a tensor as result."""
    if getattr(node.target, "__module__", None) == "_operator":  # getitem of several results
        return 0, 0
    namespace, _, name = getattr(node.target, "_name", str(node.target)).partition("::")
    name = name.partition(".")[0]
    if namespace == "aten" and name in _FREE:
        return 0, 0
    if namespace == "aten" and name in ("mm", "bmm", "addmm", "baddbmm", "convolution"):
        return _count_products(node, name)
    if namespace != "aten" or any(part in name for part in _HIDDEN_PRODUCTS):
        raise ValueError(
            f"the graph has the operation {node.target}, which may hide products that cannot be "
            "counted; expected it to be made of mm, bmm, addmm, baddbmm, convolution and "
            "elementwise operations: write it with these, or add a rule to matching.flops"
        )
    return 0, _largest(node)


def _count_products(node: Node, name: str) -> tuple[int, int]:
    inputs = [argument.meta["val"] for argument in node.args if isinstance(argument, Node)]
    output = node.meta["val"]
    if name == "convolution":
        if node.args[6]:
            raise ValueError("the graph has a transposed convolution: matching.flops has no rule")
        depth = math.prod(inputs[1].shape[1:])  # channels of a group times the kernel
        added = output.numel() if node.args[2] is not None else 0
    else:
        added = output.numel() if name in ("addmm", "baddbmm") else 0
        depth = inputs[-1].shape[-2]  # (..., M, K) by (..., K, N)
    return 2 * output.numel() * depth, added


def _largest(node: Node) -> int:
    tensors = _tensors(node.meta["val"])
    for argument in node.all_input_nodes:
        tensors += _tensors(argument.meta.get("val"))
    return max(tensor.numel() for tensor in tensors)


def _tensors(value: Any) -> list[Tensor]:
    values = value if isinstance(value, (list, tuple)) else [value]
    return [v for v in values if isinstance(v, Tensor)]
