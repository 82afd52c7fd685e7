"""Computes the bytes that a collective moves from the fields that torch.profiler writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_MOST_ITEMS = 2**62
_MOST_BYTES = 2**63
# By the types of tensors ("Input type", with C++ names) and of messages ("dtype", torch's names).
_ITEM_BYTES = {
    **dict.fromkeys(("bool", "unsigned char", "byte", "signed char", "char"), 1),
    **dict.fromkeys(("half", "bfloat16", "short int", "short", "unsigned short", "uint16"), 2),
    **dict.fromkeys(("float", "int", "unsigned int", "uint32", "complexhalf", "complex<half>"), 4),
    **dict.fromkeys(("double", "long int", "long", "unsigned long", "uint64", "long long"), 8),
    **dict.fromkeys(("unsigned long long", "complexfloat", "complex<float>"), 8),
    **dict.fromkeys(("complexdouble", "complex<double>"), 16),
}


def count(value: Any) -> int:
    """``value`` if it is a positive integer of reasonable size, else 0."""
    return value if type(value) is int and 0 < value < _MOST_ITEMS else 0


def message_bytes(arguments: Mapping[str, Any]) -> int:
    """Bytes of a message, from an NCCL kernel or ``record_param_comms``; 0 if not stated.

    The larger side counts: an all-gather's output, a reduce-scatter's input.
    """
    items = max(count(arguments.get(f"{side} msg nelems")) for side in ("In", "Out"))
    return _size_bytes(items, arguments.get("dtype"))


def tensor_bytes(arguments: Mapping[str, Any]) -> list[int]:
    """Bytes of each input whose shape and type are known."""
    shapes, types = arguments.get("Input Dims"), arguments.get("Input type")
    if shapes is None:
        shapes = arguments.get("Input dims")  # until 2021
    if not isinstance(shapes, list) or not isinstance(types, list):
        return []
    return [_size_bytes(_items(shape), kind) for shape, kind in zip(shapes, types, strict=False)]


def _size_bytes(items: int, kind: Any) -> int:
    """Bytes of ``items``; 0 if their type is not known or their size not reasonable."""
    size_bytes = items * _item_bytes(kind)
    return size_bytes if size_bytes < _MOST_BYTES else 0


def _item_bytes(kind: Any) -> int:
    """Bytes of one item; 0 if its type is not known."""
    if not isinstance(kind, str):
        return 0
    name = kind.lower().replace("c10::", "")
    return 1 if name.startswith("float8_") else _ITEM_BYTES.get(name, 0)


def _items(shape: Any) -> int:
    if not isinstance(shape, list):
        return 0
    items = 1
    for size in shape:
        if type(size) is not int or size < 0:
            return 0
        items = min(items * size, _MOST_ITEMS)
    return items
