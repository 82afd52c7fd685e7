"""Breakdowns of jobs whose times are known; and that parts always sum to the iteration."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings

from byteprophet.diagnose.breakdown import PARTS, breakdown
from byteprophet.diagnose.path import critical_path
from byteprophet.errors import UserError
from byteprophet.timeline.events import Events
from byteprophet.timeline.tables import SERVED_TABLE, SPANS, TRANSFERS

from ..measure.recorded_replay import config_of, record
from ..measure.test_servers import a_job
from ..thorough import examples
from .hand_made import CONFIG, MS, collective_job, ps_job, recorded, stock_job
from .whole_jobs import jobs


def parts_ms(events: list[Events], worker: int, iteration: int) -> dict[str, float]:
    """The parts that are not 0, in ms."""
    found = breakdown(recorded(events, CONFIG)).parts_ns[worker, iteration]
    return {part: time / MS for part, time in zip(PARTS, found.tolist(), strict=True) if time}


def test_parameter_server() -> None:
    worker_0 = {"forward": 20, "backward": 40, "update": 4}
    assert parts_ms(ps_job(), 0, 1) == {**worker_0, "communication": 18, "others": 6, "other": 12}
    assert parts_ms(ps_job(), 1, 2) == {**worker_0, "communication": 20, "other": 16}
    # Nothing is known of what the first wait was for.
    assert parts_ms(ps_job(), 0, 0) == {
        "forward": 20,
        "backward": 40,
        "communication": 30,
        "other": 10,
    }


def test_who_is_blamed_and_what_was_waited_for() -> None:
    found = breakdown(recorded(ps_job(), CONFIG))
    assert found.blamed_ns.tolist() == [[0, 2 * 6 * MS], [0, 0]]
    assert {name: times.tolist() for name, times in found.waits_ns.items()} == {
        "w": [[30 * MS] * 3] * 2
    }


def test_servers_that_recorded_nothing() -> None:
    events = [table for table in ps_job() if table.table is not SERVED_TABLE]
    found = parts_ms(events, 0, 1)
    assert found["communication"] == 24
    assert "others" not in found


def test_collectives() -> None:
    both = {"forward": 20, "update": 8, "other": 2}
    assert parts_ms(collective_job(), 0, 0) == {
        **both,
        "backward": 40,
        "communication": 20,
        "others": 10,
    }
    assert parts_ms(collective_job(), 1, 0) == {**both, "backward": 55, "communication": 15}


def test_stock() -> None:
    both = {"forward": 20, "backward": 40}
    assert parts_ms(stock_job(), 0, 0) == {**both, "communication": 30, "others": 10}
    assert parts_ms(stock_job(), 1, 0) == {**both, "communication": 40}


def test_no_spans() -> None:
    events = [table for table in ps_job() if table.table is TRANSFERS]
    assert parts_ms(events, 0, 0) == {"other": 100}


@pytest.mark.parametrize("scheduler", ["fifo", "bytescheduler", "prophet"])
def test_a_replayed_job(scheduler: str) -> None:
    """Layers take what they were told to; all else is waits and backward, which is a gap here."""
    job = a_job(scheduler)
    run = recorded(record(job)[0], config_of(job))
    found = breakdown(run)
    chosen = run.iterations - 1
    lengths_ns = np.stack([worker.ends_ns - worker.starts_ns for worker in run.workers])
    assert np.array_equal(found.parts_ns.sum(axis=2), lengths_ns)
    forward_ns = found.parts_ns[..., PARTS.index("forward")]
    assert np.array_equal(forward_ns, job.times.forward_ns[:, chosen].sum(axis=2))
    # Nothing covers backward there but updates of the iteration before.
    rest_ns = found.parts_ns[..., [PARTS.index("other"), PARTS.index("update")]].sum(axis=2)
    assert (rest_ns >= job.times.backward_ns[:, chosen]).all()


@given(events=jobs())
@settings(max_examples=examples(40, 150))
def test_whatever_was_recorded_sums_up(events: list[Events]) -> None:
    try:
        run = recorded(events, {})
    except UserError:
        return
    found = breakdown(run)
    lengths_ns = np.stack([worker.ends_ns - worker.starts_ns for worker in run.workers])
    assert np.array_equal(found.parts_ns.sum(axis=2), lengths_ns)
    assert (found.parts_ns >= 0).all()
    path = critical_path(run)
    assert path.steps[0].begin_ns == run.workers[path.worker].starts_ns[0]
    assert path.steps[-1].end_ns == run.workers[path.worker].ends_ns[-1]
    for before, after in pairwise(path.steps):
        assert before.begin_ns < before.end_ns == after.begin_ns


def test_spans_alone() -> None:
    """No transfers, no servers, no collectives: a wait is communication."""
    events = [table for table in ps_job() if table.table is SPANS]
    assert parts_ms(events, 0, 1)["communication"] == 30
