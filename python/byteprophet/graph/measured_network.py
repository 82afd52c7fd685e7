"""What a recorded job's network did: links, message cost, delay, the servers' sums.

From transfers and, where servers recorded, from what they say: then a push is timed from the worker
to the server, without its acknowledgement, and an answer from the server to the worker. Times of
different machines must be on one clock. What is not known of answers is taken to be as it is with
pushes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from byteprophet import _core
from byteprophet.errors import UserError
from byteprophet.graph.measured_sending import (
    acknowledgement_ns,
    hand_over_ns,
    of_all,
    request_lags_ns,
)
from byteprophet.graph.model import Int64Array
from byteprophet.graph.ps_job import Network
from byteprophet.network import PAYLOAD_SHARE
from byteprophet.network.estimate import DirectionEstimate, Estimate
from byteprophet.network.namespaces import BURST_BYTES
from byteprophet.timeline.events import Events
from byteprophet.timeline.joined import served_rows
from byteprophet.timeline.tables import SERVED_TABLE, TRANSFERS, Rows

_AT_ONCE = 64  # messages
_SUSTAINED_BYTES = 8 * BURST_BYTES  # at least: what a limiter lets pass at once is little of it


@dataclass(frozen=True)
class _Worker:
    """``with_arrivals``: the delay is one way. ``sent_known``: when pushes were handed over."""

    pushes: Estimate
    answers: Estimate
    with_arrivals: bool
    sent_known: bool
    hand_over_ns: int | None
    lags_ns: tuple[Int64Array, ...]  # of requests, by server
    acks_ns: tuple[int, ...]  # from a push's arrival until the worker knows, by server


def measure_network(
    recorded: Sequence[Events], servers: int, limits_bps: Sequence[int | None] = ()
) -> Network:
    """The network of the job that left ``recorded``; a link of which nothing is known: no limit.

    ``limits_bps``: payload that our limiter lets through, of each worker that has one for all of
    the run. A link that seems faster has had bursts after pauses, which such links have.
    A key's first transfer is left out: the server holds it until all workers have sent theirs.
    UserError where times are such that nothing can be measured.
    """
    where = served_rows(recorded)
    found = [
        _measure(recorded, events.rows, *where[index])
        for index, events in sorted(
            ((i, e) for i, e in enumerate(recorded) if e.table is TRANSFERS),
            key=lambda pair: pair[1].origin.rank,
        )
    ]
    limits_bps = [*limits_bps, *[None] * (len(found) - len(limits_bps))]
    up_bps = [
        _limited(worker.pushes.bandwidth_bps or 0, limit, worker.sent_known)
        for worker, limit in zip(found, limits_bps, strict=True)
    ]
    down_bps = [
        _limited(worker.answers.bandwidth_bps or up, limit, worker.sent_known)
        for worker, up, limit in zip(found, up_bps, limits_bps, strict=True)
    ]
    delays_ns = [
        # An acknowledgement is back after two.
        worker.pushes.delay_ns // (1 if worker.with_arrivals else 2)
        for worker in found
        if worker.pushes.delay_ns is not None
    ]
    costs_ns = [
        worker.pushes.message_cost_ns
        for worker in found
        if worker.pushes.message_cost_ns is not None
    ]
    hand_over = [worker.hand_over_ns for worker in found if worker.hand_over_ns is not None]
    delay_ns = int(np.median(delays_ns)) if delays_ns else 0
    acks_ns = [ack_ns for worker in found for ack_ns in worker.acks_ns]
    return Network(
        worker_bps=tuple(up_bps),
        server_bps=(0,) * servers,
        down_bps=tuple(down_bps),
        message_cost_ns=int(np.median(costs_ns)) if costs_ns else 0,
        delay_ns=delay_ns,
        hand_over_ns=int(np.median(hand_over)) if hand_over else 0,
        request_lags_ns=of_all([lags_ns for worker in found for lags_ns in worker.lags_ns]),
        ack_lag_ns=max(0, int(np.median(acks_ns)) - delay_ns) if acks_ns else 0,
        answers_bytes=_core.ANSWERS_BYTES,
        burst_bytes=int(BURST_BYTES * PAYLOAD_SHARE) if any(limits_bps) else 0,
        sum_ns_per_byte=_sum_ns_per_byte([e.rows for e in recorded if e.table is SERVED_TABLE]),
    )


def _limited(rate_bps: int, limit_bps: int | None, sent_known: bool) -> int:
    """Where it is not known when pushes were sent, what was measured has their queues in it."""
    if not limit_bps:
        return rate_bps
    return min(rate_bps or limit_bps, limit_bps) if sent_known else limit_bps


def _measure(
    recorded: Sequence[Events], rows: Rows, tables: Int64Array, places: Int64Array
) -> _Worker:
    """One worker's, whose transfers ``rows`` were served at ``places`` of ``tables``."""
    arrived_ns, asked_ns, answered_ns = np.zeros((3, len(rows)), np.int64)
    for table in np.unique(tables[tables >= 0]).tolist():
        mine = tables == table
        served = recorded[table].rows[places[mine]]
        arrived_ns[mine], answered_ns[mine] = served["arrived_ns"], served["answered_ns"]
        asked_ns[mine] = served["asked_ns"]
    settled = rows["iteration"] > 1
    with_arrivals = bool((arrived_ns > 0).any())
    finished_ns = arrived_ns if with_arrivals else rows["acked_ns"]
    pushed = settled & (finished_ns > 0)
    answered = settled & (answered_ns > 0) & (rows["pulled_ns"] > 0)
    # Under "stock", nothing is known of acknowledgements, nor when a push was handed over.
    own = settled & (rows["priority"] < 0) & (rows["acked_ns"] > 0)
    lags_ns, acks_ns = [], []
    arrived = own & (arrived_ns > 0)
    for table in np.unique(tables[arrived]):
        mine = arrived & (tables == table)
        asked, given = mine & (asked_ns > 0), answered & (tables == table)
        lags_ns.append(request_lags_ns(rows["sent_ns"][asked], arrived_ns[asked], asked_ns[asked]))
        ack_ns = acknowledgement_ns(
            arrived_ns[mine], rows["acked_ns"][mine], answered_ns[given], rows["pulled_ns"][given]
        )
        if ack_ns is not None:
            acks_ns.append(ack_ns)
    return _Worker(
        pushes=_estimate(rows[pushed], rows["sent_ns"][pushed], finished_ns[pushed]),
        answers=_estimate(rows[answered], answered_ns[answered], rows["pulled_ns"][answered]),
        with_arrivals=with_arrivals,
        sent_known=bool(own.any()),
        hand_over_ns=hand_over_ns(
            *(rows[name][own] for name in ("ready_ns", "sent_ns", "acked_ns"))
        ),
        lags_ns=tuple(lags_ns),
        acks_ns=tuple(acks_ns),
    )


