"""What a recorded job's network did: links, message cost, delay, the servers' sums.

From transfers and, where servers recorded, from what they say: then a push is timed from the worker
to the server, without its acknowledgement. Times of different machines must be on one clock.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from byteprophet.graph.ps_job import Network
from byteprophet.network.estimate import DirectionEstimate, Estimate
from byteprophet.timeline.events import Events
from byteprophet.timeline.joined import served_rows
from byteprophet.timeline.tables import SERVED_TABLE, TRANSFERS, Rows

_AT_ONCE = 64  # messages


def measure_network(recorded: Sequence[Events], servers: int) -> Network:
    """The network of the job that left ``recorded``; a link of which nothing is known: no limit.

    A key's first transfer is left out: the server holds it until all workers have sent theirs.
    """
    where = served_rows(recorded)
    estimates: list[Estimate] = []
    with_arrivals = False
    for index, events in sorted(
        ((i, e) for i, e in enumerate(recorded) if e.table is TRANSFERS),
        key=lambda pair: pair[1].origin.rank,
    ):
        rows = events.rows
        tables, places = where[index]
        finished_ns = rows["acked_ns"].copy()
        known = tables >= 0
        if known.any():
            with_arrivals = True
            for table in np.unique(tables[known]).tolist():
                mine = tables == table
                finished_ns[mine] = recorded[table].rows["arrived_ns"][places[mine]]
        wanted = (rows["iteration"] > 1) & (known | ~known.any())
        estimates.append(_estimate(rows[wanted], finished_ns[wanted]))
    delays_ns = [found.delay_ns for found in estimates if found.delay_ns is not None]
    costs_ns = [found.message_cost_ns for found in estimates if found.message_cost_ns is not None]
    delay_ns = int(np.median(delays_ns)) if delays_ns else 0
    return Network(
        worker_bps=tuple(found.bandwidth_bps or 0 for found in estimates),
        server_bps=(0,) * servers,
        message_cost_ns=int(np.median(costs_ns)) if costs_ns else 0,
        # An acknowledgement is back after two.
        delay_ns=delay_ns if with_arrivals else delay_ns // 2,
        sum_ns_per_byte=_sum_ns_per_byte([e.rows for e in recorded if e.table is SERVED_TABLE]),
    )


def _estimate(rows: Rows, finished_ns: np.ndarray) -> Estimate:
    order = np.argsort(finished_ns, kind="stable")
    sent_ns, finished_ns = rows["sent_ns"][order], finished_ns[order]
    sizes = rows["size_bytes"][order].astype(np.int64)
    estimate = DirectionEstimate()
    for first in range(0, len(order), _AT_ONCE):
        part = slice(first, first + _AT_ONCE)
        estimate.add(sent_ns[part], finished_ns[part], sizes[part])
    return estimate.estimate()


def _sum_ns_per_byte(tables: Sequence[Rows]) -> float:
    """Time of all passes over all bytes; one pass may sum two pushes."""
    took_ns = size_bytes = 0
    for rows in tables:
        passes = np.unique(rows[["key", "sum_begin_ns", "sum_end_ns"]])
        took_ns += int((passes["sum_end_ns"] - passes["sum_begin_ns"]).sum())
        size_bytes += int(rows["size_bytes"].sum())
    return took_ns / size_bytes if size_bytes else 0.0
