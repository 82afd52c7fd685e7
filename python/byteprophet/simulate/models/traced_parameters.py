"""How operators of an exported graph read a parameter: as a whole, or piece by piece.

``nn.MultiheadAttention`` has the projections of queries, keys and values in one parameter, of which
cross attention reads pieces. If pieces make up all of a parameter, each is one of its own here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, TypeAlias

from byteprophet.simulate.models.traced_axes import VIEWS, operator_name

_Region: TypeAlias = "tuple[int, int]"
"""The first element in memory, and the one after the last."""
LAYERS = {"linear": (0, 1), "matmul": (0, 1), "mm": (0, 1), "addmm": (1, 2)}
"""Of operators that may be linear layers, the places of activations and weights."""
_WEIGHT_AT = {"embedding": 0, **{name: weight for name, (_, weight) in LAYERS.items()}}
"""The place of a weight among the arguments of operators that can split it in the same way."""
_BIAS_AT = {"linear": 2, "addmm": 0}
"""The place of a bias, which is split as its layer's weight is."""
_TRANSPOSED = frozenset(["matmul", "mm", "addmm"])
"""Operators whose columns are the first axis of a weight only if they read it transposed."""


def is_cut(parameter: Any) -> bool:
    """Whether operators read pieces of the parameter of an FX node, which make up all of it."""
    whole = _region(parameter.meta["val"])
    regions = {_region(read.meta["val"]) for _, read in _readings(parameter)}
    if whole is None or len(regions) < 2 or None in regions:
        return False
    ordered = sorted(region for region in regions if region is not None)
    meet = all(one[1] == other[0] for one, other in pairwise(ordered))
    return meet and (ordered[0][0], ordered[-1][1]) == whole


def is_split_alike(parameter: Any) -> bool:
    """Whether all operators that read the same piece of a parameter can split it in one way."""
    readers = defaultdict(list)
    for user, read in _readings(parameter):
        readers[_region(read.meta["val"])].append(_has_as_weight(user, read))
    weights = {_weight_beside(user, read) for user, read in _readings(parameter)}
    if None not in weights and len(weights) == 1:
        return True
    return all(len(each) < 2 or all(each) for each in readers.values())


def _weight_beside(user: Any, read: Any) -> Any:
    """The weight beside a bias in a layer that runs several times; None: it is no bias."""
    name = operator_name(user)
    bias, weight = _BIAS_AT.get(name), _WEIGHT_AT.get(name)
    if bias is None or weight is None or len(user.args) <= max(bias, weight):
        return None
    return user.args[weight] if user.args[bias] is read else None


def _has_as_weight(user: Any, read: Any) -> bool:
    name = operator_name(user)
    place = _WEIGHT_AT.get(name)
    if place is None or len(user.args) <= place or user.args[place] is not read:
        return False
    strides = read.meta["val"].stride()
    return name not in _TRANSPOSED or list(strides) == sorted(strides)


def _readings(node: Any) -> Iterator[tuple[Any, Any]]:
    """The operators that read an FX node, and the view of it that they read."""
    for user in node.users:
        if _is_view(user, node):
            yield from _readings(user)
        else:
            yield user, node


def _is_view(user: Any, node: Any) -> bool:
    """Whether the user shows elements of the node, none of them twice."""
    if isinstance(node.meta["val"], (list, tuple)):
        return True  # one of the pieces
    shown = user.meta.get("val")
    pieces = shown if isinstance(shown, (list, tuple)) else [shown]
    size: int = node.meta["val"].numel()
    return operator_name(user) in VIEWS and all(one.numel() <= size for one in pieces)


def _region(tensor: Any) -> _Region | None:
    """Where a view lies in memory; None if it has gaps."""
    sides = zip(tensor.shape, tensor.stride(), strict=True)
    reach = 1 + sum((size - 1) * stride for size, stride in sides)
    first = int(tensor.storage_offset())
    return (first, first + reach) if reach == tensor.numel() else None
