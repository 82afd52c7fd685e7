"""Settings ranked by what they make of a job: tuning without the cluster's time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from byteprophet.engine.job import Costs, SimulatedJob, simulate
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


def sweep(
    job: SimulatedJob, candidates: Sequence[Mapping[str, int]] | None = None
) -> list[tuple[Settings, int]]:
    """``candidates`` and the job's iteration time under each, best first; of equals the earlier.

    Each overrides the job's own settings. None: the scheduler's ``tuning_grid``.
    """
    tried = tuning_grid(job.scheduler) if candidates is None else candidates
    ranked = [
        (dict(chosen), simulate(replace(job, settings={**job.settings, **chosen})).median_ns)
        for chosen in tried
    ]
    return sorted(ranked, key=lambda pair: pair[1])


def rank_settings(
    workload: Workload,
    scheduler: str,
    workers: int,
    servers: int,
    bandwidth_bps: int | None,
    candidates: Sequence[Mapping[str, int]] | None = None,
    *,
    costs: Costs | None = None,
) -> list[tuple[Settings, int]]:
    """Settings of a scheduler for one cell of a grid, with nanoseconds per iteration, best first.

    ``bandwidth_bps``: what each worker's link is limited to; None: not limited. ``candidates``:
    settings to try; None: ``tuning_grid(scheduler)``.
    """
    job = SimulatedJob(
        workload,
        scheduler,
        workers=workers,
        servers=servers,
        bandwidth_bps=bandwidth_bps,
        costs=costs or Costs(),
    )
    return sweep(job, candidates)
