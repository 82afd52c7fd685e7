"""Puts ours in the place of BytePS' functions, for scripts that import ``byteps.torch``."""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from byteprophet.torch import collectives, lifecycle
from byteprophet.torch.optimizer import DistributedOptimizer, Uncompressed


def cross_barrier(
    model: nn.Module,
    optimizer: Optimizer,
    named_parameters: Iterable[tuple[str, Tensor]] | None = None,
    compression: Any = Uncompressed,
    backward_passes_per_step: int = 1,
    num_steps: int = 10**6,
) -> Optimizer:
    """``byteps.torch.cross_barrier.CrossBarrier``, which is what our optimizer does anyway."""
    return DistributedOptimizer(
        optimizer, named_parameters, compression, backward_passes_per_step, model=model
    )


_REPLACEMENTS: dict[str, dict[str, Any]] = {
    "byteps.torch": {
        "DistributedOptimizer": DistributedOptimizer,
        "broadcast_optimizer_state": collectives.broadcast_optimizer_state,
        "broadcast_parameters": collectives.broadcast_parameters,
        "init": lifecycle.init,
        "push_pull": collectives.push_pull,
        "resume": lifecycle.resume,
        "shutdown": lifecycle.shutdown,
        "suspend": lifecycle.suspend,
    },
    "byteps.torch.cross_barrier": {
        "CrossBarrier": cross_barrier,
        "broadcast_optimizer_state": collectives.broadcast_optimizer_state,
        "broadcast_parameters": collectives.broadcast_parameters,
        "init": lifecycle.init,
        "shutdown": lifecycle.shutdown,
    },
}


def install(module: ModuleType) -> None:
    """Replace what ``module``, one of BytePS', offers under the names above."""
    for name, replacement in _REPLACEMENTS[module.__name__].items():
        setattr(module, name, replacement)
