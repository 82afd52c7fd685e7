"""Measures what the model computes when, without communication: what a bound needs.

Forward: a hook before each module that owns parameters takes the time; from there to the next hook
is the time that needs the module's first parameter, its other parameters come with it. So the layer
also pays for what follows it without parameters (activations, sums, at the end the loss).

Backward: hooks on the parameters take the time when each gradient is complete, counted from the
start of backward.

Medians over the passes. What is in no layer (fetching the batch, zeroing, the optimizer's
arithmetic) is left out, so that a bound computed from this stays a lower one.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.nn import functional

PASSES = 12
_UNMEASURED_PASSES = 3


class _Stamps:
    """One pass: when which module was entered, and which gradient completed."""

    def __init__(self, model: nn.Module) -> None:
        self.entered: dict[str, int] = {}
        self.completed: dict[str, int] = {}
        self.forward_order: list[str] = []
        for name, module in model.named_modules():
            own = [f"{name}.{key}" for key, _ in module.named_parameters(recurse=False)]
            if own:
                module.register_forward_pre_hook(self._on_forward(own))
        for name, parameter in model.named_parameters():
            hook = self._on_gradient(name)
            parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]

    def _on_forward(self, names: list[str]) -> Callable[[nn.Module, Any], None]:
        def hook(_module: nn.Module, _inputs: Any) -> None:
            self.entered[names[0]] = time.monotonic_ns()
            if names[0] not in self.forward_order:
                self.forward_order += names

        return hook

    def _on_gradient(self, name: str) -> Callable[[Tensor], None]:
        def hook(_parameter: Tensor) -> None:
            self.completed[name] = time.monotonic_ns()

        return hook


def calibrate(model: nn.Module, images: Tensor, labels: Tensor) -> dict[str, Any]:
    """The compute profile of ``model`` on one batch; ``model`` itself stays as it is.

    ``forward_ns`` and ``backward_ns`` of a pass, and ``tensors`` in forward order, each with
    ``name``, ``size_bytes``, ``forward_ns``, and ``ready_ns`` from the start of backward.
    """
    model = copy.deepcopy(model)
    stamps = _Stamps(model)
    forward, ready, ends = [], [], []
    for _ in range(_UNMEASURED_PASSES + PASSES):
        model.zero_grad()
        loss = functional.cross_entropy(model(images), labels)
        begun = time.monotonic_ns()
        loss.backward()  # type: ignore[no-untyped-call]
        ends.append(time.monotonic_ns() - begun)
        starts = [*stamps.entered.values(), begun]
        forward.append(np.diff(starts))
        ready.append([stamps.completed[name] - begun for name in stamps.forward_order])
    forward_ns = np.median(forward[_UNMEASURED_PASSES:], axis=0).astype(int).tolist()
    ready_ns = np.median(ready[_UNMEASURED_PASSES:], axis=0).astype(int).tolist()
    layer_ns = dict(zip(stamps.entered, forward_ns, strict=True))
    parameters = dict(model.named_parameters())
    return {
        "forward_ns": sum(forward_ns),
        "backward_ns": max(int(np.median(ends[_UNMEASURED_PASSES:])), *ready_ns),
        "tensors": [
            {
                "name": name,
                "size_bytes": parameters[name].nbytes,
                "forward_ns": layer_ns.get(name, 0),
                "ready_ns": ready_at_ns,
            }
            for name, ready_at_ns in zip(stamps.forward_order, ready_ns, strict=True)
        ],
    }
