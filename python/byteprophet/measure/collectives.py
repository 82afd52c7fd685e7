"""Measures a recorded job whose ranks exchanged gradients among themselves.

The times come from spans, the buckets from ``strategy.json``. The measurement covers consecutive
iterations that used these buckets and that every rank recorded completely.

``links.py`` measures the links. Two lags come from spans. The first is the median time from a
bucket's last gradient to the start of its reduce-scatter. The second is the time from a
collective's end to the first update of its parameters; its 10th percentile is used, because most
updates wait for ``step()``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from byteprophet.errors import UserError
from byteprophet.job import Job
from byteprophet.job.cluster import Compressing
from byteprophet.job.compression import why_shapeless
from byteprophet.job.owners import Owners
from byteprophet.job.strategy import Strategy
from byteprophet.job.strategy_file import Used
from byteprophet.job.times import Int64Array
from byteprophet.measure.computation import Computation, stacked, times_of
from byteprophet.measure.links import configured_mesh_links, measure_mesh_links
from byteprophet.measure.processors import AVERAGING, COMPRESSING, Arrivals, Clocks, Use
from byteprophet.measure.tensors import by_rank, check_extent, iterations_since
from byteprophet.timeline.events import Events
from byteprophet.timeline.tables import SPANS, Kind, Rows
from byteprophet.workload.run_config import link_limits_bps

REDUCE_SCATTER, ALL_GATHER = "reduce-scatter ", "all-gather "  # torch/sync/operations.py
_SHORTEST = 0.1

Operations = dict[tuple[int, str], tuple[int, int, int]]
"""A rank's collectives: begin, end and bytes, by iteration and name."""


def measure_collectives(
    recorded: Sequence[Events],
    config: Mapping[str, Any],
    used: Used,
    use: Use | None = None,
) -> tuple[Job, Int64Array]:
    """Measure the job that recorded ``recorded``.

    Returns it with the starts of its iterations, shape (ranks, iterations + 1).
    ``config`` is the content of the run's ``config.toml``. ``use``: of the cores that ranks share;
    None: they share none, or it is not known. UserError if a recording is missing.
    """
    if used.strategy.local_sgd:
        raise UserError("it averages parameters at times (local SGD): it cannot be replayed")
    why = why_shapeless(used.strategy.compressor_of)
    if why:
        raise UserError(f"{why}: such a job cannot be replayed")
    ranks = range(config["workers"] * config["local_ranks"])
    spans = by_rank(recorded, SPANS, ranks)
    numbers = iterations_since(spans, used.since)
    check_extent(len(numbers), len(used.model))
    operations = [operations_of(events, numbers) for events in spans]
    clocks = None
    if use is not None:
        owners = Owners.of(used.strategy.owners, len(ranks))
        clocks = Clocks(spans, [(each,) for each in arrivals_of(operations, owners)], use)
    computed = [Computation(events, used.model.names, numbers, clocks) for events in spans]
    limits_bps = link_limits_bps(config)
    if used.strategy.owners:
        cluster = configured_mesh_links(limits_bps)
    else:
        moved = [
            own | forms_of(events, numbers, used.strategy)
            for own, events in zip(operations, spans, strict=True)
        ]
        cluster = measure_mesh_links(moved, limits_bps)
    start_lag_ns, update_lag_ns = lags_ns(spans, operations, numbers, used)
    costs = replace(
        cluster.costs,
        start_lag_ns=start_lag_ns,
        update_lag_ns=update_lag_ns,
        compressing=compressing_costs(spans, numbers, used.strategy, clocks),
    )
    cluster = replace(cluster, costs=costs)
    if use is not None:
        cluster = use.on(cluster, limits_bps)
    times = times_of(computed, used.strategy.accumulation)
    job = Job(used.model, times, cluster, used.strategy)
    return job, stacked(computed, "start_ns")


def arrivals_of(operations: Sequence[Operations], owners: Owners) -> list[Arrivals]:
    """What arrived at each rank: others' parts of its share to sum, and the others' shares."""
    found = []
    for own, share in zip(operations, map(float, owners.shares), strict=True):
        summed, gathered = share * (len(operations) - 1), 1 - share
        rows = [
            (
                max(others[key][0] for others in operations),
                end_ns,
                round(size_bytes * (summed if key[1].startswith(REDUCE_SCATTER) else gathered)),
            )
            for key, (_, end_ns, size_bytes) in own.items()
            if all(key in others for others in operations)
        ]
        rows = [row for row in rows if row[2] > 0]  # of what it does not own, nothing arrives
        begin_ns, end_ns, moved_bytes = np.array(rows, np.int64).reshape(-1, 3).T
        found.append(Arrivals(begin_ns, end_ns, moved_bytes.astype(np.float64)))
    return found


