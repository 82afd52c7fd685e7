"""A real job, watched while it runs and after it has ended."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from byteprophet.watch.page import grafana_dashboard
from byteprophet.watch.run_watch import RunWatch
from byteprophet.watch.sources import RemoteWatch, Shared

from .test_metrics import dashboard_metrics, parse, value

pytestmark = pytest.mark.job
WORKER = Path(__file__).with_name("watched_worker.py")
ITERATIONS = 110
WITH_LIMITS_AND_PLANS = (
    "iteration_bound_seconds",
    "iteration_predicted_seconds",
    "link_bandwidth_bytes_per_second",
    "link_limit_bytes_per_second",
    "log_lines_total",  # no line yet
    "plan_number",
)


def awaited(shared: Shared, seen: Callable[[dict[str, Any]], bool], limit_s: float = 90) -> Any:
    """The first state of which ``seen`` says so."""
    deadline_s = time.monotonic() + limit_s
    while True:
        state = shared.state()
        if seen(state):
            return state
        assert time.monotonic() < deadline_s, state
        time.sleep(0.3)


def running(state: dict[str, Any]) -> bool:
    workers = state["workers"]
    return len(workers) == 2 and all(w["push_bps"] and w["waits"] and w["late"] for w in workers)


@pytest.mark.usefixtures("default_signals")
def test_figures_change_while_a_job_runs_and_stay_when_it_has_ended(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "byteprophet", "run", "--runs", str(tmp_path / "runs")]
    command += ["--scheduler", "p3", "--", sys.executable, str(WORKER), str(ITERATIONS)]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as job,
    ):
        try:
            _watch(tmp_path / "runs", job)
        finally:
            job.send_signal(signal.SIGINT)


def _watch(runs: Path, job: subprocess.Popen[bytes]) -> None:
    deadline_s = time.monotonic() + 60
    while not (found := list(runs.glob("*/config.toml"))):
        assert time.monotonic() < deadline_s
        time.sleep(0.1)
    run = found[0].parent
    watch = [sys.executable, "-m", "byteprophet", "watch", str(run)]
    viewer = subprocess.Popen(
        [*watch, "--token-file", str(runs / "token")], stderr=subprocess.PIPE, text=True
    )
    with viewer:
        try:
            assert viewer.stderr is not None
            line = viewer.stderr.readline()
            address = re.search(r"http://127\.0\.0\.1:\d+/\?token=\S+", line)
            assert address is not None, line
            _check(Shared(RemoteWatch(address[0])), address[0])
            assert job.wait(60) == 0
            ended = awaited(Shared(RunWatch(run)), lambda state: bool(state["status"] == "done"))
        finally:
            viewer.send_signal(signal.SIGINT)
        assert viewer.wait(20) == 0
    assert ended["iteration"]["count"] == ITERATIONS
    assert all(worker["ended"] for worker in ended["workers"])
    assert ended["iteration"]["numbers"][-1] == ITERATIONS - 1
    assert [line["text"] for line in ended["warnings"]["latest"]] == ["this is the test's"] * 2
    shown = subprocess.run(
        [*watch, "--terminal"], capture_output=True, text=True, timeout=60, check=True
    )
    assert f"iteration {ITERATIONS}" in shown.stdout
    assert "done" in shown.stdout


def _check(shared: Shared, address: str) -> None:
    first = awaited(shared, running)
    assert first["status"] == "running"
    assert first["iteration"]["median_ns"] > 30_000_000
    names = {wait["name"] for worker in first["workers"] for wait in worker["waits"]}
    assert any(re.fullmatch(r"[023]\.(weight|bias)", name) for name in names), names
    for worker in first["workers"]:
        assert worker["links"][0]["in_flight_bytes"] > 0
        assert worker["held_ns"] is not None
    later = awaited(
        shared, lambda state: bool(state["iteration"]["count"] > first["iteration"]["count"] + 5)
    )
    for before, after in zip(first["workers"], later["workers"], strict=True):
        assert after["totals"]["transfers"] > before["totals"]["transfers"]
        assert after["series"]["unix_s"][-1] > before["series"]["unix_s"][-1]
    late = [worker["late"]["last"] for worker in later["workers"]]
    assert late[1] > late[0]  # rank 1 sleeps for longer
    metrics = address.replace("/?", "/metrics?")
    with urllib.request.urlopen(metrics, timeout=10) as answer:
        samples, _ = parse(answer.read().decode())
    run = {"run": later["run"]}
    assert value(samples, "job_running", **run) == 1
    assert value(samples, "iterations_total", **run, worker="worker-0") > 0
    assert value(samples, "link_pushed_bytes_total", **run, worker="worker-1", server="0") > 0
    # All that the dashboard draws; but this job's links are not limited, and nobody plans.
    found = {name for name, _ in samples}
    missing = dashboard_metrics(json.loads(grafana_dashboard())) - found
    assert missing <= {f"byteprophet_{name}" for name in WITH_LIMITS_AND_PLANS}
