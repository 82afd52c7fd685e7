"""Operators that take a tensor apart along the axis of which tensor-parallel ranks have parts.

Ranks can then have a part of each piece, as of fused queries, keys and values. They cannot if the
same tensor is read as it is, too: if ranks have some heads of it, one head is on one rank alone.
"""

from __future__ import annotations

from typing import Any

from byteprophet.simulate.models.traced_axes import VIEWS, operator_name

TAKES_APART = frozenset(
    ["chunk", "glu", "narrow", "select", "slice", "split", "split_with_sizes", "unbind"]
)


def is_read_whole(node: Any) -> bool:
    """Whether any operator reads the tensor of an FX node as it is, also by a view of it."""
    while _shows_all(node):
        node = node.args[0]
    return _has_whole_reader(node)


def _has_whole_reader(node: Any) -> bool:
    for user in node.users:
        if operator_name(user) in TAKES_APART and not _shows_all(user):
            continue
        if not _shows_all(user) or _has_whole_reader(user):
            return True
    return False


def _shows_all(node: Any) -> bool:
    """Whether an FX node is a view of all elements of its first input."""
    import torch

    if node.op != "call_function" or operator_name(node) not in VIEWS:
        return False
    shown, viewed = node.meta.get("val"), node.args[0].meta.get("val")
    tensors = isinstance(shown, torch.Tensor) and isinstance(viewed, torch.Tensor)
    return tensors and shown.numel() == viewed.numel()
