"""A real job on a host whose cores are all busy: it goes over to order of arrival."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from byteprophet import _core
from byteprophet.control.log import NAME, read_events
from byteprophet.errors import UserError
from byteprophet.launcher import JobSpec, read_worker_results, run_job
from byteprophet.paced.check import expected_parameters, parameters_sha256
from byteprophet.workload import Tensor, Workload, to_toml

from .conftest import MS, eventually

WORKLOAD = Workload(
    "small",
    4,
    tuple(Tensor(f"layer{n}", 400_000 * (n + 1), 5 * MS, 10 * MS) for n in range(4)),
)
TIMEOUT_S = 120.0
SETTLING_UPDATES = 34  # ranks ask each other for partition sizes every 16 steps


@contextlib.contextmanager
def all_cores_busy() -> Iterator[None]:
    """By processes that give way to all others, and end by themselves if nobody ends them."""
    spin = f"import time\nwhile time.monotonic() < {time.monotonic() + 300}: pass"
    spinning = [
        subprocess.Popen(["nice", "-n", "19", sys.executable, "-S", "-c", spin])
        for _ in os.sched_getaffinity(0)
    ]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait(10)


def events(run: Path, name: str) -> list[dict[str, Any]]:
    try:
        return [event for event in read_events(run / NAME) if event["event"] == name]
    except UserError:  # it is not there yet
        return []


@pytest.mark.job
def test_gradients_go_as_they_come_where_no_order_can_gain(tmp_path: Path) -> None:
    run, stop, workload = (tmp_path / name for name in ("run", "stop", "workload.toml"))
    run.mkdir()
    workload.write_text(to_toml(WORKLOAD), encoding="utf-8")
    worker = Path(__file__).with_name("job_worker.py")
    spec = JobSpec(
        command=(sys.executable, str(worker), str(workload), str(stop), str(SETTLING_UPDATES)),
        run_directory=run,
        scheduler="prophet",
        controller=True,
        timeout_s=280,
    )

    def adopted() -> bool:
        """By both workers, the first plan that says so."""
        in_order = [p["number"] for p in events(run, "plan") if p["settings"]["in_order"]]
        mine = [e for e in events(run, "adopted") if e["plan"] in in_order]
        return {event["worker"] for event in mine} == {"worker-0", "worker-1"}

    def end_when_adopted() -> None:
        try:
            eventually(adopted, TIMEOUT_S)
        finally:
            stop.touch()

    thread = threading.Thread(target=end_when_adopted)
    with all_cores_busy():
        thread.start()
        result = run_job(spec, None)
        thread.join(10)
    result.check()
    assert adopted()
    log = read_events(run / NAME)
    first = next(e for e in log if e["event"] == "plan" and e["settings"]["in_order"])
    assert "the processor is the limit" in first["reason"]
    assert first["host"]["host_ns"] > 0
    at = {e["iteration"] for e in log if e["event"] == "adopted" and e["plan"] == first["number"]}
    assert at <= {first["at_iteration"]}  # the same for both

    results = read_worker_results(run)
    (updates,) = {one["updates"] for one in results}
    expected = parameters_sha256(expected_parameters(WORKLOAD, 2, updates))
    assert [one["parameters_sha256"] for one in results] == [expected] * 2
    fifo_bytes = _core.default_settings("fifo")["partition_bytes"]
    assert [one["partition_bytes"] for one in results] == [fifo_bytes] * 2
