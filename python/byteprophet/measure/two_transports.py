"""Measures a recorded job that has servers and a mesh of its ranks.

The times come from spans, parameter by parameter, and the strategy from ``strategy.json``, as it
was given. The measurement covers the last consecutive iterations in which small gradients shared
the last buffers, and the mesh used the strategy's buckets: until ranks agree on the forward order,
both have others. Spans of collectives say which buckets they belong to.

The links are as they were configured: neither transport tells how fast a link is that both use. For
the same reason, the cost of a message beside its bytes is assumed (``job/assumed_costs.py``). Lags
of threads and the servers' sums are measured as in jobs of one transport.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from byteprophet.errors import UserError
from byteprophet.job import Cluster, Job, Policy
from byteprophet.job.assumed_costs import mesh_costs, served_costs
from byteprophet.job.fused_file import Fused
from byteprophet.job.routes import parts_of
from byteprophet.job.strategy_file import Used
from byteprophet.job.times import Int64Array
from byteprophet.job.transports import served
from byteprophet.measure.collectives import lags_ns, operations_of
from byteprophet.measure.computation import Computation, stacked, times_of
from byteprophet.measure.network import measure_network
from byteprophet.measure.settings import Told
from byteprophet.measure.tensors import (
    by_rank,
    check_extent,
    iterations_since,
    measure_tensors,
    place_since,
)
from byteprophet.schedulers import PARTITION
from byteprophet.timeline.events import Events
from byteprophet.timeline.tables import SPANS, TRANSFERS, Kind
from byteprophet.workload.as_job import limited_host
from byteprophet.workload.run_config import link_limits_bps, server_limits_bps

_REDUCE_SCATTER = re.compile(r"reduce-scatter (\d+)\.\d+")  # torch/sync/collective_synchroniser.py


def measure_two_transports(
    recorded: Sequence[Events],
    config: Mapping[str, Any],
    used: Used,
    told: Told,
    fused: Fused,
) -> tuple[Job, Int64Array, int]:
    """Measure the job that recorded ``recorded``.

    Returns it with the starts of its iterations, shape (workers, iterations + 1), and the 0-based
    index of the first iteration that ran with its settings. ``measure`` in ``servers.py`` describes
    the other arguments. UserError if a recording is missing or ends before these settings, or a
    link had no limit.
    """
    ranks = range(config["workers"])
    spans = by_rank(recorded, SPANS, ranks)
    numbers = iterations_since(spans, max(1, fused.since, _adopted(spans[0])))
    check_extent(len(numbers), len(used.model))
    computed = [Computation(events, used.model.names, numbers) for events in spans]
    transfers = by_rank(recorded, TRANSFERS, ranks)
    tensors = measure_tensors(transfers[0], fused, config["servers"])
    partition_bytes = tensors.partition_bytes or config["partition_bytes"]
    settings = {**config["settings"], **told.settings, PARTITION: partition_bytes}
    job = Job(
        used.model,
        times_of(computed, used.strategy.accumulation),
        _cluster(recorded, config, spans, numbers, used),
        replace(used.strategy, partition_bytes=partition_bytes),
        Policy(config["scheduler"], settings),
    )
    job = replace(job, policy=replace(job.push_policy, ready_times=_ready_times(job, told)))
    settled = place_since(max(tensors.settled_from, told.settled_from), numbers)
    return job, stacked(computed, "start_ns"), settled


def _adopted(events: Events) -> int:
    """The first iteration in which the mesh used its last buckets."""
    rows = events.rows[events.rows["kind"] == Kind.COLLECTIVE]
    found: dict[int, int] = {}
    for name, iteration in rows[["name", "iteration"]].tolist():
        version = _REDUCE_SCATTER.fullmatch(events.names[name])
        if version is not None:
            number = int(version[1])
            found[number] = min(iteration, found.get(number, iteration))
    if not found:
        raise UserError(f"rank {events.origin.rank} recorded no collectives of the mesh")
    return found[max(found)]


def _cluster(
    recorded: Sequence[Events],
    config: Mapping[str, Any],
    spans: Sequence[Events],
    numbers: Sequence[int],
    used: Used,
) -> Cluster:
    limits_bps = link_limits_bps(config)
    known_bps = [limit_bps for limit_bps in limits_bps if limit_bps is not None]
    if len(known_bps) < config["workers"]:
        raise UserError(
            "two transports shared links that were not all limited: their rates cannot be "
            "measured; record the job with --bandwidth"
        )
    network = measure_network(recorded, config["servers"], limits_bps, server_limits_bps(config))
    start_lag_ns, update_lag_ns = lags_ns(
        spans, [operations_of(events, numbers) for events in spans], numbers, _by_parameter(used)
    )
    delay_ns = network.costs.delay_ns
    message_cost_ns = served_costs(delay_ns).message_cost_ns
    return Cluster(
        tuple(map(limited_host, known_bps)),
        network.servers,
        replace(network.costs, message_cost_ns=message_cost_ns),
        replace(mesh_costs(delay_ns), start_lag_ns=start_lag_ns, update_lag_ns=update_lag_ns),
    )


def _by_parameter(used: Used) -> Used:
    """``used`` with buckets that name parameters, as spans do, in place of pieces."""
    tensors = {part.name: part.tensor for part in parts_of(used.strategy.routes)}
    buckets = tuple(
        replace(bucket, parameters=tuple(tensors[name] for name in bucket.parameters))
        for bucket in used.strategy.buckets
    )
    return replace(used, strategy=replace(used.strategy, buckets=buckets))


def _ready_times(job: Job, told: Told) -> tuple[tuple[int, int, int, int], ...]:
    """What the policy was told of what goes to servers."""
    return tuple(
        (place, -1 - place, *told.ready[name])
        for place, name in enumerate(served(job).job.model.names)
        if name in told.ready
    )
