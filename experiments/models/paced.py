"""A paced model of a built-in workload: timed waits in place of compute, and real gradients.

A rank's gradients do not depend on what it is given. So a batch is a few zeros.
"""

from __future__ import annotations

import os

import torch
from torch import Tensor

from byteprophet.paced.model import PacedModel
from byteprophet.workload import load

_CLASSES = 2


def make(workload: str) -> PacedModel:
    """The paced model of the workload with this name, for the rank of this process."""
    return PacedModel(load(workload), int(os.environ.get("RANK", "0")))


def draw(size: int, _: torch.Generator) -> tuple[Tensor, Tensor]:
    """A batch of ``size``: what passes through the model, and classes that nobody learns."""
    return torch.zeros(size, _CLASSES), torch.zeros(size, dtype=torch.long)
