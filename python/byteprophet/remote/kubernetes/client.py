"""The client of all pods of a job, as a program.

    python -m byteprophet.remote.kubernetes.client TASK.json

It creates the manifests' objects by kubectl, shows and keeps the logs of all pods, waits until the
workers have succeeded or any pod has failed, and deletes everything. SIGTERM makes it delete
everything at once. Statuses: 0 done, 1 a pod has failed, 143 after SIGTERM.

Threads: the main thread asks the cluster once per second what pods there are, and decides. For
each pod that has started, a thread reads ``kubectl logs --follow`` line by line; it alone writes
that pod's log, and appends to ``_Follower.lines``, which the main thread reads after the join. All
print whole lines under one lock. No thread waits for another while it holds that lock.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from byteprophet.errors import Error, JobFailed, UserError, one_line
from byteprophet.input_files import parse_json, read_json
from byteprophet.remote.echoes import with_role
from byteprophet.remote.programs import run_program
from byteprophet.remote.verdicts import told_cause
from byteprophet.whole_files import write_whole

PODS = "pods.json"
"""In the run directory: the exit status of each role whose pod has ended."""
_INDEX = "batch.kubernetes.io/job-completion-index"
_COMPONENT = "app.kubernetes.io/component"
_PERIOD_S = 1.0
_TICK_S = 0.1
_CALL_TIMEOUT_S = 60.0
_SILENT_S = 60.0  # how long the cluster may not answer
_LAST_LINES_S = 10.0
_FAREWELL_S = 15.0  # for servers and scheduler to end after all workers
_FIRST_CAUSE_S = 3.0  # for the pod that has failed first to be seen
_PENDING_S = 30.0
_TERMINATED = 143
# What a pod waits for in vain.
_HOPELESS = (
    "CreateContainerConfigError", "CreateContainerError", "ErrImageNeverPull", "ImagePullBackOff",
    "InvalidImageName", "RunContainerError",
)  # fmt: skip

_printing = threading.Lock()


@dataclass(frozen=True)
class Task:
    """What a client does.

    Attributes:
        kubectl: the start of every command.
        name: of the job's objects.
        counts: how many pods run each kind of role.
        manifests: the file with all objects.
        run_directory: of the job; it gets the logs.
    """

    kubectl: list[str]
    name: str
    counts: dict[str, int]
    manifests: str
    run_directory: str


@dataclass(frozen=True)
class Pod:
    """A pod as the cluster describes it.

    Attributes:
        role: the role that it runs, such as "worker-1".
        name, node: its own name, and its node's; "": it has no node yet.
        phase: Pending, Running, Succeeded, Failed or Unknown.
        waits: why its container has not started; "": it has, or nothing is known.
        hint: what the cluster says about that.
        status: the exit status of its container; None: it has not ended.
        reason: why the pod or its container ended, such as OOMKilled.
    """

    role: str
    name: str
    node: str
    phase: str
    waits: str
    hint: str
    status: int | None
    reason: str

    @classmethod
    def parse(cls, item: Mapping[str, Any]) -> Pod:
        """A pod of ``kubectl get pods --output json``."""
        metadata, spec, status = item["metadata"], item.get("spec", {}), item.get("status", {})
        marks = {**metadata.get("annotations", {}), **metadata.get("labels", {})}
        kind = marks.get(_COMPONENT, "")
        containers = status.get("containerStatuses") or [{}]
        state = containers[0].get("state", {})
        ended, waiting = state.get("terminated"), state.get("waiting", {})
        conditions = status.get("conditions", [])
        unscheduled = [each for each in conditions if each.get("reason") == "Unschedulable"]
        told = unscheduled[0] if unscheduled else waiting
        return cls(
            role=kind if kind == "scheduler" else f"{kind}-{marks.get(_INDEX, '?')}",
            name=metadata["name"],
            node=spec.get("nodeName", ""),
            phase=status.get("phase", "Unknown"),
            waits=told.get("reason", ""),
            hint=told.get("message", ""),
            status=None if ended is None else int(ended.get("exitCode", 1)),
            reason=status.get("reason") or (ended or {}).get("reason", ""),
        )

    @property
    def has_started(self) -> bool:
        """Whether it has a log."""
        return self.status is not None or self.phase == "Running"

    @property
    def place(self) -> str:
        """Where it runs, for people."""
        return f"pod {self.name}" + (f" on node {self.node}" if self.node else "")


class _Follower:
    """Shows and keeps the log of one pod."""

    def __init__(self, task: Task, pod: Pod) -> None:
        self.role = pod.role
        self.lines: deque[str] = deque(maxlen=100)
        path = Path(task.run_directory) / "logs" / f"{pod.role}.log"
        self._log = path.open("w", encoding="utf-8")
        self._process = subprocess.Popen(
            [*task.kubectl, "logs", "--follow", pod.name],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self._thread = threading.Thread(target=self._follow, name=pod.role, daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            text = line.rstrip("\n")
            self.lines.append(text)
            with suppress(OSError, ValueError):  # a full disk; a log that was closed
                self._log.write(text + "\n")
                self._log.flush()
            _say(with_role(self.role, text))

    def close(self, timeout_s: float) -> None:
        """Waits for the last line, for at most ``timeout_s``."""
        self._thread.join(timeout_s)
        self._process.kill()
        self._process.wait()
        self._thread.join(_LAST_LINES_S)
        with suppress(OSError):
            self._log.close()


class Client:
    """Runs one job to its end. ``ask`` makes it end at once; a signal handler may call it."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._asked = False  # no lock, which the interrupted main thread might hold
        self._followers: dict[str, _Follower] = {}  # by the pod's name
        self._created: list[str] = []  # names of objects, for kubectl
        self._told: set[tuple[str, str]] = set()  # which pod was said to wait for what
        self._answered_s = self._started_s = time.monotonic()

    def ask(self, *_: object) -> None:
        """Have ``run`` delete the job and return."""
        self._asked = True

    def run(self) -> bool:
        """Creates all objects, waits, and deletes them. False: somebody has asked for the end.

        Raises ``JobFailed`` if a pod has failed, or if the cluster does not answer.
        """
        try:
            # Not "apply", which would change a job of the same name.
            done = self._kubectl("create", "--filename", self._task.manifests, "--output", "name")
            self._created = done.stdout.split()
            if done.returncode != 0:
                raise JobFailed(f"kubectl create: {_said(done)}")
            return self._wait()
        finally:
            for follower in self._followers.values():
                follower.close(0.0 if self._asked else _LAST_LINES_S)
            self._delete()

    def _wait(self) -> bool:
        workers_ended_s = None
        while self._pause(_PERIOD_S):
            pods = self._look()
            failed = [pod for pod in pods if pod.phase == "Failed" or pod.status not in (None, 0)]
            if failed:
                self._pause(_FIRST_CAUSE_S)
                raise JobFailed(self._cause([*self._look(), *failed]))
            workers = [pod for pod in pods if pod.role.startswith("worker-")]
            succeeded = [pod for pod in workers if pod.status == 0 or pod.phase == "Succeeded"]
            if len(succeeded) >= self._task.counts["worker"]:
                workers_ended_s = workers_ended_s or time.monotonic()
                is_late = time.monotonic() - workers_ended_s > _FAREWELL_S
                if is_late or all(pod.status == 0 for pod in pods):
                    return True
        return False

    def _pause(self, seconds: float) -> bool:
        """Sleeps; at once False if somebody has asked for the end."""
        end_s = time.monotonic() + seconds
        while not self._asked and time.monotonic() < end_s:
            time.sleep(_TICK_S)
        return not self._asked

    def _look(self) -> list[Pod]:
        """The pods that there are; follows new ones, and keeps how those that ended have ended."""
        done = self._kubectl(
            "get", "pods", "--selector", f"app.kubernetes.io/instance={self._task.name}",
            "--output", "json",
        )  # fmt: skip
        if done.returncode != 0:
            if time.monotonic() - self._answered_s > _SILENT_S:
                raise JobFailed(f"kubectl get pods: {_said(done)}")
            return []
        self._answered_s = time.monotonic()
        pods = _parse(done.stdout)
        for pod in pods:
            if pod.has_started and pod.name not in self._followers:
                self._followers[pod.name] = _Follower(self._task, pod)
            elif not pod.has_started:
                self._tell_of(pod)
        ended = {pod.role: pod.status for pod in pods if pod.status is not None}
        write_whole(Path(self._task.run_directory) / PODS, json.dumps(ended) + "\n")
        return pods

    def _tell_of(self, pod: Pod) -> None:
        """Says once what a pod waits for. Raises ``JobFailed`` if it does so in vain."""
        text = f"{pod.role} ({pod.place}): {pod.waits}" + (f": {pod.hint}" if pod.hint else "")
        if pod.waits in _HOPELESS:
            raise JobFailed(text)
        waited_s = time.monotonic() - self._started_s
        if pod.waits and waited_s > _PENDING_S and (pod.name, pod.waits) not in self._told:
            self._told.add((pod.name, pod.waits))
            _say(f"byteprophet: after {waited_s:.0f} s, one waits: {one_line(text)}")

    def _cause(self, pods: Sequence[Pod]) -> str:
        """One line about why the job has failed.

        The scheduler role's verdict comes first, then what the failed pods' roles said themselves.
        """
        for follower in self._followers.values():
            follower.close(_LAST_LINES_S if self._has_ended(pods, follower.role) else 0.0)
        said = {each.role: list(each.lines) for each in self._followers.values()}
        failed = [pod for pod in pods if pod.phase == "Failed" or pod.status not in (None, 0)]
        for pod in failed:
            # What the system did to a pod, none of its processes could say.
            if pod.reason not in ("", "Error", "Completed"):
                return f"{pod.role} ({pod.place}) was ended: {pod.reason}"
        places = {pod.role: pod.place for pod in failed}
        cause = told_cause(said, list(places), places)
        if cause is not None:
            return cause
        first = failed[0]
        return f"{first.role} ({first.place}) ended with status {first.status}"

    @staticmethod
    def _has_ended(pods: Sequence[Pod], role: str) -> bool:
        return any(pod.role == role and pod.status is not None for pod in pods)

    def _delete(self) -> None:
        if not self._created:
            return
        done = self._kubectl("delete", "--ignore-not-found", "--wait=false", *self._created)
        if done.returncode != 0:
            _say(
                f"byteprophet: warning: kubectl delete: {_said(done)}; what is left in the cluster "
                f"is deleted with: kubectl delete {' '.join(self._created)}"
            )

    def _kubectl(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [*self._task.kubectl, *arguments]
        try:
            return run_program(command, f"kubectl {arguments[0]}", _CALL_TIMEOUT_S)
        except UserError as error:  # it took too long
            return subprocess.CompletedProcess(command, 1, "", str(error))


def _parse(text: str) -> list[Pod]:
    try:
        items = parse_json(text)["items"]
        return [Pod.parse(item) for item in items]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise JobFailed(f"kubectl get pods: cannot be understood: {error!r}") from None


def _said(done: subprocess.CompletedProcess[str]) -> str:
    return one_line(done.stderr) or f"it ended with status {done.returncode}"


def _say(text: str) -> None:
    with suppress(OSError), _printing:
        print(text, flush=True)


def main(path: str) -> int:
    """Runs the task in ``path``; its exit status."""
    try:
        client = Client(Task(**read_json(Path(path))))
        signal.signal(signal.SIGTERM, client.ask)
        return 0 if client.run() else _TERMINATED
    except Error as error:
        _say(f"byteprophet: error: {one_line(str(error))}")
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
