"""Roles that are lost without having ended: what the launcher sees itself, and what it is told."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from byteprophet.launcher import Limits, RoleCommands, run_job
from byteprophet.launcher.causes import cancelled_in
from byteprophet.launcher.leftovers import marked_processes

from .conftest import STAY, MakeSpec

SHORT = Limits(grace_s=1.0, farewell_s=0.2, premature_s=0.2, last_words_s=10.0, stopped_s=0.5)
LIMIT = {"BYTEPROPHET_DEAD_AFTER_S": "3"}
WORKER = Path(__file__).parents[1] / "byteps" / "heartbeat_worker.py"


def test_a_stopped_process_of_a_role_ends_the_job(make_spec: MakeSpec) -> None:
    """Such as a local rank that is not its worker's first process."""
    stop = "test $DMLC_WORKER_ID = 0 || { sleep 100 & kill -STOP $!; }; sleep 100"
    spec = make_spec(("sh", "-c", stop), environment=LIMIT, limits=SHORT)
    result = run_job(spec)
    assert result.exit_status == 1
    assert result.failed is not None
    assert result.failed.startswith("worker-1 was stopped (SIGSTOP) and did not go on: process ")
    assert marked_processes(str(spec.run_directory)) == []


def test_a_stop_that_passes_is_none_of_our_business(make_spec: MakeSpec) -> None:
    pause = "sleep 6 & kill -STOP $!; sleep 2; kill -CONT $!; sleep 1.5; kill -STOP $!; sleep 2"
    assert run_job(make_spec(("sh", "-c", pause), environment=LIMIT, limits=SHORT)).failed is None


def test_the_schedulers_verdict_counts_and_others_may_finish(
    make_spec: MakeSpec, tmp_path: Path
) -> None:
    """Worker 1 is cut off: it accuses the scheduler, and may even be the first to end."""
    saying = "echo byteprophet: error: {} has been silent for 3 s: the job cannot go on"
    scheduler = ("sh", "-c", f"{saying.format('worker-1 at x')}; sleep 100")
    accuse = f"{saying.format('scheduler at y')}; sleep 0.5; exit 1"
    save = f"sleep 2; echo saved > {tmp_path / 'checkpoint'}; exit 1"
    worker = ("sh", "-c", f"if test $DMLC_WORKER_ID = 1; then {accuse}; else {save}; fi")
    result = run_job(make_spec(worker, limits=SHORT, roles=RoleCommands(scheduler, STAY)))
    log = tmp_path / "run" / "logs" / "worker-1.log"
    assert result.failed == f"worker-1 at x has been silent for 3 s; its log: {log}"
    assert (tmp_path / "checkpoint").read_text() == "saved\n"


@pytest.mark.job
def test_a_training_script_learns_of_it_in_time(make_spec: MakeSpec, tmp_path: Path) -> None:
    told = tmp_path / "told"
    spec = make_spec(
        (sys.executable, str(WORKER), "front", str(told)),
        scheduler="prophet",
        environment={"BYTEPROPHET_DEAD_AFTER_S": "4"},
        roles=RoleCommands(),
        limits=Limits(grace_s=1.0),
        timeout_s=120.0,
    )
    training: set[str] = set()

    def stop_server(role: str, line: str) -> None:
        if line == "training":
            training.add(role)
            if len(training) == 2:
                (pid,) = marked_processes(str(spec.run_directory), "server-0")
                os.kill(pid, signal.SIGSTOP)

    result = run_job(spec, stop_server)
    assert result.exit_status == 1
    assert result.failed is not None
    assert result.failed.startswith("server-0 (127.0.0.1) has been silent for 4 s; its log: ")
    assert "server-0 (127.0.0.1) has been silent for 4 s" in told.read_text()
    assert marked_processes(str(spec.run_directory)) == []


@pytest.mark.parametrize(
    "said",
    [
        "STEP 3.0 ON n1 CANCELLED AT 2026-11-28T11:36:32",
        "STEP 3.0 ON n1 CANCELLED AT 2026-11-28T11:36:57 DUE TO TIME LIMIT",
        "STEP 4+0.2 ON gpu-1 CANCELLED AT 2026-11-28T11:36:57 DUE TO PREEMPTION",
    ],
)
def test_slurm_says_why_it_ends_a_step(said: str) -> None:
    assert cancelled_in(f"slurmstepd-n1: error: *** {said} ***") == said
    assert cancelled_in(f"slurmstepd: error: *** {said} ***") == said
    assert cancelled_in(f"train.py: error: *** {said} ***") is None
    assert cancelled_in("slurmstepd-n1: error: *** STEP 3.0 ON n1 FAILED ***") is None
