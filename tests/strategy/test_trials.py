"""What trials run, and on which links. No job is started here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from byteprophet.bench import Case
from byteprophet.job.strategy_file import read_strategy_file
from byteprophet.job.times import Int64Array
from byteprophet.launcher import JobSpec
from byteprophet.strategy.resources import Resources
from byteprophet.strategy.search import trials
from byteprophet.strategy.search.trials import BASELINE, Paced, paced_runner, recorded_runner
from byteprophet.workload import to_toml

from .test_search import MODEL, RATE_BPS, bases, resources


def checked_spec(given: Resources | None, runs: Path, monkeypatch: pytest.MonkeyPatch) -> JobSpec:
    """The job that repeats a run that was recorded on loopback."""
    found: list[JobSpec] = []
    recorded = JobSpec(("true",), runs, workers=2, servers=0)
    monkeypatch.setattr(trials, "recorded_again", lambda config, runs: recorded)
    monkeypatch.setattr(trials, "check_job", found.append)
    recorded_runner({}, given, runs)
    return found[0]


def test_a_recorded_command_runs_on_the_links_that_are_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited = checked_spec(resources((1, 0.5)), tmp_path, monkeypatch)
    assert limited.namespaces
    assert limited.worker_bandwidth_bps == {0: RATE_BPS, 1: RATE_BPS // 2}
    for given in (None, Resources(())):
        spec = checked_spec(given, tmp_path, monkeypatch)
        assert (spec.namespaces, spec.worker_bandwidth_bps) == (False, {})


def test_the_baseline_without_servers_is_planned_from_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would plan its buckets only after more iterations than a trial has."""
    ran: list[Case] = []

    def run_in_turn(cases: Sequence[Case], *_: object) -> list[Int64Array]:
        ran.extend(cases)
        return [np.array([10**6], np.int64) for _ in cases]

    monkeypatch.setattr(trials, "why_not_permitted", lambda: None)
    monkeypatch.setattr(trials, "check_case", lambda *_, **__: None)
    monkeypatch.setattr(trials, "run_in_turn", run_in_turn)
    path = tmp_path / "small.toml"
    path.write_text(to_toml(MODEL))
    runner = paced_runner(Paced(str(path)), MODEL, resources((1, 1, 1)), tmp_path / "runs")
    assert [label for label, _ in runner({BASELINE: None})] == [BASELINE]
    (case,) = ran
    assert case.strategy is not None
    job_bases = bases((1, 1, 1))
    assert read_strategy_file(case.strategy) == job_bases.used(job_bases.baseline)
