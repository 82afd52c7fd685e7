"""What an optimizer asks of the synchroniser of a job without servers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from byteprophet import job
from byteprophet.job.owners import Owners


@dataclass(frozen=True)
class Setup:
    """How one optimizer's gradients are averaged.

    All of it but ``timeout_s`` and ``changes`` must be equal on all ranks, which compare it.

    Attributes:
        mode: the optimizer's ``sync`` option.
        shardable: whether a rank may update any shard of a parameter on its own.
        fusion: how buckets are made, as in ``DistributedOptimizer``.
        timeout_s: how long a rank waits for the others at the start, in seconds.
        options: further options of the optimizer.
        owners: who owns what of the parameters that are sharded.
        changes: how the front changes gradients and delays averages.
        gives_values: whether all ranks begin with rank 0's parameters; if not, with their own.
    """

    mode: str
    shardable: bool
    fusion: int | str
    timeout_s: float
    options: Mapping[str, object]
    owners: Owners
    changes: job.Strategy
    gives_values: bool = True
