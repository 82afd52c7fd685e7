"""The client of pods, with a kubectl whose answers the test has written."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from byteprophet.errors import JobFailed
from byteprophet.remote.kubernetes import absent, client, follower
from byteprophet.remote.kubernetes.client import Client, Task

from .jobs import NAMED_S, RUN, Started

# A file per verb says in Python what that verb does. "before": how often it was called before.
_KUBECTL = """#!{python} -IS
import json, pathlib, sys, time
state, words = pathlib.Path(__file__).parent, sys.argv[1:]
verb = words[1] if words[:2] in (["get", "pods"], ["get", "events"]) else words[0]
calls = state / "calls"
before = sum(f" {{verb}} " in f" {{line}} " for line in calls.read_text().splitlines())
with calls.open("a") as file:
    print(*words, file=file)
exec((state / f"{{verb}}.py").read_text())
"""
_LOOKS = """
looks = json.loads((state / "looks.json").read_text())
print(json.dumps({"items": looks[min(before, len(looks) - 1)]}))
"""
_NOTHING = "print('{\"items\": []}')"
_TRAINS = "print('2026-11-29T03:00:00.5Z training', words[5], flush=True); time.sleep(60)"
_RUNS: dict[str, Any] = {"running": {}}
_FAILED = {"terminated": {"exitCode": 1, "reason": "Error"}}
_DONE = {"terminated": {"exitCode": 0, "reason": "Completed"}}


def pod(index: int, state: dict[str, Any], phase: str = "Running") -> dict[str, Any]:
    """The pod of a worker, in which a proxy runs beside the role."""
    labels = {
        "app.kubernetes.io/component": "worker",
        "batch.kubernetes.io/job-completion-index": str(index),
    }
    proxy = {"name": "istio-proxy", "state": _RUNS}
    return {
        "metadata": {"name": f"train-worker-{index}-x", "labels": labels},
        "spec": {"nodeName": "node-1"},
        "status": {"phase": phase, "containerStatuses": [proxy, {"name": "role", "state": state}]},
    }


class Kubectl:
    """A directory with a kubectl that does what the test says."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.path = state / "kubectl"
        self.path.write_text(_KUBECTL.format(python=sys.executable))
        self.path.chmod(0o755)
        (state / "calls").touch()
        self.run_directory = state / "run"
        (self.run_directory / "logs").mkdir(parents=True)
        self.does("create", "print('job/train-worker')")
        self.does("pods", _LOOKS)
        self.does("events", _NOTHING)
        self.does("get", _NOTHING)
        self.does("logs", _TRAINS)
        self.does("delete", "pass")

    def does(self, verb: str, python: str) -> None:
        (self.state / f"{verb}.py").write_text(python)

    def lists(self, *looks: list[dict[str, Any]]) -> None:
        """The pods that there are at each look; at later looks those of the last one."""
        (self.state / "looks.json").write_text(json.dumps(looks))

    def calls(self, verb: str) -> list[str]:
        lines = (self.state / "calls").read_text().splitlines()
        return [line for line in lines if verb in line.split()]

    def client(self, workers: int) -> Client:
        manifests = str(self.run_directory / "manifests.yaml")
        kubectl = [str(self.path)]
        return Client(
            Task(kubectl, "train", {"worker": workers}, manifests, f"{self.run_directory}")
        )

    def log(self, role: str) -> list[str]:
        return (self.run_directory / "logs" / f"{role}.log").read_text().splitlines()


@pytest.fixture
def kubectl(tmp_path: Path) -> Kubectl:
    return Kubectl(tmp_path)


