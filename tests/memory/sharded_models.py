"""Models of linear layers, sharded layer by layer: for ``test_sharded.py`` and its job."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from byteprophet.memory.training import Training

ROUNDS = 20


def linear_training(widths: Sequence[int] = (401, 700, 301, 900, 400), batch: int = 8) -> Training:
    """Linear layers between these widths."""
    torch.manual_seed(1)
    layers = (nn.Linear(*each) for each in itertools.pairwise(widths))
    inputs = torch.randn(batch, widths[0])
    return Training(nn.Sequential(*layers), [inputs], _loss, torch.optim.Adam)


def _loss(model: nn.Module, inputs: Tensor) -> Tensor:
    loss: Tensor = model(inputs).square().sum()
    return loss


def shard_blocks(model: nn.Module, mesh: DeviceMesh, **options: Any) -> None:
    """A unit of every layer."""
    for layer in model.children():
        fully_shard(layer, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)
