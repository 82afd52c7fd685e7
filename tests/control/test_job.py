"""A real job whose controller is killed and attacked: plans, and the results of one without."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import zmq

from byteprophet.control.keys import read_keys
from byteprophet.control.log import NAME, read_events
from byteprophet.control.messages import Plan, PlanOrder, encode
from byteprophet.control.sockets import prepare
from byteprophet.errors import UserError
from byteprophet.launcher import JobSpec, read_worker_results, run_job
from byteprophet.launcher.leftovers import marked_processes
from byteprophet.paced.check import expected_parameters, parameters_sha256
from byteprophet.workload import Tensor, Workload, to_toml

from .conftest import MS, eventually

WORKLOAD = Workload(
    "small",
    4,
    tuple(Tensor(f"layer{n}", 600_000 * (n + 1), 5 * MS, 10 * MS) for n in range(4)),
)
WORKERS = {"worker-0", "worker-1"}
TIMEOUT_S = 120.0


class Faults:
    """What is done to the controller, once it has proven itself; ends the job when that is done."""

    def __init__(self, run: Path, stop: Path) -> None:
        self._run, self._stop_file = run, stop
        self.done: list[str] = []

    def events(self, name: str) -> list[dict[str, Any]]:
        try:
            return [event for event in read_events(self._run / NAME) if event["event"] == name]
        except UserError:  # it is not there yet
            return []

    def strike(self) -> None:
        """In a thread of its own."""
        try:
            self._wait_adopted("first plan", 1)
            (pid,) = marked_processes(str(self._run), "controller")
            keys = self._keys_of(pid)
            os.kill(pid, signal.SIGKILL)
            eventually(lambda: len(self.events("started")) == 2, TIMEOUT_S)
            self.done.append("restart")
            address = self.events("started")[-1]["listen"]
            self._raw_garbage(address)
            self._forged_plan_and_garbage(address, keys)
            eventually(lambda: {"wrong schema", "not JSON"} <= self._refused(), TIMEOUT_S)
            self.done.append("refusals")
            self._wait_adopted("second plan", 2)
        finally:
            self._stop_file.touch()

    def _refused(self) -> set[str]:
        return {event["reason"] for event in self.events("refused")}

    def _wait_adopted(self, what: str, lives: int) -> None:
        def adopted() -> bool:
            last = self.events("started")[lives - 1 :]
            mine = [
                e
                for e in self.events("adopted")
                if last and e["controller"] == last[-1]["controller"]
            ]
            return {event["worker"] for event in mine} == WORKERS

        eventually(adopted, TIMEOUT_S)
        self.done.append(what)

    @staticmethod
    def _keys_of(pid: int) -> Path:
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        (path,) = (e for e in environment if e.startswith(b"BYTEPROPHET_CONTROLLER_KEYS="))
        return Path(os.fsdecode(path.partition(b"=")[2]))

    @staticmethod
    def _raw_garbage(address: str) -> None:
        host, _, port = address.removeprefix("tcp://").partition(":")
        for _ in range(5):
            with socket.create_connection((host, int(port)), timeout=10) as raw:
                raw.sendall(os.urandom(5000))

    @staticmethod
    def _forged_plan_and_garbage(address: str, keys: Path) -> None:
        own = read_keys(keys, "worker")
        plan = Plan(
            number=10**6,
            at_iteration=1,
            settings={"window_max_bytes": 1},
            ready=[],
            blocks=[],
            predicted_iteration_ns=1,
            reason="forged",
        )
        with zmq.Context() as context, context.socket(zmq.DEALER) as socket_:
            prepare(socket_, own)
            socket_.curve_serverkey = own.peer
            socket_.connect(address)
            for number in range(20):
                socket_.send(os.urandom(100 + number))
                socket_.send(encode(PlanOrder(job="127.0.0.1:1", plan=plan)))
            socket_.linger = 5000


@pytest.mark.job
def test_whatever_befalls_the_controller_the_job_goes_on(tmp_path: Path) -> None:
    run, stop = tmp_path / "run", tmp_path / "stop"
    run.mkdir()
    workload = tmp_path / "workload.toml"
    workload.write_text(to_toml(WORKLOAD), encoding="utf-8")
    worker = Path(__file__).with_name("job_worker.py")
    spec = JobSpec(
        command=(sys.executable, str(worker), str(workload), str(stop)),
        run_directory=run,
        scheduler="prophet",
        controller=True,
        timeout_s=280,
    )
    lines: list[tuple[str, str]] = []
    faults = Faults(run, stop)
    thread = threading.Thread(target=faults.strike)
    thread.start()
    try:
        result = run_job(spec, lambda role, line: lines.append((role, line)))
    finally:
        thread.join(10)
    result.check()
    assert faults.done == ["first plan", "restart", "refusals", "second plan"]

    results = read_worker_results(run)
    (updates,) = {one["updates"] for one in results}
    expected = parameters_sha256(expected_parameters(WORKLOAD, 2, updates))
    assert [one["parameters_sha256"] for one in results] == [expected] * 2

    for number in {event["number"] for event in faults.events("plan")}:
        at = {e["iteration"] for e in faults.events("adopted") if e["plan"] == number}
        assert len(at) <= 1  # the same for both
    assert max(event["number"] for event in faults.events("plan")) < 100  # not the forged one's
    warnings = [line for role, line in lines if role == "controller" and "warning" in line]
    assert len(warnings) == 1
    assert "SIGKILL" in warnings[0]
    ended = {role.name: role.exit_status for role in result.roles if "controller" in role.name}
    assert ended == {"controller": -signal.SIGKILL, "controller.2": 0}
    assert not marked_processes(str(run))
