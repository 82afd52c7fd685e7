"""The client of all pods of a job, as a program.

    python -m byteprophet.remote.kubernetes.client TASK.json

It creates the manifests' objects by kubectl, shows and keeps the logs of all pods, waits until the
workers have succeeded or any pod has failed, and deletes everything. SIGTERM makes it delete
everything at once. Statuses: 0 done, 1 a pod has failed, 143 after SIGTERM.

Threads: the main thread asks the cluster once per second what pods there are, and decides. For
each pod that has started, a thread reads ``kubectl logs --follow`` (follower.py); it alone writes
that pod's log, and appends to ``Follower.lines``, which the main thread reads after the join. All
print whole lines under one lock. No thread waits for another while it holds a lock.
"""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from byteprophet.errors import Error, JobFailed, UserError, one_line
from byteprophet.input_files import read_json
from byteprophet.remote.kubernetes.absent import Absent
from byteprophet.remote.kubernetes.follower import Follower, close_all, say
from byteprophet.remote.kubernetes.pod import Pod, parse_pods
from byteprophet.remote.programs import run_program
from byteprophet.remote.verdicts import told_cause
from byteprophet.whole_files import OneWarning, write_whole

PODS = "pods.json"
"""In the run directory: the exit status of each role whose pod has ended."""
_PERIOD_S = 1.0
_TICK_S = 0.1
_CALL_TIMEOUT_S = 60.0
_SILENT_S = 60.0  # how long the cluster may not answer
_LAST_LINES_S = 10.0
_FAREWELL_S = 15.0  # for servers and scheduler to end after all workers
_FIRST_CAUSE_S = 3.0  # for the pod that has failed first to be seen
_PENDING_S = 30.0
_TERMINATED = 143
_TOO_SLOW = 124  # the status of a kubectl that was ended at its timeout
# What a pod waits for in vain.
_HOPELESS = (
    "CreateContainerConfigError", "CreateContainerError", "ErrImageNeverPull", "ImagePullBackOff",
    "InvalidImageName", "RunContainerError",
)  # fmt: skip


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


def all_objects(task: Task) -> list[str]:
    """All objects of the job, for ``deletion``, where it is not known which have been created."""
    return ["--filename", task.manifests]


def deletion(objects: Sequence[str]) -> list[str]:
    """The arguments with which kubectl deletes ``objects``, whether or not they exist."""
    return ["delete", "--ignore-not-found", "--wait=false", *objects]


def deletion_by_hand(task: Task, objects: Sequence[str]) -> str:
    """The whole command, for people."""
    return shlex.join(["kubectl", *task.kubectl[1:], *deletion(objects)])


