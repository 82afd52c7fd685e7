"""What users are told about clocks: all findings, and a warning if clocks cannot be aligned."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from byteprophet.timeline.aligned import align_events
from byteprophet.timeline.aligned_summary import clock_warnings, clocks_json, warn_of_clocks
from byteprophet.timeline.tables import SPANS

from .own_machines import on_machine, recorded, set_in_mid_run, small_job, with_clocks
from .true_clocks import TrueClock

CLOCKS = {
    "worker-0": TrueClock(10**15 + 40_000_000, 50_000),
    "worker-1": TrueClock(-3_000_000, -20_000),
    "server-0": TrueClock(10**12),
    "server-1": TrueClock(0, 1_000),
}


def test_machines_and_their_clocks() -> None:
    aligned = align_events(with_clocks(recorded(small_job()), CLOCKS))
    told = json.loads(json.dumps(clocks_json(aligned)))
    assert told["reference"] == "machine of server-0"
    assert told["contradictions"] == []
    machines = {machine["roles"][0]: machine for machine in told["machines"]}
    assert set(machines) == set(CLOCKS)
    for role, machine in machines.items():
        clock, home = CLOCKS[role], CLOCKS["server-0"]
        low_ns, high_ns = machine["interval_ns"]
        assert low_ns <= 0 <= high_ns
        # At the recording's middle, some 10^15 ns on the true clock, drifts have accumulated.
        drifted_ns = (clock.drift_ppb - home.drift_ppb) * 10**6
        ahead_ns = clock.offset_ns - home.offset_ns + drifted_ns
        assert machine["offset_ns"] == pytest.approx(ahead_ns, abs=10**6)
        assert machine["drift_ppm"] == pytest.approx(clock.drift_ppb / 1000, abs=10_000)
    home_machine = machines["server-0"]
    assert (home_machine["offset_ns"], home_machine["interval_ns"]) == (0, [0, 0])
    assert clock_warnings(aligned) == []


def test_wall_clocks_that_are_wrong() -> None:
    """``wall_ns`` compares the wall clocks, independent of what the monotonic clocks count from."""
    events = with_clocks(recorded(small_job()), {role: TrueClock(0) for role in CLOCKS})
    events = [
        replace(t, origin=replace(t.origin, unix_ns=t.origin.unix_ns + 30_000_000))
        if t.origin.role == "worker-1"
        else t
        for t in events
    ]
    machines = clocks_json(align_events(events))["machines"]
    walls_ns = {machine["roles"][0]: machine["wall_ns"] for machine in machines}
    assert walls_ns["server-0"] == 0
    assert walls_ns["worker-1"] == pytest.approx(30_000_000, abs=10**6)
    assert walls_ns["worker-0"] == pytest.approx(0, abs=10**6)


def test_one_machine_is_sure_of_its_clock() -> None:
    events = recorded(small_job())
    for role in CLOCKS:
        events = on_machine(events, role, "here")
    told = clocks_json(align_events(events))
    assert told == {
        "reference": None,
        "reference_ns": None,
        "machines": [
            {
                "machine": "here",
                "roles": sorted(CLOCKS),
                "offset_ns": 0,
                "wall_ns": 0,
                "drift_ppm": 0.0,
                "interval_ns": [0, 0],
            }
        ],
        "contradictions": [],
    }


def test_a_clock_that_was_set_is_named_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    events = set_in_mid_run(with_clocks(recorded(small_job()), CLOCKS), "worker-1", 10_000_000)
    aligned = align_events(events)
    warn_of_clocks(aligned)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("byteprophet: warning: clocks of ")
    assert "worker-1" in line
    assert "server-" in line
    assert "machine of" not in line
    assert "ms too early for its cause" in line
    told = json.loads(json.dumps(clocks_json(aligned)))
    worst = told["contradictions"][0]
    assert "machine of worker-1" in (worst["cause_machine"], worst["effect_machine"])
    # Any straight line through the jump leaves an error of at least half of it.
    assert worst["early_ns"] > 1_000_000


def test_clocks_that_cannot_be_aligned_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    events = [table for table in recorded(small_job()) if table.table is SPANS]
    aligned = align_events(events)
    warn_of_clocks(aligned)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("byteprophet: warning: the clocks of worker-0; worker-1 are not aligned")
    for machine in clocks_json(aligned)["machines"]:
        assert machine["offset_ns"] is machine["interval_ns"] is None
