"""The models by name, and how each is trained.

A file per family offers ``make()``, the model, and ``draw(size, lot)``, a random batch whose last
tensor has the right classes. ``UNSEEN`` are kept for acceptance: nothing is tuned on them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

KNOWN = ("resnet", "gpt", "llama", "bert", "mobilenet", "vgg", "dlrm", "vit")
UNSEEN = ("convnext", "densenet", "mixer")
_PACED = "paced-"
PACED = (f"{_PACED}resnet18", f"{_PACED}densenet201")
"""Paced models of built-in workloads (``paced.py``)."""
_BY_SGD = ("resnet", "mobilenet", "vgg", "dlrm", "densenet", *PACED)


@dataclass(frozen=True)
class Family:
    """``draw(size, lot)`` returns the inputs of ``model``, and the right classes behind them."""

    model: nn.Module
    draw: Callable[[int, torch.Generator], tuple[Tensor, ...]]
    optimizer: torch.optim.Optimizer


def make(name: str) -> Family:
    """The family called ``name``, with the optimizer that is usual for it."""
    paced = name.startswith(_PACED)
    module = importlib.import_module("paced" if paced else name)
    model: nn.Module = module.make(name.removeprefix(_PACED)) if paced else module.make()
    if name in _BY_SGD:
        optimizer: torch.optim.Optimizer = torch.optim.SGD(
            model.parameters(), lr=0.01, momentum=0.9
        )
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    return Family(model, module.draw, optimizer)
