"""``byteprophet timeline`` and ``replay`` of a job whose roles were on machines of their own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from byteprophet.cli.main import run_cli
from byteprophet.timeline.events import Events, events_path, save_events

from ..measure.recorded_replay import config_of
from ..timeline.own_machines import (
    on_machine,
    recorded,
    set_in_mid_run,
    small_job,
    with_clocks,
)
from ..timeline.perfetto_rules import broken_rules, read_trace
from ..timeline.true_clocks import TrueClock

CLOCKS = {
    "worker-0": TrueClock(40_000_000, 50_000),
    "worker-1": TrueClock(10**13 - 3_000_000, -20_000),
    "server-0": TrueClock(10**12),
    "server-1": TrueClock(-31_000_000, 1_000),
}


def saved(directory: Path, events: Sequence[Events]) -> Path:
    """The run directory of ``small_job`` with these events."""
    directory.mkdir()
    (directory / "config.toml").write_text(tomli_w.dumps(config_of(small_job())))
    for table in events:
        save_events(events_path(directory, table.table, table.origin.role), table)
    return directory


def one_machine() -> list[Events]:
    events = recorded(small_job())
    for role in CLOCKS:
        events = on_machine(events, role, "here")
    return events


def told(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    assert run_cli([*map(str, arguments), "--json"]) == 0
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    return report


def test_timelines_are_on_one_clock(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    here = saved(tmp_path / "here", one_machine())
    apart = saved(tmp_path / "apart", with_clocks(recorded(small_job()), CLOCKS))
    one = told(capsys, "timeline", here, "--format", "perfetto")
    assert len(one["clocks"]["machines"]) == 1
    four = told(capsys, "timeline", apart, "--format", "perfetto")
    machines = {machine["roles"][0]: machine for machine in four["clocks"]["machines"]}
    assert set(machines) == set(CLOCKS)
    assert four["clocks"]["reference"] == machines["server-0"]["machine"]
    assert four["clocks"]["contradictions"] == []
    # No arrow is lost, as no sum is before its push, and no pull before its sum.
    assert (four["slices"], four["arrows"]) == (one["slices"], one["arrows"])
    first, second = (read_trace(run / "timeline.json.gz") for run in (here, apart))
    assert broken_rules(second) == []
    ends = [
        max(event["ts"] for event in trace["traceEvents"] if event["ph"] == "X")
        for trace in (first, second)
    ]
    assert ends[1] == pytest.approx(ends[0], abs=500)  # us


def test_clocks_are_shown_where_there_are_several(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_cli(["timeline", str(saved(tmp_path / "here", one_machine()))]) == 0
    assert "ppm" not in capsys.readouterr().out
    apart = saved(tmp_path / "apart", with_clocks(recorded(small_job()), CLOCKS))
    assert run_cli(["timeline", str(apart)]) == 0
    shown = capsys.readouterr()
    lines = [line.split() for line in shown.out.splitlines() if "server-" in line]
    assert ["server-0", "reference"] in lines
    assert "ppm fast" in shown.out
    assert shown.err == ""


def test_a_replay_is_that_of_one_clock(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    here = saved(tmp_path / "here", one_machine())
    apart = saved(tmp_path / "apart", with_clocks(recorded(small_job()), CLOCKS))
    one, four = (told(capsys, "replay", run) for run in (here, apart))
    assert four["measured_ns"] == pytest.approx(one["measured_ns"], rel=1e-4)
    assert four["iteration_ns"]["median"] == pytest.approx(one["iteration_ns"]["median"], rel=0.02)


@pytest.mark.parametrize("command", ["timeline", "replay"])
def test_clocks_that_contradict_are_said_loudly(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    events = set_in_mid_run(with_clocks(recorded(small_job()), CLOCKS), "worker-1", 10_000_000)
    assert run_cli([command, str(saved(tmp_path / "set", events))]) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("byteprophet: warning: clocks of ")
    assert "worker-1" in line
