"""Replaces BytePS' functions with ours, for scripts that import ``byteps.torch``."""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from byteprophet.torch import byteps_data_parallel, collectives, lifecycle
from byteprophet.torch.optimizer import DistributedOptimizer, Uncompressed
from byteprophet.torch.sync import basics, compressed


def cross_barrier(
    model: nn.Module,
    optimizer: Optimizer,
    named_parameters: Iterable[tuple[str, Tensor]] | None = None,
    compression: Any = Uncompressed,
    backward_passes_per_step: int = 1,
    num_steps: int = 10**6,
) -> Optimizer:
    """Replaces ``byteps.torch.cross_barrier.CrossBarrier``. Our optimizer does the same anyway."""
    return DistributedOptimizer(
        optimizer, named_parameters, compression, backward_passes_per_step, model=model
    )


_REPLACEMENTS: dict[str, dict[str, Any]] = {
    "byteps.torch": {
        "DistributedOptimizer": DistributedOptimizer,
        "broadcast_optimizer_state": collectives.broadcast_optimizer_state,
        "broadcast_parameters": collectives.broadcast_parameters,
        "declare": compressed.declare,
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
    "byteps.torch.parallel.distributed": {
        "DistributedDataParallel": byteps_data_parallel.DistributedDataParallel,
    },
}


_WITHOUT_SERVERS = {
    "byteps_push_pull": basics.push_pull_async_inplace,
    "local_rank": basics.local_rank,
    "local_size": basics.local_size,
    "poll": basics.poll,
    "push_pull_async": collectives.push_pull_async,
    "push_pull_async_inplace": basics.push_pull_async_inplace,
    "push_pull_inplace": basics.push_pull_inplace,
    "rank": basics.rank,
    "size": basics.size,
    "synchronize": basics.synchronize,
}
"""What BytePS itself does in a job with servers; in each of its modules."""


def install(module: ModuleType) -> None:
    """Replace the functions of ``module``, one of BytePS' modules, that are listed above."""
    changed = dict(_REPLACEMENTS[module.__name__])
    if basics.without_servers():
        changed |= {n: call for n, call in _WITHOUT_SERVERS.items() if hasattr(module, n)}
    for name, replacement in changed.items():
        setattr(module, name, replacement)
