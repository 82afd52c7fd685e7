"""Ranks settings by the simulated iteration time: tuning that takes no time on the cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from byteprophet.engine.paced import COSTS, paced_job
from byteprophet.engine.simulation import ITERATIONS, simulate
from byteprophet.job import Costs
from byteprophet.workload import Workload

Settings = dict[str, int]

_KIB = 1024
_PARTITIONS = tuple(size * _KIB for size in (64, 128, 256, 512, 1024, 2048, 4096))
_MESSAGES = (1, 2, 3, 4, 6, 8, 16)
"""What a window holds of partitions."""


def tuning_grid(scheduler: str) -> list[Settings]:
    """The grid on which the tuned baselines are tuned; of others only the default settings."""
    if scheduler == "fifo":
        return [{"partition_bytes": size} for size in _PARTITIONS]
    if scheduler == "p3":
        return [
            {"partition_bytes": size, "outstanding_messages": messages}
            for size in _PARTITIONS
            for messages in _MESSAGES
        ]
    if scheduler == "bytescheduler":
        return [
            {"partition_bytes": size, "credit_bytes": messages * size}
            for size in _PARTITIONS
            for messages in _MESSAGES
        ]
    return [{}]


def rank_settings(
    workload: Workload,
    scheduler: str,
    workers: int,
    servers: int,
    bandwidth_bps: int | None,
    candidates: Sequence[Mapping[str, int]] | None = None,
    *,
    costs: Costs = COSTS,
    iterations: int = ITERATIONS,
) -> list[tuple[Settings, int]]:
    """Settings of a scheduler for one cell of a grid, with nanoseconds per iteration, best first.

    ``bandwidth_bps``: what each worker's link is limited to; None: not limited. ``candidates``:
    settings to try, each in place of the scheduler's own; None: ``tuning_grid(scheduler)``. Of
    equals the earlier comes first. ``iterations`` are measured of each.
    """
    tried = tuning_grid(scheduler) if candidates is None else candidates

    def iteration_ns(settings: Mapping[str, int]) -> int:
        job = paced_job(
            workload,
            scheduler,
            settings,
            workers=workers,
            servers=servers,
            bandwidth_bps=bandwidth_bps,
            costs=costs,
        )
        return simulate(job, iterations=iterations).median_ns

    ranked = [(dict(settings), iteration_ns(settings)) for settings in tried]
    return sorted(ranked, key=lambda pair: pair[1])
