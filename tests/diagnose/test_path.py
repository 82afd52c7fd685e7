"""The critical path of jobs whose times are known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from byteprophet.diagnose.path import Path, critical_path, inside_ns
from byteprophet.diagnose.recorded import Recorded
from byteprophet.timeline.events import Events
from byteprophet.timeline.tables import SERVED_TABLE, SPANS, Kind

from ..measure.recorded_replay import config_of, record
from ..measure.test_servers import a_job
from .hand_made import (
    CONFIG,
    MS,
    NUMBERS,
    at,
    collective_job,
    ps_job,
    recorded,
    span,
    stock_job,
    table,
)


def steps(events: list[Events], iteration: int) -> list[tuple[str, str, str, float, float]]:
    """Kind, name, where, begin and end in ms of the iteration with this number."""
    run = recorded(events, CONFIG)
    ahead_ns = run.workers[0].ahead_ns
    begin_ns = at(iteration, 0) + ahead_ns
    return [
        (
            step.kind,
            step.name,
            step.where,
            (step.begin_ns - begin_ns) / MS,
            (step.end_ns - begin_ns) / MS,
        )
        for step in critical_path(run).steps
        if begin_ns < step.end_ns <= begin_ns + 100 * MS
    ]


def by_iteration(run: Recorded, path: Path) -> dict[str, np.ndarray]:
    """Time per kind of step and iteration, (I,) each."""
    own = run.workers[path.worker]
    found: dict[str, np.ndarray] = {}
    for step in path.steps:
        inside = np.minimum(own.ends_ns, step.end_ns) - np.maximum(own.starts_ns, step.begin_ns)
        found[step.kind] = found.get(step.kind, 0) + np.maximum(0, inside)
    return found


def test_parameter_server() -> None:
    """On worker 0 through the sum; before it on worker 1, whose push was last."""
    assert steps(ps_job(), 13) == [
        ("queued", "w", "worker 1 up", -10, 1),
        ("push", "w", "worker 1 up", 1, 10),
        ("to sum", "w", "server 0", 10, 12),
        ("sum", "w", "server 0", 12, 14),
        ("answer", "w", "server 0", 14, 16),
        ("pull", "w", "worker 0 down", 16, 24),
        ("other", "w", "worker 0", 24, 25),
        ("update", "w", "worker 0", 25, 29),
        ("other", "w", "worker 0", 29, 30),
        ("forward", "w", "worker 0", 30, 50),
        ("backward", "w", "worker 0", 50, 90),
        ("other", "", "worker 0", 90, 100),
    ]
    assert steps(ps_job(), 12)[-3:] == [
        ("other", "w", "worker 1", 29, 30),
        ("forward", "w", "worker 1", 30, 50),
        ("backward", "w", "worker 1", 50, 90),
    ]


def test_steps_sum_to_iterations() -> None:
    run = recorded(ps_job(), CONFIG)
    path = critical_path(run)
    kinds = by_iteration(run, path)
    last = {kind: float(times[-1]) / MS for kind, times in kinds.items() if times[-1]}
    assert last == {
        "queued": 1,
        "push": 9,
        "to sum": 2,
        "sum": 2,
        "answer": 2,
        "pull": 8,
        "update": 4,
        "forward": 20,
        "backward": 40,
        "other": 12,
    }
    assert sum(kinds.values()).tolist() == [100 * MS] * len(NUMBERS)  # type: ignore[attr-defined]


def test_time_of_steps_inside_iterations() -> None:
    """Also where there is time between these that counts for none."""
    whole = recorded(ps_job(), CONFIG)
    path = critical_path(whole)
    apart = [
        replace(w, starts_ns=w.starts_ns + 7, ends_ns=w.ends_ns - 9 * MS) for w in whole.workers
    ]
    for run in (whole, replace(whole, workers=apart)):
        sums: dict[str, int] = {}
        for step, time_ns in zip(path.steps, inside_ns(run, path).tolist(), strict=True):
            sums[step.kind] = sums.get(step.kind, 0) + time_ns
        assert sums == {kind: times.sum() for kind, times in by_iteration(run, path).items()}


def test_times_of_a_sum_that_are_not_known_are_left_out() -> None:
    """The rest of the path stays as it is: what comes before it was not lost."""
    events = ps_job()
    for table_of in events:
        if table_of.table is SERVED_TABLE:
            last = table_of.rows["round"] == NUMBERS[-1] - NUMBERS[0]
            table_of.rows["sum_begin_ns"][last] = table_of.rows["sum_end_ns"][last] = 0
    expected = [each for each in steps(ps_job(), 13) if each[0] not in ("answer", "sum", "to sum")]
    expected.insert(2, ("to sum", "w", "server 0", 10, 16))
    assert steps(events, 13) == expected


def test_servers_that_recorded_nothing() -> None:
    events = [table for table in ps_job() if table.table is not SERVED_TABLE]
    assert steps(events, 12)[-1] == ("queued", "w", "worker 0 up", 90, 92)
    assert steps(events, 13)[:2] == [
        ("push", "w", "worker 0 up", -8, 18),
        ("pull", "w", "worker 0 down", 18, 24),
    ]


def test_collectives_begin_with_the_last_rank() -> None:
    assert steps(collective_job(), 12) == [
        ("forward", "layer", "worker 1", 0, 20),
        ("backward", "layer", "worker 1", 20, 70),
        ("collective", "bucket 0", "all ranks", 70, 90),
        ("update", "optimizer", "worker 1", 90, 98),
        ("other", "", "worker 1", 98, 100),
    ]
    assert steps(collective_job(), 13)[-1] == ("other", "", "worker 0", 98, 100)


def test_a_collective_that_nobody_waited_for_is_not_on_the_path() -> None:
    """Bucket 0 is under way in a pause of the script, from 60 to 62; bucket 1 is what ends last."""
    tables = []
    for rank in range(2):
        spans = []
        for number in NUMBERS:
            spans += [
                span(number, Kind.ITERATION, 0, 0, 100),
                span(number, Kind.BACKWARD, 1, 0, 60),
                {**span(number, Kind.COLLECTIVE, 2, 40, 80), "lane": 1},
                {**span(number, Kind.COLLECTIVE, 3, 62, 90), "lane": 2},
            ]
        names = ["iteration", "layer", "bucket 0", "bucket 1"]
        tables.append(table(SPANS, f"worker-{rank}", spans, names))
    assert [step[0::3] for step in steps(tables, 12)] == [
        ("backward", 0),
        ("other", 60),
        ("collective", 62),
        ("other", 90),
    ]


def test_stock() -> None:
    assert steps(stock_job(), 13) == [
        ("forward", "layer", "worker 1", 0, 20),
        ("backward", "layer", "worker 1", 20, 60),
        ("push", "tensor 0", "worker 1 up", 60, 80),
        ("to sum", "tensor 0", "server 0", 80, 82),
        ("sum", "tensor 0", "server 0", 82, 84),
        ("answer", "tensor 0", "server 0", 84, 86),
        ("pull", "tensor 0", "worker 0 down", 86, 100),
    ]


def test_a_slow_link_is_to_blame() -> None:
    """A policy that overlaps all it can, on links too slow for the job: the path is links."""
    job = a_job("prophet")
    hosts = job.cluster.workers
    slow = tuple(
        replace(host, up_bps=host.up_bps // 4, down_bps=host.down_bps // 4) for host in hosts
    )
    job = replace(job, cluster=replace(job.cluster, workers=slow))
    run = recorded(record(job)[0], config_of(job))
    path = critical_path(run)
    kinds = by_iteration(run, path)
    total = sum(times.sum() for times in kinds.values())
    links = sum(kinds[kind].sum() for kind in ("link busy", "push", "pull") if kind in kinds)
    assert links / total > 0.9
    own = run.workers[path.worker]
    assert np.array_equal(sum(kinds.values()), own.ends_ns - own.starts_ns)