def lags_ns(
    spans: Sequence[Events],
    operations: Sequence[Operations],
    numbers: Sequence[int],
    used: Used,
) -> tuple[int, int]:
    """Times from a bucket's last gradient to its reduce-scatter, and from collective to update."""
    starts_ns, updates_ns = [], []
    for events, own in zip(spans, operations, strict=True):
        named = {name: number for number, name in events.names.items()}
        ready_ns = _times_of(events, Kind.BACKWARD, "end_ns")
        updated_ns = _times_of(events, Kind.UPDATE, "begin_ns")
        for (iteration, label), (begin_ns, end_ns, _) in own.items():
            kind, _, place = label.partition(" ")
            bucket = used.strategy.buckets[int(place.rpartition(".")[2])]
            members = [named[name] for name in bucket.parameters if name in named]
            if f"{kind} " == REDUCE_SCATTER:
                last = [ready_ns[iteration, m] for m in members if (iteration, m) in ready_ns]
                if last:
                    starts_ns.append(begin_ns - max(last))
            if f"{kind} " == (REDUCE_SCATTER if bucket.sharded else ALL_GATHER):
                first = [updated_ns[iteration, m] for m in members if (iteration, m) in updated_ns]
                if first:
                    updates_ns.append(min(first) - end_ns)
    start_lag_ns = np.median(starts_ns) if starts_ns else 0
    update_lag_ns = np.quantile(updates_ns, _SHORTEST) if updates_ns else 0
    return max(0, int(start_lag_ns)), max(0, int(update_lag_ns))


def _times_of(events: Events, kind: Kind, column: str) -> dict[tuple[int, int], int]:
    """The times in ``column``, by iteration and name."""
    rows = events.rows[events.rows["kind"] == kind]
    fields = rows[["iteration", "name", column]].tolist()
    return {(iteration, name): time_ns for iteration, name, time_ns in fields}


def operations_of(events: Events, numbers: Sequence[int]) -> Operations:
    """A rank's collectives in the measured iterations, in the form that ``links.py`` takes."""
    rows = _rows_of(events, Kind.COLLECTIVE, numbers)
    if not len(rows):
        raise UserError(f"rank {events.origin.rank} recorded no collectives")
    if not (rows["size_bytes"] > 0).all():
        raise UserError("some collectives have no sizes: the recording does not contain them")
    fields = rows[["iteration", "name", "begin_ns", "end_ns", "size_bytes"]].tolist()
    kinds = (REDUCE_SCATTER, ALL_GATHER)
    found: Operations = {}
    for number, name, begin_ns, end_ns, size_bytes in fields:
        label = events.names[name]
        if label.startswith(kinds) and label.rpartition(".")[2].isdecimal():
            found[number, label] = begin_ns, end_ns, size_bytes
    return found


def forms_of(events: Events, numbers: Sequence[int], strategy: Strategy) -> Operations:
    """A rank's collectives of compressed gradients, as ``operations_of`` has those of buckets."""
    labels = {
        f"{half}{own.type} ({name})"
        for name, own in strategy.compressor_of.items()
        for half in ("", REDUCE_SCATTER, ALL_GATHER)
    }
    wanted = [number for number, name in events.names.items() if name in labels]
    rows = _rows_of(events, Kind.COLLECTIVE, numbers)
    rows = rows[np.isin(rows["name"], wanted)]
    fields = rows[["iteration", "name", "begin_ns", "end_ns", "size_bytes"]].tolist()
    return {
        (number, events.names[name]): (begin_ns, end_ns, size_bytes)
        for number, name, begin_ns, end_ns, size_bytes in fields
    }


def compressing_costs(
    spans: Sequence[Events],
    numbers: Sequence[int],
    strategy: Strategy,
    clocks: Clocks | None = None,
) -> tuple[Compressing, ...]:
    """What ranks took to compress each gradient, and to average its forms: medians, in ns.

    ``clocks``: of processor time; None: it is what they took by the wall clock. Raises
    ``UserError`` if that was not recorded.
    """
    took_ns: dict[str, list[int]] = {}
    for events in spans:
        rows = _rows_of(events, Kind.COMPUTE, numbers)
        began_ns, ended_ns = rows["begin_ns"], rows["end_ns"]
        if clocks is not None:
            clock = clocks.compressing[events.origin.rank]
            began_ns, ended_ns = clock.at(began_ns), clock.at(ended_ns)
        for name, each_ns in zip(
            rows["name"].tolist(), (ended_ns - began_ns).tolist(), strict=True
        ):
            took_ns.setdefault(events.names[name], []).append(each_ns)
    found = []
    for name in strategy.compressor_of:
        halves = [took_ns.get(f"{what} {name}") for what in (COMPRESSING, AVERAGING)]
        if not all(halves):
            raise UserError(f"it has no record of how long compressing {name!r} took: record again")
        before_ns, after_ns = (int(np.median(half)) for half in halves if half)
        found.append(Compressing(name, before_ns, after_ns))
    return tuple(found)


def _rows_of(events: Events, kind: Kind, numbers: Sequence[int]) -> Rows:
    rows = events.rows[events.rows["kind"] == kind]
    measured: Rows = rows[(rows["iteration"] >= numbers[0]) & (rows["iteration"] <= numbers[-1])]
    return measured