def test_pods_that_are_never_created_are_named(
    kubectl: Kubectl, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(absent, "_TOLD_S", 0.1)
    monkeypatch.setattr(absent, "_LIMIT_S", 4.0)
    of = {"kind": "Job", "name": "train-worker"}
    events = [
        {"involvedObject": of, "reason": "FailedCreate", "message": "old", "lastTimestamp": "1"},
        {"involvedObject": of, "reason": "FailedCreate", "message": "quota", "lastTimestamp": "2"},
        {"involvedObject": {"name": "other"}, "reason": "Other", "lastTimestamp": "3"},
    ]
    kubectl.does("events", f"print({json.dumps({'items': events})!r})")
    kubectl.lists([pod(0, _RUNS)])
    with pytest.raises(JobFailed, match="there is no pod for worker-1: FailedCreate: quota"):
        kubectl.client(2).run()
    said = capsys.readouterr().out.splitlines()
    (told,) = [line for line in said if "there is no pod" in line]
    assert told.startswith("byteprophet: after ")
    assert told.endswith(" s, there is no pod for worker-1: FailedCreate: quota")
    assert kubectl.calls("delete") == ["delete --ignore-not-found --wait=false job/train-worker"]


def test_a_job_in_a_queue_is_waited_for(
    kubectl: Kubectl, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(absent, "_TOLD_S", 0.1)
    monkeypatch.setattr(absent, "_LIMIT_S", 0.5)
    kubectl.does("get", f"print({json.dumps({'items': [{'spec': {'suspend': True}}]})!r})")
    kubectl.lists([])
    waiting = kubectl.client(9)
    threading.Timer(4.0, waiting.ask).start()
    assert not waiting.run()
    said = capsys.readouterr().out
    names = "worker-0, worker-1, worker-2, worker-3 and 5 others"
    assert said.count(f"there is no pod for {names}: it is suspended, as by a queue") == 1


def test_a_pod_that_has_gone_is_named(kubectl: Kubectl) -> None:
    """But not one that the cluster has removed after its good end."""
    kubectl.does("logs", "print('2026-11-29T03:00:00Z training')")
    both, first_ended = [pod(0, _RUNS), pod(1, _RUNS)], [pod(0, _DONE), pod(1, _RUNS)]
    kubectl.lists(both, first_ended, [pod(1, _RUNS)], [pod(1, _RUNS)], [pod(1, _RUNS)], [])
    with pytest.raises(JobFailed, match=r"worker-1 \(pod train-worker-1-x on node node-1\) has go"):
        kubectl.client(2).run()
    assert len(kubectl.calls("pods")) == 7
    assert json.loads((kubectl.run_directory / "pods.json").read_text()) == {"worker-0": 0}


def test_a_log_that_is_cut_off_is_read_on(
    kubectl: Kubectl, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No line is lost, and none comes twice, though --since-time has seconds only."""
    monkeypatch.setattr(follower, "_FIRST_PAUSE_S", 0.5)
    kubectl.does(
        "logs",
        """
lines = ["2026-11-29T03:00:00.1Z a", "2026-11-29T03:00:01.12Z b", "2026-11-29T03:00:01.123Z c"]
if before == 0:
    print(*lines[:2], sep="\\n")
    print("2026-11-29T03:00:01.1", end="", flush=True)
    sys.exit("error: stream error: INTERNAL_ERROR")
print(*lines[1:], sep="\\n")
""",
    )
    running = [pod(0, _RUNS)]
    kubectl.lists(running, running, [pod(0, _DONE)])
    assert kubectl.client(1).run()
    assert kubectl.log("worker-0") == ["a", "b", "c"]
    assert kubectl.calls("logs")[1].endswith(
        "train-worker-0-x --since-time 2026-11-29T03:00:01.12Z"
    )
    said = capsys.readouterr().out.splitlines()
    assert [line for line in said if line.startswith("[")] == [f"[worker-0] {x}" for x in "abc"]
    assert "kubectl logs of worker-0 ended (error: stream error: INTERNAL_ERROR)" in "".join(said)


def test_a_progress_bar_is_one_line(kubectl: Kubectl, capsys: pytest.CaptureFixture[str]) -> None:
    """Its last state, as of a role here."""
    kubectl.does("logs", r"print('2026-11-29T03:00:00Z 1%\r50%\r100%')")
    kubectl.lists([pod(0, _RUNS)], [pod(0, _DONE)])
    assert kubectl.client(1).run()
    assert capsys.readouterr().out.splitlines() == ["[worker-0] 100%"]
    log = kubectl.run_directory / "logs" / "worker-0.log"
    assert log.read_bytes() == b"1%\r50%\r100%\n"


def test_one_image_that_cannot_be_pulled_soon_ends_all(kubectl: Kubectl) -> None:
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off"}}
    running = [pod(index, _RUNS) for index in range(4)]
    kubectl.lists(running, [*running, pod(4, waiting, "Pending")])
    began_s = time.monotonic()
    with pytest.raises(JobFailed, match=r"worker-4 .*ImagePullBackOff: Back-off"):
        kubectl.client(5).run()
    assert time.monotonic() - began_s < 20.0
    assert len(kubectl.calls("delete")) == 1


def test_files_that_cannot_be_written_do_not_end_the_job(
    kubectl: Kubectl, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("pods.json", "logs/worker-0.log"):
        (kubectl.run_directory / name).mkdir()
    kubectl.does("logs", "print('2026-11-29T03:00:00Z training')")
    kubectl.lists([pod(0, _RUNS)], [pod(0, _DONE)])
    assert kubectl.client(1).run()
    captured = capsys.readouterr()
    assert "[worker-0] training" in captured.out
    assert captured.err.count("\n") == 1
    assert "cannot be written: Is a directory; the job goes on" in captured.err


def test_a_role_that_fails_beside_a_proxy_is_named(kubectl: Kubectl) -> None:
    kubectl.does("logs", "print('2026-11-29T03:00:00Z byteprophet: error: no data')")
    kubectl.lists([pod(0, _RUNS)], [pod(0, _FAILED)])
    with pytest.raises(JobFailed, match=r"worker-0: no data \(pod train-worker-0-x on node node-1"):
        kubectl.client(1).run()


def test_a_proxy_that_fails_after_the_role_has_ended_is_no_failure(kubectl: Kubectl) -> None:
    kubectl.does("logs", "pass")
    kubectl.lists([pod(0, _DONE, "Failed")])
    assert kubectl.client(1).run()


def test_what_a_slow_cluster_creates_is_deleted(
    kubectl: Kubectl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_CALL_TIMEOUT_S", 1.0)
    kubectl.does("create", "time.sleep(60)")
    with pytest.raises(JobFailed, match="kubectl create took longer than 1 s"):
        kubectl.client(1).run()
    manifests = kubectl.run_directory / "manifests.yaml"
    (deleted,) = kubectl.calls("delete")
    assert deleted == f"delete --ignore-not-found --wait=false --filename {manifests}"


@pytest.mark.job
@pytest.mark.usefixtures("default_signals")
@pytest.mark.parametrize("is_slow", [False, True])
def test_a_second_interrupt_leaves_no_pods_in_silence(kubectl: Kubectl, is_slow: bool) -> None:
    """It ends the client, which deletes; what it has left is deleted, or the command is shown."""
    pytest.importorskip("yaml")
    kubectl.does("delete", f"time.sleep(8 if {is_slow} or before == 0 else 0)")
    kubectl.lists([pod(0, _RUNS), pod(1, _RUNS)])
    environment = {**os.environ, "PATH": f"{kubectl.state}:{os.environ['PATH']}"}
    on = ["--on", "kubernetes", "--image", "x/y:1", "--apply", "--servers", "0", "--", "true"]
    job = Started([*RUN, *on], kubectl.state, 2, environment)
    job.process.send_signal(signal.SIGINT)
    deadline_s = time.monotonic() + NAMED_S
    while not kubectl.calls("delete"):
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    job.process.send_signal(signal.SIGINT)
    assert job.end(NAMED_S) == (130, "byteprophet: error: interrupted")
    deleted = kubectl.calls("delete")[-1]
    assert deleted.startswith("delete --ignore-not-found --wait=false --filename ")
    assert len(kubectl.calls("delete")) == 2
    shown = f"pods may be left in the cluster; they are deleted with: kubectl {deleted}"
    assert (shown in job.errors.read_text()) == is_slow
