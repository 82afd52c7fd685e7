"""Events of a job whose machines' clocks are known come back onto one clock, all of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from byteprophet.timeline.aligned import align_events
from byteprophet.timeline.alignment import TOLERANCE_NS
from byteprophet.timeline.causes import evidence_of
from byteprophet.timeline.clocks import on_one_clock, wall_clock
from byteprophet.timeline.events import Events
from byteprophet.timeline.tables import SERVED_TABLE, SPANS, TRANSFERS

from .own_machines import DELAY_NS, on_machine, recorded, small_job, with_clocks
from .true_clocks import TrueClock

HOME = "server-0"
ROUNDING_NS = 4


def machine_clocks(seed: int) -> dict[str, TrueClock]:
    """Of two workers and two servers, started at different times."""
    rng = np.random.default_rng(seed)
    return {
        role: TrueClock(
            int(rng.integers(10**15) + rng.integers(-50_000_000, 50_000_001)),
            int(rng.integers(-50_000, 50_001)),
        )
        for role in ("worker-0", "worker-1", "server-0", "server-1")
    }


def furthest_ns(events: list[Events], others: list[Events]) -> int:
    """The largest difference of two times."""
    differences = [
        np.abs(table.rows[name] - other.rows[name]).max(initial=0)
        for table, other in zip(events, others, strict=True)
        for name in table.table.times
    ]
    return int(max(differences))


def earliest_ns(events: list[Events]) -> int:
    """The least time from a cause to its effect: negative if order is broken."""
    return min(int((each.effect_ns - each.cause_ns).min()) for each in evidence_of(events))


@pytest.mark.parametrize("seed", range(5))
def test_every_event_comes_back(seed: int) -> None:
    clocks = machine_clocks(seed)
    one_clock = recorded(small_job(seed=seed))
    aligned = align_events(with_clocks(one_clock, clocks))
    assert aligned.alignment is not None
    assert aligned.alignment.reference == f"machine of {HOME}"
    assert not aligned.alignment.contradictions
    assert aligned.apart == ()
    truth = on_one_clock(one_clock, lambda _, times: clocks[HOME].shows(times))
    # Acknowledgements take the delay, pushes at least that, so clocks are off by less than half of
    # what the fastest pushes take longer: some hundred bytes, 20 us for the message, and queues.
    assert furthest_ns(aligned.events, truth) < 4 * DELAY_NS
    for table, true in zip(aligned.events, truth, strict=True):
        clock = aligned.alignment.clocks[f"machine of {table.origin.role}"]
        low, high = clock.interval_ns
        assert low is not None
        assert high is not None
        for name in table.table.times:
            error_ns = true.rows[name] - table.rows[name]
            known = table.rows[name] != 0
            assert np.array_equal(known, true.rows[name] != 0)
            assert np.all(error_ns[known] >= low - ROUNDING_NS)
            assert np.all(error_ns[known] <= high + ROUNDING_NS)
        # All else is as it was, and the wall clock is the reference's.
        assert (table.names, table.lost, table.whole) == (true.names, true.lost, true.whole)
        assert table.origin.machine == aligned.alignment.reference
    (home,) = {t.origin.unix_ns - t.origin.monotonic_ns for t in aligned.events}
    assert home == next(
        t.origin.unix_ns - t.origin.monotonic_ns
        for t in with_clocks(one_clock, clocks)
        if t.origin.role == HOME
    )


@pytest.mark.parametrize("seed", range(5))
def test_causes_stay_in_front_and_nothing_moves_twice(seed: int) -> None:
    clocks = machine_clocks(seed)
    once = align_events(with_clocks(recorded(small_job(seed=seed)), clocks)).events
    assert earliest_ns(once) >= -TOLERANCE_NS - ROUNDING_NS
    # They say that they have one clock: nothing to do. Doubted again, they are found as they are.
    assert align_events(once).alignment is None
    assert all(a is b for a, b in zip(align_events(once).events, once, strict=True))
    doubted = [
        replace(t, origin=replace(t.origin, machine=f"machine of {t.origin.role}")) for t in once
    ]
    twice = align_events(doubted)
    assert twice.alignment is not None
    assert furthest_ns(twice.events, once) <= TOLERANCE_NS
    assert earliest_ns(twice.events) >= -TOLERANCE_NS - ROUNDING_NS


def test_one_clock_that_nobody_knows_of() -> None:
    """Events of one clock move by no more than is stated, and causes stay in front of effects."""
    events = recorded(small_job(workers=3))
    aligned = align_events(events)
    assert aligned.alignment is not None
    stated_ns = [end for c in aligned.alignment.clocks.values() for end in c.interval_ns]
    assert furthest_ns(aligned.events, events) <= max(abs(end or 0) for end in stated_ns)
    assert earliest_ns(aligned.events) >= -TOLERANCE_NS - ROUNDING_NS


def test_one_machine_is_left_alone() -> None:
    events = recorded(small_job())
    for role in ("worker-0", "worker-1", "server-0", "server-1"):
        events = on_machine(events, role, "here")
    aligned = align_events(events)
    assert all(a is b for a, b in zip(aligned.events, events, strict=True))
    assert (aligned.alignment, aligned.apart) == (None, ())
    (machine,) = aligned.machines
    assert str(machine) == "server-0, server-1, worker-0 and 1 more"


def test_roles_of_a_machine_keep_their_distances() -> None:
    one_clock = on_machine(recorded(small_job()), "worker-1", "machine of worker-0")
    fast = TrueClock(10**12, 50_000)
    clocks = {"worker-0": fast, "worker-1": fast, "server-0": TrueClock(), "server-1": TrueClock(9)}
    aligned = align_events(with_clocks(one_clock, clocks))
    assert aligned.alignment is not None
    assert len(aligned.alignment.clocks) == 3
    offsets = {
        int((table.rows["sent_ns"] - true.rows["sent_ns"]).min()) // 1000
        for table, true in zip(aligned.events, one_clock, strict=True)
        if table.table is TRANSFERS
    }
    assert max(offsets) - min(offsets) <= 1  # us


def test_who_is_not_connected_comes_by_the_wall_clock() -> None:
    one_clock = recorded(small_job())
    alone = [t for t in one_clock if t.table is SPANS or t.origin.role != "worker-1"]
    clocks = {
        "worker-0": TrueClock(5 * 10**12),
        "worker-1": TrueClock(7 * 10**13),
        "server-0": TrueClock(10**9, 20_000),
        "server-1": TrueClock(),
    }
    events = with_clocks(alone, clocks)
    aligned = align_events(events)
    assert [str(machine) for machine in aligned.apart] == ["worker-1"]
    wall, after = wall_clock(events), wall_clock(aligned.events)
    for was, now in zip(events, aligned.events, strict=True):
        if was.origin.role == "worker-1":
            was_ns = wall(was.origin, was.rows["begin_ns"])
            assert np.array_equal(after(now.origin, now.rows["begin_ns"]), was_ns)


@pytest.mark.parametrize("what", ["nothing served", "rows lost"])
def test_without_evidence_wall_clocks_are_all_there_is(what: str) -> None:
    clocks = machine_clocks(seed=4)
    events = with_clocks(recorded(small_job()), clocks)
    if what == "nothing served":
        events = [table for table in events if table.table is not SERVED_TABLE]
    else:
        events = [replace(table, lost=1) for table in events]
    aligned = align_events(events)
    assert aligned.alignment is None
    assert len(aligned.apart) == len(aligned.machines) > 1
    before, after = wall_clock(events), wall_clock(aligned.events)
    for was, now in zip(events, aligned.events, strict=True):
        for name in was.table.times:
            was_ns = before(was.origin, was.rows[name])
            assert np.array_equal(after(now.origin, now.rows[name]), was_ns)
    assert len({table.origin.machine for table in aligned.events}) == 1


def test_traces_of_unknown_machines_keep_their_wall_clock() -> None:
    events = recorded(small_job())
    spans = next(table for table in events if table.table is SPANS)
    foreign = replace(spans, origin=replace(spans.origin, machine="", monotonic_ns=5, unix_ns=5))
    aligned = align_events([*events, foreign])
    assert len(aligned.machines) == 4
    assert aligned.apart == ()
    moved = aligned.events[-1]
    wall = wall_clock(aligned.events)
    assert np.array_equal(wall(moved.origin, moved.rows["end_ns"]), foreign.rows["end_ns"])
    assert align_events([foreign]).events[0] is foreign


def test_a_role_on_an_unknown_machine_comes_to_the_only_known_one() -> None:
    """As in a container that hides the boot id: its clock may be another one."""
    one_clock = recorded(small_job())
    for role in ("worker-0", "server-0", "server-1"):
        one_clock = on_machine(one_clock, role, "here")
    ahead_ns = 7 * 10**13
    clocks = {table.origin.role: TrueClock() for table in one_clock}
    events = with_clocks(one_clock, {**clocks, "worker-1": TrueClock(ahead_ns)})
    events = on_machine(events, "worker-1", "")
    aligned = align_events(events)
    assert furthest_ns(aligned.events, one_clock) <= ROUNDING_NS
    assert furthest_ns(align_events(aligned.events).events, one_clock) <= ROUNDING_NS
