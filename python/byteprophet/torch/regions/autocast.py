"""Lets a model compute in bfloat16 where torch's autocast says so.

What it returns is in single precision again, so that a loss outside of the model is computed as
before. Parameters, gradients and updates stay in single precision.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from byteprophet.torch.regions.fused import Forward
from byteprophet.torch.tensors.nested import OPENED, hidden_in, tensors_in, with_tensors


def with_autocast(run: Forward, name: str) -> Forward:
    """``run`` under autocast, on the device of the first tensor that it is given.

    What it returns raises ``RuntimeError``, which calls it ``name``, if a tensor of bfloat16 is in
    an object of a kind that is not opened (``tensors/nested.py``).
    """

    def autocast(*inputs: Any, **named: Any) -> Any:
        device = next((each.device.type for each in tensors_in((inputs, named))), "cpu")
        with torch.autocast(device, dtype=torch.bfloat16):
            output = run(*inputs, **named)
        kind = hidden_in(output, lambda each: each.dtype == torch.bfloat16)
        if kind:
            raise RuntimeError(
                f"byteprophet: {name} returns a {kind} with a tensor of bfloat16, which cannot be "
                f"made float32 again: return {OPENED}, or take autocast out of the strategy"
            )
        return with_tensors(_single, output)

    return autocast


def _single(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype == torch.bfloat16 else tensor
