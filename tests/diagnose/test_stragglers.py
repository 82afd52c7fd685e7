"""Who is last, in jobs in which one is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from byteprophet.diagnose.stragglers import AT_SERVERS, IN_COLLECTIVES, READY, stragglers
from byteprophet.timeline.tables import SERVED_TABLE, SPANS, TRANSFERS

from ..measure.recorded_replay import config_of, record
from ..measure.test_servers import a_job
from .hand_made import CONFIG, MS, collective_job, ps_job, recorded, stock_job


def test_pushes_at_servers() -> None:
    found = stragglers(recorded(ps_job(), CONFIG))
    assert found.source == AT_SERVERS
    assert found.meetings == 2  # the third is after the last iteration
    assert found.last.tolist() == [0, 2]
    assert found.behind_ns.tolist() == [0, 6 * MS]
    assert stragglers(recorded(stock_job(), CONFIG)).behind_ns.tolist() == [0, 10 * MS]


def test_collectives() -> None:
    found = stragglers(recorded(collective_job(), CONFIG))
    assert (found.source, found.meetings) == (IN_COLLECTIVES, 3)
    assert found.last.tolist() == [0, 3]
    assert found.p90_ns.tolist() == [0, 20 * MS]


def test_ready_gradients_stand_in_for_servers() -> None:
    events = [table for table in ps_job() if table.table is not SERVED_TABLE]
    late = next(t for t in events if t.table is TRANSFERS and t.origin.rank == 0)
    late.rows["ready_ns"] += MS
    found = stragglers(recorded(events, CONFIG))
    assert (found.source, found.meetings) == (READY, 3)
    assert found.last.tolist() == [3, 0]
    assert found.behind_ns.tolist() == [MS, 0]


def test_nothing_recorded_and_nobody_to_meet() -> None:
    events = [table for table in ps_job() if table.table is SPANS]
    assert stragglers(recorded(events, CONFIG)).source == ""
    alone = [table for table in ps_job() if table.origin.role == "worker-0"]
    assert stragglers(recorded(alone, CONFIG)).meetings == 0


def test_a_slow_link_is_found() -> None:
    """Of a replayed job: the worker whose link has half the rate."""
    job = a_job("fifo")
    first, second, third = job.cluster.workers
    slow = replace(second, up_bps=second.up_bps // 2, down_bps=second.down_bps // 2)
    job = replace(job, cluster=replace(job.cluster, workers=(first, slow, third)))
    found = stragglers(recorded(record(job)[0], config_of(job)))
    assert found.last[1] > 0.9 * found.meetings
    assert np.argmax(found.behind_ns) == 1
