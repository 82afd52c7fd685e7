"""A job in pods of Kubernetes: its manifests are printed, or applied and watched.

kubectl does what is done in the cluster. Here is one process for all pods, the client (client.py),
which the launcher supervises as it does mpirun (mpi.py).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from byteprophet.errors import UserError, warn
from byteprophet.input_files import read_json
from byteprophet.launcher.environment import base_environment
from byteprophet.launcher.job import run_resolved
from byteprophet.launcher.plan import ResolvedJob, resolve_on_hosts
from byteprophet.launcher.restarts import Start
from byteprophet.launcher.role import RolePlan
from byteprophet.launcher.spec import Echo, JobResult, JobSpec, RoleResult
from byteprophet.network.tools import require
from byteprophet.remote.client_limits import with_client_limits
from byteprophet.remote.echoes import by_role
from byteprophet.remote.job import carried_environment, refuse_local
from byteprophet.remote.kubernetes.client import (
    PODS,
    Task,
    all_objects,
    deletion,
    deletion_by_hand,
)
from byteprophet.remote.kubernetes.manifests import (
    job_objects,
    manifest_text,
    role_counts,
    run_directory_in,
)
from byteprophet.remote.kubernetes.pods_file import EXAMPLE_IMAGE, PodsFile, read_pods_file
from byteprophet.remote.programs import run_program
from byteprophet.whole_files import write_whole

MANIFESTS = "manifests.yaml"
_KUBECTL = "kubectl"
_CHECK_TIMEOUT_S = 60.0
# Variables that ask for records, and nothing else, and the options that set them.
_RECORDS = {"BYTEPROPHET_RECORD": "--record", "BYTEPROPHET_MONITOR": "--monitor, --probe"}
_DELETE_TIMEOUT_S = 5.0  # for a user who has pressed Ctrl-C twice


def open_pods(file: Path | None, image: str | None, jobset: bool, applies: bool) -> InPods:
    """Pods as ``file`` says, of ``image`` if it is not None. Raises ``UserError``."""
    if image is not None and (not image or not image.isprintable() or " " in image):
        raise UserError(f"--image {image!r}: give an image's name, e.g. {EXAMPLE_IMAGE}")
    pods = read_pods_file(file)
    return InPods(pods if image is None else replace(pods, image=image), jobset, applies)


@dataclass(frozen=True)
class InPods:
    """A launcher of pods. ``applies``: it starts them; otherwise it only says what they are."""

    pods: PodsFile
    jobset: bool
    applies: bool

    def counts(self, workers: int | None, servers: int | None) -> tuple[int, int]:
        """The numbers of workers and servers, as on this machine."""
        return 2 if workers is None else workers, 1 if servers is None else servers

    def text(self, spec: JobSpec) -> str | None:
        """The job as YAML, for ``kubectl apply``; None: this launcher applies it itself.

        A JobSet starts its pods again as often as ``spec`` allows; plain Jobs cannot. Raises
        ``UserError`` if there can be no such job.
        """
        if self.applies:
            return None
        _check(spec)
        if spec.max_restarts and not self.jobset:
            raise UserError(
                "--restarts: plain Jobs do not start again together; use --jobset, or --apply"
            )
        if self.pods.image is None:
            warn(f"image: none is given (--image), so the manifests have {EXAMPLE_IMAGE}")
        return self._manifests(spec, spec.max_restarts)

    def prepare(self, spec: JobSpec) -> Start:
        """Asks the cluster whether it would take the job. Raises ``UserError`` if it would not."""
        _check(spec)
        if self.pods.image is None:
            raise UserError("--apply: name the image of the pods with --image")
        self._refuse_lost_records(spec)
        kubectl = _find_kubectl()
        text = self._manifests(spec, 0)  # this launcher starts the job again itself
        with_input = [kubectl, *self._namespace, "create", "--dry-run=server", "--filename", "-"]
        done = run_program(with_input, f"--apply: {kubectl}", _CHECK_TIMEOUT_S, text)
        if done.returncode != 0:
            said = " ".join(done.stderr.split()) or f"status {done.returncode}"
            raise UserError(f"--apply: the cluster does not take the job: {said}")
        return lambda spec, echo: self._run(kubectl, spec, echo)

    def _refuse_lost_records(self, spec: JobSpec) -> None:
        """Raises ``UserError`` if a user asks for records, all of which would end with the pods."""
        kept = run_directory_in(self.pods)
        is_kept = any(kept.is_relative_to(path) for path in self.pods.volumes)
        carried = carried_environment(spec)
        for variable, option in _RECORDS.items():
            if carried.get(variable, "0") != "0" and not is_kept:
                asked = option if variable in spec.environment else variable
                raise UserError(
                    f"{asked}: with --apply, pods write records to {kept}, which ends with them: "
                    "have a volume there (volumes in the pods file), or leave it out"
                )

    @property
    def _namespace(self) -> list[str]:
        return [] if self.pods.namespace is None else ["--namespace", self.pods.namespace]

    def _manifests(self, spec: JobSpec, restarts: int) -> str:
        pods = replace(self.pods, name=self._name(spec))
        return manifest_text(job_objects(pods, spec, self.jobset, restarts))

    def _name(self, spec: JobSpec) -> str:
        """Another one for each start: objects of the start before are still being deleted."""
        return self.pods.name + (f"-{spec.restart}" if spec.restart else "")

    def _run(self, kubectl: str, spec: JobSpec, echo: Echo | None) -> JobResult:
        job = resolve_on_hosts(with_client_limits(spec), "", "", 0, None, runs_here=False)
        run_directory = spec.run_directory.absolute()
        task = Task(
            kubectl=[kubectl, *self._namespace],
            name=self._name(spec),
            counts=role_counts(spec),
            manifests=str(run_directory / MANIFESTS),
            run_directory=str(run_directory),
        )
        elsewhere = _Elsewhere(task, self._manifests(spec, 0), run_directory)
        try:
            return run_resolved(job, None if echo is None else by_role(echo), elsewhere)
        finally:
            elsewhere.delete_rest()


class _Elsewhere:
    """See ``launcher.job.Elsewhere``."""

    def __init__(self, task: Task, manifests: str, run_directory: Path) -> None:
        self._task = task
        self._manifests = manifests
        self._run_directory = run_directory
        self._may_be_left = False  # objects in the cluster

    def plans(self, job: ResolvedJob, temporary: Path) -> list[RolePlan]:
        write_whole(self._run_directory / MANIFESTS, self._manifests)
        path = temporary / "task.json"
        write_whole(path, json.dumps(asdict(self._task)))
        # SIGTERM if this process is killed: the client then deletes the job.
        argv = [require("setpriv"), "--pdeathsig", "TERM", "--", sys.executable, "-m"]
        argv += ["byteprophet.remote.kubernetes.client", str(path)]
        environment = base_environment(os.environ, {})
        log = self._run_directory / "logs" / f"{_KUBECTL}.log"
        self._may_be_left = True
        return [RolePlan(_KUBECTL, "worker", argv, environment, self._run_directory, log, host="")]

    def results(self, roles: tuple[RoleResult, ...]) -> tuple[RoleResult, ...]:
        """The roles in pods; their processes' ids and times stay in the cluster."""
        self._may_be_left = any(role.exit_status < 0 for role in roles)  # a client that was killed
        try:
            ended: dict[str, int] = read_json(self._run_directory / PODS)
        except UserError:  # it ended before
            return roles
        return tuple(RoleResult(name, 0, status, 0.0, False) for name, status in ended.items())

    def delete_rest(self) -> None:
        """Deletes what a client has left that was killed, e.g. because of a second Ctrl-C."""
        if not self._may_be_left:
            return
        objects, is_deleted = all_objects(self._task), False
        try:
            # In a session of its own it goes on after this process, and no other Ctrl-C reaches it.
            process = subprocess.Popen(
                [*self._task.kubectl, *deletion(objects)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            is_deleted = process.wait(_DELETE_TIMEOUT_S) == 0
        except (OSError, subprocess.TimeoutExpired):
            pass
        finally:
            if not is_deleted:
                warn(
                    "pods may be left in the cluster; they are deleted with: "
                    f"{deletion_by_hand(self._task, objects)}"
                )


def _check(spec: JobSpec) -> None:
    refuse_local(spec)
    if spec.controller:
        raise UserError("--controller: not with --on kubernetes")
    resolve_on_hosts(spec, "", "", 0, None, runs_here=False)


def _find_kubectl() -> str:
    path = shutil.which(_KUBECTL)
    if path is None:
        raise UserError(
            "--apply: kubectl is not installed here (https://kubernetes.io/docs/tasks/tools/); "
            "without --apply, the manifests are printed"
        )
    return path
