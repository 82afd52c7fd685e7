"""Lets a model compute in bfloat16 where torch's autocast says so.

What it returns is in single precision again, so that a loss outside of the model is computed as
before. Parameters, gradients and updates stay in single precision.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from byteprophet.torch.regions.fused import Forward
from byteprophet.torch.tensors.nested import OPENED, hidden_in, tensors_in, with_tensors


def with_autocast(run: Forward, modules: Sequence[nn.Module]) -> Forward:
    """``run``, which calls ``modules``, under autocast on the device of their first parameter.

    What it returns raises ``RuntimeError``, which names the last module, if a tensor of bfloat16 is
    in an object of a kind that is not opened (``tensors/nested.py``).
    """
    name = type(modules[-1]).__name__

    def autocast(*inputs: Any, **named: Any) -> Any:
        parameters = (each for module in modules for each in module.parameters())
        tensors = itertools.chain(parameters, tensors_in((inputs, named)))
        device = next((each.device.type for each in tensors), "cpu")
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