class Client:
    """Runs one job to its end. ``ask`` makes it end at once; a signal handler may call it."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._asked = False  # no lock, which the interrupted main thread might hold
        self._followers: dict[str, Follower] = {}  # by the pod's name
        self._to_delete: list[str] = []  # objects, for kubectl
        self._ended: dict[str, int] = {}  # by role, the status; also of pods that have gone since
        self._told: set[tuple[str, str]] = set()  # which pod was said to wait for what
        self._absent = Absent(task.name, task.counts, task.manifests, self._kubectl)
        self._unwritten = OneWarning("the job goes on, and logs and summary.json lack what follows")
        self._answered_s = self._started_s = time.monotonic()

    def ask(self, *_: object) -> None:
        """Have ``run`` delete the job and return."""
        self._asked = True

    def run(self) -> bool:
        """Creates all objects, waits, and deletes them. False: somebody has asked for the end.

        Raises ``JobFailed`` if a pod has failed, or if the cluster does not answer.
        """
        try:
            self._create()
            return self._wait()
        finally:
            # Only pods that have ended are waited for: the others end by the deletion.
            close_all(self._followers.values(), 0.0 if self._asked else _LAST_LINES_S)
            self._delete()

    def _create(self) -> None:
        # Not "apply", which would change a job of the same name.
        done = self._kubectl("create", "--filename", self._task.manifests, "--output", "name")
        is_known = done.returncode != _TOO_SLOW
        self._to_delete = done.stdout.split() if is_known else all_objects(self._task)
        if done.returncode != 0:
            raise JobFailed(f"kubectl create: {_said(done)}")

    def _wait(self) -> bool:
        workers_ended_s = None
        while self._pause(_PERIOD_S):
            pods = self._look()
            if pods is None:
                continue
            failed = [pod for pod in pods if pod.has_failed]
            if failed:
                self._pause(_FIRST_CAUSE_S)
                raise JobFailed(self._cause([*(self._look() or []), *failed]))
            if not self._have_workers_ended(pods):
                self._absent.check(pods, self._ended)
                continue
            workers_ended_s = workers_ended_s or time.monotonic()
            is_late = time.monotonic() - workers_ended_s > _FAREWELL_S
            if is_late or all(pod.status == 0 for pod in pods):
                return True
        return False

    def _have_workers_ended(self, pods: Sequence[Pod]) -> bool:
        """Whether all have succeeded."""
        ended = {role for role, status in self._ended.items() if status == 0}
        ended |= {pod.role for pod in pods if pod.phase == "Succeeded"}
        return sum(role.startswith("worker-") for role in ended) >= self._task.counts["worker"]

    def _pause(self, seconds: float) -> bool:
        """Sleeps; at once False if somebody has asked for the end."""
        end_s = time.monotonic() + seconds
        while not self._asked and time.monotonic() < end_s:
            time.sleep(_TICK_S)
        return not self._asked

    def _look(self) -> list[Pod] | None:
        """The pods that there are; None: the cluster does not answer, but may yet.

        Follows the logs of new ones, and keeps how those that ended have ended.
        """
        done = self._kubectl(
            "get", "pods", "--selector", f"app.kubernetes.io/instance={self._task.name}",
            "--output", "json",
        )  # fmt: skip
        if done.returncode != 0:
            if time.monotonic() - self._answered_s > _SILENT_S:
                raise JobFailed(f"kubectl get pods: {_said(done)}")
            return None
        self._answered_s = time.monotonic()
        pods = parse_pods(done.stdout)
        for pod in pods:
            if pod.has_started and pod.name not in self._followers:
                log = Path(self._task.run_directory) / "logs" / f"{pod.role}.log"
                self._followers[pod.name] = Follower(self._task.kubectl, pod, log, self._unwritten)
            elif not pod.has_started:
                self._tell_of(pod)
            if pod.status is not None:
                self._followers[pod.name].end_with_log()
                self._ended[pod.role] = pod.status
        with self._unwritten.instead():
            path = Path(self._task.run_directory) / PODS
            write_whole(path, json.dumps(self._ended) + "\n")
        return pods

    def _tell_of(self, pod: Pod) -> None:
        """Says once what a pod waits for. Raises ``JobFailed`` if it does so in vain."""
        text = f"{pod.role} ({pod.place}): {pod.waits}" + (f": {pod.hint}" if pod.hint else "")
        if pod.waits in _HOPELESS:
            raise JobFailed(text)
        waited_s = time.monotonic() - self._started_s
        if pod.waits and waited_s > _PENDING_S and (pod.name, pod.waits) not in self._told:
            self._told.add((pod.name, pod.waits))
            say(f"byteprophet: after {waited_s:.0f} s, one waits: {one_line(text)}")

    def _cause(self, pods: Sequence[Pod]) -> str:
        """One line about why the job has failed.

        The scheduler role's verdict comes first, then what the failed pods' roles said themselves.
        """
        close_all(self._followers.values(), _LAST_LINES_S)
        said = {each.role: list(each.lines) for each in self._followers.values()}
        failed = [pod for pod in pods if pod.has_failed]
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

    def _delete(self) -> None:
        if not self._to_delete:
            return
        done = self._kubectl(*deletion(self._to_delete))
        if done.returncode != 0:
            say(
                f"byteprophet: warning: kubectl delete: {_said(done)}; what is left in the cluster "
                f"is deleted with: {deletion_by_hand(self._task, self._to_delete)}"
            )

    def _kubectl(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [*self._task.kubectl, *arguments]
        try:
            return run_program(command, f"kubectl {arguments[0]}", _CALL_TIMEOUT_S)
        except UserError as error:  # it took too long
            return subprocess.CompletedProcess(command, _TOO_SLOW, "", str(error))


def _said(done: subprocess.CompletedProcess[str]) -> str:
    return one_line(done.stderr) or f"it ended with status {done.returncode}"


def main(path: str) -> int:
    """Runs the task in ``path``; its exit status."""
    try:
        client = Client(Task(**read_json(Path(path))))
        signal.signal(signal.SIGTERM, client.ask)
        return 0 if client.run() else _TERMINATED
    except Error as error:
        say(f"byteprophet: error: {one_line(str(error))}")
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
