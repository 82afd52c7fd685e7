"""Clocks that the experiment gives to roles, and what it says of how they are found again."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import alignment
import numpy as np
import own_clocks
import pytest
import tomli_w

from byteprophet.timeline.clocks import wall_clock
from byteprophet.timeline.events import events_path, save_events
from byteprophet.timeline.read_events import load_run

from ..measure.recorded_replay import config_of
from ..timeline.own_machines import on_machine, recorded, small_job

ROLES = ("server-0", "server-1", "worker-0", "worker-1")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A job of two workers and two servers on one machine."""
    events = recorded(small_job())
    directory = tmp_path / "run"
    directory.mkdir()
    (directory / "config.toml").write_text(tomli_w.dumps(config_of(small_job())))
    for role in ROLES:
        events = on_machine(events, role, "here")
    for table in events:
        save_events(events_path(directory, table.table, table.origin.role), table)
    return directory


def test_clocks_show_what_they_say() -> None:
    clocks = own_clocks.clocks_for(ROLES, 10**15, seed=3)
    assert clocks == own_clocks.clocks_for(ROLES, 10**15, seed=3)
    assert len({clock.machine for clock in clocks.values()}) == len(ROLES)
    times_ns = 10**15 + np.arange(-(10**12), 10**12, 10**11 + 7)
    for clock in clocks.values():
        assert abs(clock.offset_ns) <= 50_000_000
        assert abs(clock.drift_ppb) <= 50_000
        for time_ns, shown_ns in zip(
            times_ns.tolist(), clock.shows(times_ns).tolist(), strict=True
        ):
            gained_ns = Fraction((time_ns - 10**15) * clock.drift_ppb, 10**9)
            exact_ns = time_ns + clock.boot_ns + clock.offset_ns + gained_ns
            assert 0 <= exact_ns - shown_ns < 1


def test_machines_wall_clocks_are_as_wrong_as_their_own(run: Path, tmp_path: Path) -> None:
    clocks = own_clocks.clocks_for(ROLES, 10**15, seed=1)
    was = load_run(run)
    apart = load_run(own_clocks.rewrite(run, tmp_path / "apart", clocks))
    walls = load_run(own_clocks.rewrite(run, tmp_path / "walls", own_clocks.by_wall_clocks(clocks)))
    shared = was[0].origin.unix_ns - was[0].origin.monotonic_ns
    to_unix = wall_clock(apart)
    for true, own, wall in zip(was, apart, walls, strict=True):
        clock = clocks[true.origin.role]
        assert own.origin.machine == clock.machine
        assert wall.origin.machine == "one"
        for name in true.table.times:
            times_ns = true.rows[name]
            known = times_ns != 0
            assert np.array_equal(own.rows[name][~known], times_ns[~known])
            assert np.array_equal(own.rows[name][known], clock.shows(times_ns[known]))
            wrong_ns = clock.shows(times_ns[known]) - clock.boot_ns - times_ns[known]
            assert np.array_equal(
                to_unix(own.origin, own.rows[name][known]), times_ns[known] + shared + wrong_ns
            )
            assert np.array_equal(wall.rows[name][known], times_ns[known] + wrong_ns)


def test_a_recording_is_aligned_and_replayed(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alignment.main([str(run), "--seeds", "2", "--out", str(tmp_path / "out")])
    printed = capsys.readouterr().out
    rows = json.loads((tmp_path / "out" / "alignment.json").read_text())["results"]
    assert [row["seed"] for row in rows] == [0, 1]
    for row in rows:
        clocks = own_clocks.clocks_for(ROLES, middle_ns(run), row["seed"])
        (home,) = (found for found in row["clocks"] if found["reference"])
        assert home["error_ns"] == [0, 0, 0]
        for found in row["clocks"]:
            ahead_ns = clocks[found["role"]].offset_ns - clocks[home["role"]].offset_ns
            assert found["offset_ns"] == ahead_ns
            assert found["inside"]
            assert found["contradictions"] == 0
            # Nothing moves by more than its clock is off, somewhere from begin to end.
            assert found["worst_event_ns"] <= max(map(abs, found["error_ns"])) + 2
            for error_ns, (low_ns, high_ns) in zip(
                found["error_ns"], found["interval_ns"], strict=True
            ):
                assert low_ns <= -error_ns <= high_ns
        errors = row["replay_error"]
        assert errors["recorded"] == alignment.replay_error(run)
        assert abs(errors["aligned"] - errors["recorded"]) < 0.01
    assert printed.count("yes") == 6
    assert "6 clocks: worst error" in printed
    assert "(within the 200 us asked for)" in " ".join(printed.split())


def middle_ns(run: Path) -> int:
    times = [t.rows[name][t.rows[name] != 0] for t in load_run(run) for name in t.table.times]
    everything = np.concatenate(times)
    return int(everything.min() + everything.max()) // 2


def row_of(*clocks: dict[str, Any], aligned: float = 0.01) -> dict[str, Any]:
    return {
        "run": "r",
        "seed": 0,
        "clocks": list(clocks),
        "replay_error": {"recorded": 0.01, "wall clocks": -0.2, "aligned": aligned},
    }


def test_the_worst_is_what_is_summed_up() -> None:
    good = {
        "role": "worker-0",
        "reference": False,
        "offset_ns": 0,
        "drift_ppm": 0.0,
        "error_ns": [-150_000, 0, 200_000],
        "interval_ns": [[-1, 1]] * 3,
        "inside": True,
        "worst_event_ns": 5,
    }
    home = {**good, "reference": True, "error_ns": [0, 0, 0]}
    line = alignment.summary([row_of(home, good), row_of(good, aligned=-0.03)])
    assert line.startswith("2 clocks: worst error 200 us (within the 200 us asked for), ")
    assert "interval: 100%" in line
    assert "up to 1.0% as recorded" in line
    assert line.endswith("moved by up to 21.0 points by wall clocks (0 of 2 refused), 4.0 aligned")
    refused = row_of(home, good)
    refused["replay_error"]["wall clocks"] = None
    assert "21.0 points by wall clocks (1 of 2 refused)" in alignment.summary(
        [row_of(home, good), refused]
    )
    bad = {**good, "error_ns": [0, -200_001, 0], "inside": False}
    line = alignment.summary([row_of(good), row_of(good, bad, good)])
    assert "(NOT within the 200 us asked for)" in line
    assert "interval: 75%" in line


def test_times_stay_in_order_whatever_the_drift() -> None:
    clock = own_clocks.clocks_for(["worker-0"], 0, seed=5)["worker-0"]
    for drift_ppb in (-50_000, 50_000):
        shown = replace(clock, drift_ppb=drift_ppb).shows(np.arange(10**6, 2 * 10**6, 7))
        assert np.all(np.diff(shown) > 0)
