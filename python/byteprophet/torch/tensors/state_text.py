"""An optimizer's ``state_dict`` as text and tensors, so that it can be sent without pickle.

The text is JSON. It keeps the kind of each container (dictionary, list or tuple). In place of a
tensor, it has the type and shape. The tensors follow separately, in the order of the text.
"""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import Tensor


def to_text(state: dict[str, Any]) -> tuple[str, list[Tensor]]:
    """Return the text of ``state`` and its tensors.

    Raises ``ValueError`` if a value cannot be sent.
    """
    tensors: list[Tensor] = []
    return json.dumps(_encode(state, tensors)), tensors


def from_text(text: str) -> tuple[dict[str, Any], list[Tensor]]:
    """Invert ``to_text``. The tensors have the right type and shape, but undefined values."""
    tensors: list[Tensor] = []
    state: dict[str, Any] = _decode(json.loads(text), tensors)
    return state, tensors


def _encode(value: Any, tensors: list[Tensor]) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Tensor):
        tensors.append(value)
        dtype = str(value.dtype).removeprefix("torch.")
        return {"tensor": dtype, "shape": list(value.shape)}
    if isinstance(value, dict):
        return {"dict": [[_encode(k, tensors), _encode(v, tensors)] for k, v in value.items()]}
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [_encode(item, tensors) for item in value]}
    raise ValueError(f"the optimizer's state holds a {type(value).__name__}, which cannot be sent")


def _decode(value: Any, tensors: list[Tensor]) -> Any:
    if not isinstance(value, dict):
        return value
    if "tensor" in value:
        dtype = getattr(torch, value["tensor"])
        tensors.append(torch.empty(value["shape"], dtype=dtype))
        return tensors[-1]
    if "dict" in value:
        return {_decode(k, tensors): _decode(v, tensors) for k, v in value["dict"]}
    if "tuple" in value:
        return tuple(_decode(item, tensors) for item in value["tuple"])
    return [_decode(item, tensors) for item in value["list"]]
