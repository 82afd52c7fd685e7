"""Runs of trials and of ``--apply``: which are made, and which are taken as they were measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from small_jobs import random_job, with_runtime

from byteprophet.errors import JobFailed
from byteprophet.job import Job, Policy
from byteprophet.job.strategy_file import write_strategy
from byteprophet.launcher import JobResult, JobSpec
from byteprophet.measure.run import Run
from byteprophet.optimize.apply import BASELINE, OPTIMISED, apply
from byteprophet.optimize.recorded import digest_of_config, digest_of_recording, used_by
from byteprophet.optimize.search import Candidate
from byteprophet.optimize.trials import Trial, try_candidates
from byteprophet.schedulers import resolve

from ..measure.test_servers import a_job

CONFIG: dict[str, Any] = {
    "command": ["python", "script.py"],
    "directory": "/",
    "workers": 2,
    "servers": 0,
    "namespaces": False,
    "bandwidth_bps": 60_000_000,
    "worker_bandwidth_bps": {},
    "timeout_s": 60.0,
    "port": 9000,
    "environment": {},
}


class Machine:
    """Runs nothing. ``ran`` has the runs; the recorded job takes twice as long as all others.

    The start of another transport is a little faster than what the search has made of it.
    """

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.stop_after = 1000
        self.recorded_ns = 2_000_000
        self.broken = ""
        """Runs with this in their names fail."""

    def run_job(self, spec: JobSpec) -> JobResult:
        """Raises KeyboardInterrupt once ``stop_after`` runs have been made."""
        if len(self.ran) == self.stop_after:
            raise KeyboardInterrupt
        name = spec.run_directory.name.split("-", 1)[1]
        self.ran.append(name)
        fails = bool(self.broken) and self.broken in name
        return JobResult(int(fails), (), "worker-0 ended" if fails else None, 1.0)

    def measure_run(self, run: Run) -> Any:
        """The times of a run."""
        name = run.directory.name
        took_ns = 900_000 if "start" in name else 1_000_000
        if BASELINE.replace(" ", "-") in name:
            took_ns = self.recorded_ns
        return SimpleNamespace(iteration_ns=np.full(8, took_ns))


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine on which no job really runs."""
    made, there = Machine(), "byteprophet.optimize.apply"
    monkeypatch.setattr(f"{there}.run_job", made.run_job)
    monkeypatch.setattr(f"{there}.measure_run", made.measure_run)
    monkeypatch.setattr(f"{there}.check_job", lambda spec: None)
    monkeypatch.setattr(f"{there}.warmup_of", lambda measured: 2)
    return made


@pytest.fixture
def job() -> Job:
    """A job with one bucket."""
    return with_runtime(random_job(3, 8), "allreduce", 100_000_000)


def test_rounds_of_another_recorded_job_are_measured_again(
    tmp_path: Path, machine: Machine, job: Job
) -> None:
    used, path = used_by(job, job), tmp_path / "strategy.json"
    write_strategy(path, used)

    def runs_of(config: dict[str, Any]) -> int:
        before = len(machine.ran)
        strategies = {OPTIMISED: (used, path)}
        apply(config, strategies, tmp_path / "runs", 1, print, tmp_path / "rounds.json")
        return len(machine.ran) - before

    assert runs_of(CONFIG) == 2
    assert runs_of({**CONFIG, "port": 9001}) == 0
    assert runs_of({**CONFIG, "bandwidth_bps": 70_000_000}) == 2
    assert runs_of({**CONFIG, "command": ["python", "other.py"]}) == 2


def test_recordings_of_one_command_differ(job: Job) -> None:
    later = replace(job, times=replace(job.times, ready_ns=job.times.ready_ns + 1))
    assert digest_of_config(CONFIG) == digest_of_config({**CONFIG, "port": 9001})
    assert digest_of_recording(CONFIG, job) == digest_of_recording(dict(CONFIG), replace(job))
    assert digest_of_recording(CONFIG, job) != digest_of_recording(CONFIG, later)


