"""Which iterations of a run count, and what is said of one that lacks something."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from byteprophet.diagnose.breakdown import PARTS, breakdown
from byteprophet.diagnose.recorded import load_recorded
from byteprophet.diagnose.stragglers import stragglers
from byteprophet.errors import UserError
from byteprophet.measure.run import Run
from byteprophet.timeline.events import Events, events_path, save_events
from byteprophet.timeline.tables import SERVED_TABLE, SPANS, TRANSFERS, Kind

from ..timeline.made_up import SECOND, origin
from .hand_made import CONFIG, MS, NUMBERS, collective_job, ps_job, recorded, stock_job


def renumbered(events: list[Events], less: int) -> list[Events]:
    """Iterations that count from another number."""
    for table in events:
        if table.table is not SERVED_TABLE:
            table.rows["iteration"] -= less
    return events


def test_iterations() -> None:
    run = recorded(ps_job(), CONFIG)
    assert run.iterations.tolist() == list(NUMBERS)
    assert run.iteration_ns.tolist() == [100 * MS] * 3
    assert run.window_ns[1] - run.window_ns[0] == 300 * MS
    # Warm-up is left out, but not more than half.
    assert recorded(renumbered(ps_job(), 10), CONFIG).iterations.tolist() == [2, 3]
    assert recorded(renumbered(ps_job(), 6), CONFIG).iterations.tolist() == [6, 7]


def test_an_iteration_lasts_until_the_last_worker_begins_the_next() -> None:
    """Workers that are late in turn: their own times would add up to more than the job took."""
    late_ms = {0: (0, 30, 0, 0), 1: (20, 0, 20, 20)}  # of iterations 11, 12, 13 and the end
    events = ps_job()
    for events_of in events:
        if events_of.table is SPANS:
            late = late_ms[events_of.origin.rank]
            rows = events_of.rows
            whole = np.flatnonzero(rows["kind"] == Kind.ITERATION)
            rows["begin_ns"][whole] += np.array(late[:-1]) * MS
            rows["end_ns"][whole] += np.array(late[1:]) * MS
    run = recorded(events, CONFIG)
    assert run.iteration_ns.tolist() == [110 * MS, 90 * MS, 100 * MS]
    assert run.iteration_ns.sum() == run.window_ns[1] - max(w.starts_ns[0] for w in run.workers)


def test_rounds_are_joined() -> None:
    run = recorded(ps_job(), CONFIG)
    for rank, worker in enumerate(run.workers):
        assert (worker.served >= 0).all()
        assert (run.served["worker"][worker.served] == rank).all()
        assert (run.served["arrived_ns"][worker.served] < worker.transfers["pulled_ns"]).all()


def test_without_spans_iterations_are_from_ready_to_ready() -> None:
    run = recorded([table for table in ps_job() if table.table is TRANSFERS], CONFIG)
    assert run.iterations.tolist() == [11, 12]
    assert run.iteration_ns.tolist() == [100 * MS] * 2
    assert [note.split(":")[0] for note in run.notes] == ["no spans", "servers recorded nothing"]


def test_notes() -> None:
    assert not recorded(ps_job(), CONFIG).notes
    assert not recorded(collective_job(), {}).notes
    assert [note.split(":")[0] for note in recorded(stock_job(), CONFIG).notes] == ["no transfers"]


def test_steps_of_several_optimizers_are_noted() -> None:
    events = ps_job()
    for place, table in enumerate(events):
        if table.table is SPANS:
            steps = table.rows["kind"] != Kind.ITERATION
            events[place] = replace(table, rows=table.rows[steps])
    notes = [note.split(":")[0] for note in recorded(events, CONFIG).notes]
    assert notes == ["several optimizers"]


def test_order_of_arrival_is_noted(tmp_path: Path) -> None:
    for table in ps_job():
        save_events(events_path(tmp_path, table.table, table.origin.role), table)
    plan = {
        "schema": 1, "number": 2, "at_iteration": 7, "settings": {"in_order": 0}, "ready": [],
        "blocks": [], "predicted_iteration_ns": 1, "reason": "",
    }  # fmt: skip
    path = tmp_path / "plan.json"
    for content, noted in (
        (json.dumps(plan), 0),
        (json.dumps({**plan, "settings": {"in_order": 1}}), 1),
        ("{", 0),  # a replay says so
    ):
        path.write_text(content)
        notes = [n for n in load_recorded(Run(tmp_path)).notes if "order of arrival" in n]
        assert len(notes) == noted
        assert all("from iteration 7 on" in note for note in notes)


def test_local_ranks() -> None:
    """Processes 0 and 2 push; a server calls them 0 and 1, which says nothing of process 1."""
    events = []
    for one in ps_job():
        if one.origin.role == "worker-1":
            if one.table is SPANS:
                events += [replace(one, origin=origin(f"worker-{rank}")) for rank in (1, 2, 3)]
            else:
                events.append(replace(one, origin=origin("worker-2")))
        else:
            events.append(one)
    run = recorded(events, {**CONFIG, "local_ranks": 2})
    assert [note.split(":")[0] for note in run.notes] == ["several local ranks"]
    assert not len(run.served)
    found = breakdown(run)
    assert not found.blamed_ns.any()
    assert not found.parts_ns[..., PARTS.index("others")].any()
    assert stragglers(run).meetings == 0
    # A worker with one process has all of it.
    assert len(recorded(ps_job(), {**CONFIG, "local_ranks": 1}).served)


def test_machines_whose_clocks_are_apart() -> None:
    """Worker 1's clock is an hour ahead: its pushes and answers say by how much, nearly."""
    hour_ns = 3600 * SECOND
    events = []
    for one in ps_job():
        if one.origin.role != "worker-1":
            events.append(one)
            continue
        rows = one.rows.copy()
        for name in one.table.times:
            rows[name] += hour_ns
        events.append(replace(one, rows=rows, origin=replace(one.origin, machine="elsewhere")))
    run = recorded(events, CONFIG)
    apart_ns = run.workers[1].starts_ns - run.workers[0].starts_ns
    assert (abs(apart_ns) < 10 * MS).all()  # less than a round trip
    assert abs(run.workers[1].ahead_ns - run.workers[0].ahead_ns + hour_ns) < 10 * MS


def test_what_cannot_be_diagnosed(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nothing: there is no such run directory"):
        load_recorded(Run(tmp_path / "nothing"))
    with pytest.raises(UserError, match=r"has no recorded events: run the job with --record"):
        load_recorded(Run(tmp_path))
    for table in ps_job():
        if table.table is SPANS:
            save_events(
                events_path(tmp_path, SPANS, table.origin.role),
                replace(table, rows=table.rows[table.rows["kind"] != 0]),
            )
    with pytest.raises(UserError, match=f"^{tmp_path}: no iteration was recorded completely"):
        load_recorded(Run(tmp_path))
    path = events_path(tmp_path, SPANS, "worker-0")
    path.write_bytes(b"something else")
    with pytest.raises(UserError, match=f"^{path}: is not a file of events"):
        load_recorded(Run(tmp_path))