def _estimate(rows: Rows, begun_ns: Int64Array, finished_ns: Int64Array) -> Estimate:
    order = np.argsort(finished_ns, kind="stable")
    sizes = rows["size_bytes"].astype(np.int64)
    # Messages of several servers share the link, and end when others have had their part.
    estimate = DirectionEstimate(one_path=len(np.unique(rows["server"])) < 2)
    for first in range(0, len(order), _AT_ONCE):
        part = order[first : first + _AT_ONCE]
        estimate.add(begun_ns[part], finished_ns[part], sizes[part])
    found = estimate.estimate()
    if found.bandwidth_bps is not None:
        if found.bandwidth_bps <= 0:
            raise UserError("partitions arrived before they were sent: its roles' clocks are apart")
        sustained_bps = _sustained_bps(rows["iteration"][order], sizes[order], finished_ns[order])
        found = replace(found, bandwidth_bps=max(found.bandwidth_bps, sustained_bps))
    return found


def _sustained_bps(iterations: Int64Array, sizes: Int64Array, finished_ns: Int64Array) -> int:
    """What the link has carried over half an iteration's bytes: it is no slower than that.

    The fastest half of each iteration, and of these the median. 0 where too few bytes are sent.
    Arguments: of each message, in the order of ``finished_ns``.
    """
    half_bytes = int(sizes.sum()) // (2 * max(1, len(np.unique(iterations))))
    if half_bytes < _SUSTAINED_BYTES:
        return 0
    passed_bytes = np.cumsum(sizes)
    last = np.searchsorted(passed_bytes, passed_bytes + half_bytes)
    first = np.flatnonzero(last < len(sizes))
    last = last[first]
    moved_bytes = passed_bytes[last] - passed_bytes[first] - BURST_BYTES
    rates_bps = moved_bytes * 8e9 / np.maximum(1, finished_ns[last] - finished_ns[first])
    of = iterations[first]
    return int(np.median([rates_bps[of == iteration].max() for iteration in np.unique(of)] or [0]))


def _sum_ns_per_byte(tables: Sequence[Rows]) -> float:
    """Time of all passes over all bytes; one pass may sum two pushes."""
    took_ns = size_bytes = 0
    for rows in tables:
        passes = np.unique(rows[["key", "sum_begin_ns", "sum_end_ns"]])
        took_ns += int((passes["sum_end_ns"] - passes["sum_begin_ns"]).sum())
        size_bytes += int(rows["size_bytes"].sum())
    return took_ns / size_bytes if size_bytes else 0.0
