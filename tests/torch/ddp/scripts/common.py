"""The model and the loop that all scripts share, and the table of scripts.

A script is a function that trains small models on data of its rank, and returns the tensors that
must be the same whoever exchanges the gradients. None mentions byteprophet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

STEPS = 8
wrapped: list[Any] = []
"""The models that the running script has wrapped."""
SCRIPTS: dict[str, Callable[[], Iterable[Tensor]]] = {}


def script(function: Callable[[], Iterable[Tensor]]) -> Callable[[], Iterable[Tensor]]:
    """Add a function to the scripts, under its name."""
    SCRIPTS[function.__name__] = function
    return function


class Net(nn.Module):
    """A few layers, some of which a script may leave out or checkpoint."""

    def __init__(self, norm: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        self.into = nn.Linear(6, 150)
        self.norm = nn.BatchNorm1d(150) if norm else nn.Identity()
        self.middle = nn.Linear(150, 150)
        self.more = nn.Linear(150, 150)
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Linear(150, 3)
        self.uses_extra = True
        self.checkpoints = ""

    def block(self, x: Tensor) -> Tensor:
        return torch.tanh(self.middle(x))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.norm(self.into(x)))
        if self.checkpoints:
            x = checkpoint(self.block, x, use_reentrant=self.checkpoints == "reentrant")
        else:
            x = self.block(x)
        if self.uses_extra:
            x = torch.tanh(self.more(x))
        result: Tensor = self.out(self.dropout(x))
        return result


def batch(step: int, rank: int | None = None) -> Tensor:
    rank = distributed.get_rank() if rank is None else rank
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(8, 6, generator=generator, device="cpu").to(torch.get_default_device())


def loss_of(model: nn.Module, step: int) -> Tensor:
    loss: Tensor = model(batch(step)).square().mean()
    return loss


def wrap(model: nn.Module, **options: Any) -> Any:
    """Wrap a model, and keep it until its script has ended."""
    wrapped.append(DistributedDataParallel(model, **options))
    return wrapped[-1]


def start(make: Callable[[], nn.Module] = Net, **options: Any) -> tuple[nn.Module, Any]:
    model = make()
    return model, wrap(model, **options)


def train(ddp: Any, optimizer: Any, steps: Iterable[int] = range(STEPS)) -> None:
    for step in steps:
        optimizer.zero_grad()
        loss_of(ddp, step).backward()
        optimizer.step()


def state_of(optimizer: Any) -> list[Tensor]:
    return [
        value
        for state in optimizer.state_dict()["state"].values()
        for value in state.values()
        if isinstance(value, Tensor)
    ]
