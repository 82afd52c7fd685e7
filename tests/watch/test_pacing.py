"""Iterations from several workers' status files, and who comes last."""

from __future__ import annotations

import json
from typing import Any

from byteprophet.watch.live_file import LiveStatus
from byteprophet.watch.pacing import Lateness, Pacing, straggler_of

from .hand_made import MS_NS, status


def parsed(content: dict[str, Any]) -> LiveStatus:
    return LiveStatus.model_validate_json(json.dumps(content))


def files(*starts_ms: list[float], **fields: Any) -> dict[str, LiveStatus]:
    """Files of workers whose iterations 1, 2, ... began at these times."""
    found = {}
    for rank, times in enumerate(starts_ms):
        starts = [[number, round(at * MS_NS)] for number, at in enumerate(times, 1)]
        found[f"worker-{rank}"] = parsed(status(rank, starts=starts, **fields))
    return found


def test_the_slowest_worker_counts() -> None:
    pacing = Pacing()
    pacing.add(files([0, 100, 210], [0, 120, 205]))
    assert pacing.slowest_ns() == [(1, 120 * MS_NS), (2, 110 * MS_NS)]
    assert pacing.median_ns("worker-0") == 105 * MS_NS
    assert pacing.median_ns("worker-7") is None


def test_long_iterations_are_no_pauses_but_a_gap_among_short_ones_is() -> None:
    hour = 3_600_000
    hourly, short = Pacing(), Pacing()
    hourly.add(files([0, hour, 2 * hour]))
    assert hourly.median_ns("worker-0") == hour * MS_NS
    short.add(files([0, 100, 200, 300, hour, hour + 100]))
    assert [ns for _, ns in short.slowest_ns()] == [100 * MS_NS] * 4


def test_iterations_that_a_file_has_lost_leave_a_gap() -> None:
    pacing = Pacing()
    pacing.add({"worker-0": parsed(status(starts=[[1, 0], [2, 5]]))})
    pacing.add({"worker-0": parsed(status(starts=[[7, 100], [8, 106]]))})
    assert pacing.slowest_ns() == [(1, 5), (7, 6)]


def test_numbers_that_begin_anew() -> None:
    pacing = Pacing()
    pacing.add({"worker-0": parsed(status(starts=[[1, 10], [2, 20], [3, 30]]))})
    pacing.add({"worker-0": parsed(status(starts=[[2, 20], [3, 30], [1, 90], [2, 97]]))})
    assert pacing.slowest_ns() == [(1, 7)]
    pacing.add({"worker-0": parsed(status(pid=7, starts=[[1, 200], [2, 209]]))})
    assert pacing.slowest_ns() == [(1, 9)]


def test_who_comes_last_on_one_machine() -> None:
    times = [100.0 * n for n in range(12)]
    pacing = Pacing()
    pacing.add(files(times, [at + 7 for at in times]))
    late = pacing.lateness()
    assert (late["worker-1"].last, late["worker-1"].of) == (12, 12)
    assert late["worker-1"].behind_ns == 7 * MS_NS
    assert late["worker-0"].behind_ns == 0
    assert pacing.one_clock
    assert straggler_of(late, 100 * MS_NS, {}, one_clock=True) == "worker-1"
    assert straggler_of(late, 1000 * MS_NS, {}, one_clock=True) is None  # 7 ms of a second
    assert straggler_of(late, None, {}, one_clock=True) is None


def test_a_worker_with_a_slow_link_is_seen_by_who_waits_at_servers() -> None:
    late = {"a": Lateness(1, 50, 0), "b": Lateness(48, 50, 1), "c": Lateness(1, 50, 0)}
    waits = {"a": 180 * MS_NS, "b": 5 * MS_NS, "c": 90 * MS_NS}
    second = 1000 * MS_NS
    for one_clock in (True, False):
        assert straggler_of(late, second, waits, one_clock=one_clock) == "b"
    for few in ({**waits, "c": 15 * MS_NS}, {"a": waits["a"], "b": waits["b"]}):
        assert straggler_of(late, second, few, one_clock=True) is None
    shorter = {**late, "b": Lateness(6, 9, 0)}
    assert straggler_of(shorter, second, waits, one_clock=True) is None


def test_who_comes_last_among_machines_by_their_wall_clocks() -> None:
    """The monotonic clocks are an hour apart; the wall clocks agree."""
    times = [100.0 * n for n in range(12)]
    one = files(times)["worker-0"]
    hour = 3_600_000
    starts = [[n, round((at + hour + 9) * MS_NS)] for n, at in enumerate(times, 1)]
    other = parsed(
        status(1, machine="there", starts=starts, monotonic_ns=one.monotonic_ns + hour * MS_NS)
    )
    pacing = Pacing()
    pacing.add({"worker-0": one, "worker-1": other})
    late = pacing.lateness()
    assert late["worker-1"].behind_ns == 9 * MS_NS
    assert not pacing.one_clock
    # Wall clocks may be wrong by as much; that the other one waits for answers cannot be.
    for waits, found in (({}, None), ({"worker-0": 9 * MS_NS, "worker-1": 0}, "worker-1")):
        assert straggler_of(late, 100 * MS_NS, waits, one_clock=pacing.one_clock) == found


def test_alone_nobody_comes_last() -> None:
    pacing = Pacing()
    pacing.add(files([0, 100, 200]))
    assert pacing.lateness() == {}