@pytest.fixture
def tried(tmp_path: Path, job: Job) -> Callable[[], list[Trial]]:
    """Tries two candidates."""
    candidates = [
        Candidate(with_runtime(random_job(3, 8), "dear", 1 << size), size) for size in (10, 20)
    ]
    return lambda: try_candidates(CONFIG, job, candidates, tmp_path / "trials", print)


@pytest.mark.parametrize("stop_after", range(9))
def test_trials_go_on_where_they_were_stopped(
    stop_after: int, machine: Machine, tried: Callable[[], list[Trial]]
) -> None:
    """A round of three runs, and two more of the same three, because all come close."""
    machine.stop_after = stop_after
    with pytest.raises(KeyboardInterrupt):
        tried()
    machine.stop_after = 1000
    assert [trial.ratios for trial in tried()] == [(0.5,) * 3] * 2
    assert len(machine.ran) == 9


@pytest.mark.parametrize("start_fits", [False, True])
def test_candidates_run_again_if_one_of_them_is_used(
    start_fits: bool, tmp_path: Path, machine: Machine, job: Job
) -> None:
    """All are slower than the recorded job, which does not fit the memory."""
    machine.recorded_ns = 800_000
    candidate = Candidate(with_runtime(random_job(3, 8), "dear", 1 << 10), 10)
    (trial,) = try_candidates(
        CONFIG, job, [candidate], tmp_path / "trials", print, start_fits=start_fits
    )
    assert trial.ratios == (1.25,) * (1 if start_fits else 3)
    machine.broken = "trial"
    with pytest.raises(JobFailed, match="every candidate failed"):
        try_candidates(CONFIG, job, [candidate], tmp_path / "no", print, start_fits=start_fits)


def test_a_candidate_that_fails_is_left_out(
    machine: Machine, tried: Callable[[], list[Trial]], capsys: pytest.CaptureFixture[str]
) -> None:
    machine.broken = "trial-2"
    (trial,) = tried()
    assert trial.ratios == (0.5,) * 3
    assert "without trial 2: worker-0 ended" in capsys.readouterr().out
    assert machine.ran.count("trial-2") == 1


@pytest.mark.parametrize("broken", ["trial", BASELINE.replace(" ", "-")])
def test_a_trial_needs_the_recorded_job_and_a_candidate(
    broken: str, machine: Machine, tried: Callable[[], list[Trial]]
) -> None:
    machine.broken = broken
    with pytest.raises(JobFailed, match="every candidate failed" if broken == "trial" else "ended"):
        tried()


def test_without_candidates_nothing_runs(tmp_path: Path, machine: Machine, job: Job) -> None:
    assert try_candidates(CONFIG, job, [], tmp_path / "trials", print) == []
    assert machine.ran == []


def test_what_the_search_has_changed_must_pay_under_another_transport(
    tmp_path: Path, machine: Machine, job: Job
) -> None:
    """The recorded command as it ran there takes part in the last rounds."""
    torch = with_runtime(random_job(3, 8), "ddp", 1 << 10)
    start = Candidate(job, 30)
    others = [start, Candidate(with_runtime(random_job(3, 8), "ddp", 1 << 20), 40)]
    changed = Candidate(with_runtime(random_job(3, 8), "dear", 1 << 10), 20)
    tried = try_candidates(CONFIG, torch, [changed], tmp_path / "trials", print, others)
    assert [(trial.candidate, trial.ratios) for trial in tried] == [
        (start, (0.45, 0.45)),
        (changed, (0.5, 0.5, 0.5)),
    ]
    assert len(machine.ran) == 2 + 6
    machine.ran.clear()
    (alone,) = try_candidates(CONFIG, torch, [start], tmp_path / "again", print, others)
    assert alone.candidate == start
    assert len(machine.ran) == 2 + 4


def test_another_policy_on_servers_must_pay(tmp_path: Path, machine: Machine, job: Job) -> None:
    """Also if partitions stay as they are, so that the strategies are equal."""
    first = a_job("fifo")
    start = Candidate(first, 30)
    settings, _ = resolve("p3", {}, first.strategy.partition_bytes)
    changed = Candidate(replace(first, policy=Policy("p3", settings)), 20)
    tried = try_candidates(CONFIG, job, [changed], tmp_path / "trials", print, [start])
    assert [trial.candidate for trial in tried] == [start, changed]
