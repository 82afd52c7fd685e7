"""Measures a recorded job's network: links, message cost, delay, and the servers' sums.

The times come from transfers and, if servers recorded too, from their tables. With these tables, a
push is timed from the worker to the server, without its acknowledgement, and an answer from the
server to the worker. Times of different machines must be on one clock. Costs of answers that are
not known are taken to equal those of pushes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from byteprophet import _core
from byteprophet.errors import UserError
from byteprophet.job import Cluster, Costs, Host
from byteprophet.job.times import Int64Array
from byteprophet.measure.sending import (
    acknowledgement_ns,
    hand_over_ns,
    of_all,
    request_lags_ns,
    standing_ns,
    usual,
)
from byteprophet.monitor.estimate import DirectionEstimate, Estimate
from byteprophet.network.namespaces import BURST_BYTES
from byteprophet.order_statistics import distinct, groups, median
from byteprophet.timeline.events import Events
from byteprophet.timeline.joined import served_rows
from byteprophet.timeline.tables import SERVED_TABLE, TRANSFERS, Rows
from byteprophet.workload.as_job import limited_host

_AT_ONCE = 64  # messages
_SUSTAINED_BYTES = 8 * BURST_BYTES  # at least, so that a limiter's burst is a small part of it


@dataclass(frozen=True)
class _Worker:
    """What one worker's transfers show.

    ``has_server_arrivals``: server-side arrival times were recorded, so ``delay_ns`` is one-way.
    ``sent_known``: times of handing over are known. ``push_bytes``: of a push, on average.
    """

    pushes: Estimate
    push_bytes: float
    answers: Estimate
    has_server_arrivals: bool
    sent_known: bool
    hand_over_ns: int | None
    lags_ns: tuple[Int64Array, ...]  # of requests, by server
    acks_ns: tuple[int, ...]  # from a push's arrival until the worker knows of it, by server
    standing_ns: Int64Array  # of its pushes, by iteration; empty where roles share no cores
    least_ns: int  # of all pushes, from handing over to arrival


def measure_network(
    recorded: Sequence[Events],
    servers: int,
    limits_bps: Sequence[int | None] = (),
    server_limits_bps: Sequence[int | None] = (),
    *,
    on_cores: bool = False,
) -> Cluster:
    """The network of the job that recorded ``recorded``.

    A link about which nothing is known has no limit. ``limits_bps``: the payload rate that our
    limiter lets through, for each worker that was limited during the whole run; a link that seems
    faster has sent bursts after pauses. ``server_limits_bps``: those of servers. Where a server was
    limited, transfers may tell of its link instead of the worker's; then a limited worker has its
    limit, and another one the rate to servers without one. A key's first transfer is left out,
    because the server holds it until all workers have sent theirs. ``on_cores``: roles share cores,
    so that servers may stand still. UserError if the times allow no measurement.
    """
    limited = [server for server, limit in enumerate(server_limits_bps) if limit]
    where = served_rows(recorded)
    found = [
        _measure(recorded, events.rows, *where[index], limited, on_cores)
        for index, events in sorted(
            ((i, e) for i, e in enumerate(recorded) if e.table is TRANSFERS),
            key=lambda pair: pair[1].origin.rank,
        )
    ]
    limits_bps = [*limits_bps, *[None] * (len(found) - len(limits_bps))]
    up_bps = [
        _limited(worker.pushes.bandwidth_bps or 0, limit, worker.sent_known and not limited)
        for worker, limit in zip(found, limits_bps, strict=True)
    ]
    down_bps = [
        _limited(worker.answers.bandwidth_bps or up, limit, worker.sent_known and not limited)
        for worker, up, limit in zip(found, up_bps, limits_bps, strict=True)
    ]
    delays_ns = [
        # An acknowledgement comes back after two one-way delays.
        worker.pushes.delay_ns // (1 if worker.has_server_arrivals else 2)
        for worker in found
        if worker.pushes.delay_ns is not None
    ]
    costs_ns = [
        cost_ns
        for worker, limit in zip(found, limits_bps, strict=True)
        if (cost_ns := _message_cost_ns(worker, limit)) is not None
    ]
    hand_over = [worker.hand_over_ns for worker in found if worker.hand_over_ns is not None]
    delay_ns = int(median(delays_ns)) if delays_ns else 0
    stood_ns = usual([worker.standing_ns for worker in found])
    if stood_ns:  # it is in the delay, too, which is not longer than that of any push
        delay_ns = min(delay_ns, *(worker.least_ns for worker in found))
    acks_ns = [ack_ns for worker in found for ack_ns in worker.acks_ns]
    bursts_bytes = [limited_host(limit).burst_bytes for limit in limits_bps]
    return Cluster(
        workers=tuple(map(Host, up_bps, down_bps, bursts_bytes)),
        servers=tuple(map(limited_host, server_limits_bps or (None,) * servers)),
        costs=Costs(
            message_cost_ns=int(median(costs_ns)) if costs_ns else 0,
            delay_ns=delay_ns,
            hand_over_ns=int(median(hand_over)) if hand_over else 0,
            request_lags_ns=of_all([lags_ns for worker in found for lags_ns in worker.lags_ns]),
            ack_lag_ns=max(0, int(median(acks_ns)) - delay_ns) if acks_ns else 0,
            standing_ns=stood_ns,
            answers_bytes=_core.ANSWERS_BYTES,
            sum_ns_per_byte=_sum_ns_per_byte([e.rows for e in recorded if e.table is SERVED_TABLE]),
        ),
    )


def _message_cost_ns(worker: _Worker, limit_bps: int | None) -> int | None:
    """What a push costs beside its bytes; None if that is not known.

    If most pushes have the same size, rate and cost are hard to tell apart. A measured rate above
    the limit then belongs to a cost that is too high: at the limit, pushes take as long altogether.
    """
    cost_ns, rate_bps = worker.pushes.message_cost_ns, worker.pushes.bandwidth_bps
    if cost_ns is None or not (limit_bps and rate_bps and worker.sent_known):
        return cost_ns
    too_short_ns = worker.push_bytes * 8e9 * (1 / limit_bps - 1 / rate_bps)
    return max(0, round(cost_ns - max(0.0, too_short_ns)))


def _limited(rate_bps: int, limit_bps: int | None, sent_known: bool) -> int:
    """The limited rate. Without the times of sending, the measured rate includes queueing."""
    if not limit_bps:
        return rate_bps
    return min(rate_bps or limit_bps, limit_bps) if sent_known else limit_bps


def _measure(
    recorded: Sequence[Events],
    rows: Rows,
    tables: Int64Array,
    places: Int64Array,
    limited: Sequence[int],
    on_cores: bool,
) -> _Worker:
    """Measure one worker, whose transfers ``rows`` were served at ``places`` of ``tables``.

    ``limited``: servers whose links were. ``on_cores``: roles share cores.
    """
    arrived_ns, asked_ns, answered_ns = np.zeros((3, len(rows)), np.int64)
    for table in distinct(tables[tables >= 0]).tolist():
        mine = tables == table
        served = recorded[table].rows[places[mine]]
        arrived_ns[mine], answered_ns[mine] = served["arrived_ns"], served["answered_ns"]
        asked_ns[mine] = served["asked_ns"]
    settled = rows["iteration"] > 1
    has_server_arrivals = bool((arrived_ns > 0).any())
    finished_ns = arrived_ns if has_server_arrivals else rows["acked_ns"]
    pushed = settled & (finished_ns > 0)
    answered = settled & (answered_ns > 0) & (rows["pulled_ns"] > 0)
    # Under "stock", neither acknowledgements nor the times of handing over are known.
    own = settled & (rows["priority"] < 0) & (rows["acked_ns"] > 0)
    lags_ns, acks_ns = [], []
    arrived = own & (arrived_ns > 0)
    for table in distinct(tables[arrived]):
        mine = arrived & (tables == table)
        asked, given = mine & (asked_ns > 0), answered & (tables == table)
        lags_ns.append(request_lags_ns(rows["sent_ns"][asked], arrived_ns[asked], asked_ns[asked]))
        ack_ns = acknowledgement_ns(
            arrived_ns[mine], rows["acked_ns"][mine], answered_ns[given], rows["pulled_ns"][given]
        )
        if ack_ns is not None:
            acks_ns.append(ack_ns)
    pushes = _estimate(rows[pushed], rows["sent_ns"][pushed], finished_ns[pushed], limited)
    stood_ns = np.zeros(0, np.int64)
    if on_cores and pushes.bandwidth_bps and arrived.any():
        servers = len(distinct(rows["server"][arrived]))  # their pushes may pass at the same time
        stood_ns = standing_ns(
            rows["iteration"][arrived].astype(np.int64),
            rows["sent_ns"][arrived],
            arrived_ns[arrived],
            rows["size_bytes"][arrived] * 8e9 * servers / pushes.bandwidth_bps,
            _active_ns([recorded[table].rows for table in distinct(tables[arrived]).tolist()]),
        )
    return _Worker(
        pushes=pushes,
        push_bytes=float(rows["size_bytes"][pushed].mean()) if pushed.any() else 0.0,
        answers=_estimate(
            rows[answered], answered_ns[answered], rows["pulled_ns"][answered], limited
        ),
        has_server_arrivals=has_server_arrivals,
        sent_known=bool(own.any()),
        hand_over_ns=hand_over_ns(
            *(rows[name][own] for name in ("ready_ns", "sent_ns", "acked_ns"))
        ),
        lags_ns=tuple(lags_ns),
        acks_ns=tuple(acks_ns),
        standing_ns=stood_ns,
        least_ns=max(0, int((finished_ns - rows["sent_ns"])[pushed].min())) if pushed.any() else 0,
    )


def _active_ns(tables: Sequence[Rows]) -> Int64Array:
    """When the servers of ``tables`` received, summed or answered, in ascending order."""
    times_ns = [rows[name] for rows in tables for name in SERVED_TABLE.times]
    return distinct(np.concatenate([each[each > 0] for each in times_ns]))


def _estimate(
    rows: Rows, begun_ns: Int64Array, finished_ns: Int64Array, limited: Sequence[int]
) -> Estimate:
    """Of the worker's link, from its messages: to servers that are not ``limited``, if there are.

    ``limited``: numbers of servers.
    """
    free = ~np.isin(rows["server"], limited)
    if free.any():
        rows, begun_ns, finished_ns = rows[free], begun_ns[free], finished_ns[free]
    order = np.argsort(finished_ns, kind="stable")
    sizes = rows["size_bytes"].astype(np.int64)
    # Messages of several servers share the link, so each one's end also depends on the others.
    estimate = DirectionEstimate(one_path=len(distinct(rows["server"])) < 2)
    for first in range(0, len(order), _AT_ONCE):
        part = order[first : first + _AT_ONCE]
        estimate.add(begun_ns[part], finished_ns[part], sizes[part])
    found = estimate.estimate()
    if found.bandwidth_bps is not None:
        if found.bandwidth_bps <= 0:
            raise UserError("partitions arrived before they were sent: its roles' clocks differ")
        sustained_bps = _sustained_bps(rows["iteration"][order], sizes[order], finished_ns[order])
        found = replace(found, bandwidth_bps=max(found.bandwidth_bps, sustained_bps))
    return found


def _sustained_bps(iterations: Int64Array, sizes: Int64Array, finished_ns: Int64Array) -> int:
    """The rate at which the link carried half an iteration's bytes: it is at least that fast.

    Takes the fastest half of each iteration, and the median of these. 0 if too few bytes were sent.
    The arguments describe messages, in the order of ``finished_ns``.
    """
    half_bytes = int(sizes.sum()) // (2 * max(1, len(distinct(iterations))))
    if half_bytes < _SUSTAINED_BYTES:
        return 0
    passed_bytes = np.cumsum(sizes)
    last = np.searchsorted(passed_bytes, passed_bytes + half_bytes)
    first = np.flatnonzero(last < len(sizes))
    last = last[first]
    moved_bytes = passed_bytes[last] - passed_bytes[first] - BURST_BYTES
    rates_bps = moved_bytes * 8e9 / np.maximum(1, finished_ns[last] - finished_ns[first])
    return int(median([rates_bps[each].max() for each in groups(iterations[first])] or [0]))


def _sum_ns_per_byte(tables: Sequence[Rows]) -> float:
    """The time per byte of all passes over all bytes; one pass may sum two pushes."""
    took_ns = size_bytes = 0
    for rows in tables:
        passes = distinct(rows[["key", "sum_begin_ns", "sum_end_ns"]])
        took_ns += int((passes["sum_end_ns"] - passes["sum_begin_ns"]).sum())
        size_bytes += int(rows["size_bytes"].sum())
    return took_ns / size_bytes if size_bytes else 0.0
