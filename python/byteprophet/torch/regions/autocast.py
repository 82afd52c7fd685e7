"""Lets a model compute in bfloat16 where torch's autocast says so.

What it returns is in single precision again, so that a loss outside of the model is computed as
before. Parameters, gradients and updates stay in single precision.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree

from byteprophet.torch.regions.fused import Forward


def with_autocast(run: Forward) -> Forward:
    """``run`` under autocast, on the device of the first tensor that it is given."""

    def autocast(*inputs: Any, **named: Any) -> Any:
        leaves = _pytree.tree_leaves((inputs, named))
        devices = [leaf.device.type for leaf in leaves if isinstance(leaf, Tensor)]
        with torch.autocast(devices[0] if devices else "cpu", dtype=torch.bfloat16):
            output = run(*inputs, **named)
        return _pytree.tree_map_only(Tensor, _single, output)

    return autocast


def _single(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype == torch.bfloat16 else tensor
