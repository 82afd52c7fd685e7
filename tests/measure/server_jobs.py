"""Jobs with servers, made from rates and names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from byteprophet.job import (
    Cluster,
    Costs,
    Host,
    Job,
    Model,
    Parameter,
    Policy,
    Strategy,
    Times,
)


def server_job(
    names: Sequence[str],
    sizes_bytes: Sequence[int],
    times: Times,
    cluster: Cluster,
    scheduler: str,
    partition_bytes: int,
    settings: Mapping[str, int] | None = None,
    numbers: tuple[int, ...] = (),
) -> Job:
    """Parameters in forward order."""
    return Job(
        Model(tuple(map(Parameter, names, sizes_bytes))),
        times,
        cluster,
        Strategy(partition_bytes=partition_bytes, numbers=numbers),
        Policy(scheduler, settings or {}),
    )


def cluster_of(
    worker_bps: Sequence[int], server_bps: Sequence[int], costs: Costs | None = None
) -> Cluster:
    """Links that are as fast in both directions."""
    return Cluster(
        tuple(Host(rate, rate) for rate in worker_bps),
        tuple(Host(rate, rate) for rate in server_bps),
        costs or Costs(),
    )
