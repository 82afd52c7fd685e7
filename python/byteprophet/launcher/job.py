"""Runs one job.

These parts work together. They are set up in this order and undone in the reverse order.

    Signals       Ctrl-C and SIGTERM become a request                      signals.py
    Descendants   all processes that roles start can be found              descendants.py
    Caretaker     cleans up even if this process is killed                 caretaker.py
    Cluster       one host per role, if asked for                          byteprophet.network
    StoppedWatch  finds roles that were stopped and not continued          stopped.py
    Stepper       changes links during the run, if asked for               stepper.py
    Supervisor    starts roles, watches them, decides, ends them           supervisor.py, role.py
    Shown         passes their lines on, whether or not somebody reads     shown.py

A process can run only one job at a time, because it has only one set of signal handlers and one
child subreaper state.
"""

from __future__ import annotations

import os
import signal
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

from byteprophet.errors import EndedBySignal, UserError
from byteprophet.launcher import rundir
from byteprophet.launcher.caretaker import Caretaker
from byteprophet.launcher.descendants import Descendants
from byteprophet.launcher.environment import told_environment
from byteprophet.launcher.leftovers import Leftovers
from byteprophet.launcher.plan import ResolvedJob, plan_roles, resolve_job
from byteprophet.launcher.role import RolePlan
from byteprophet.launcher.signals import Signals
from byteprophet.launcher.spec import Echo, JobResult, JobSpec, RoleResult
from byteprophet.launcher.stepper import Stepper
from byteprophet.launcher.stopped import StoppedWatch
from byteprophet.launcher.supervisor import Supervisor
from byteprophet.network import Cluster
from byteprophet.whole_files import kept_room

_KILL_TIMEOUT_S = 5.0
# A Unix socket's path has at most 107 bytes. 51 of them are for
# "/byteprophet-abcdefgh/worker-999/socket_send_nccl63".
_LONGEST_TEMPORARY = 56

_one_job = threading.Lock()


def check_job(spec: JobSpec) -> None:
    """Raises ``UserError`` if ``spec`` cannot be started here. Starts and writes nothing."""
    resolve_job(spec)


def run_job(spec: JobSpec, echo: Echo | None = None) -> JobResult:
    """Runs ``spec`` to its end and returns the result. Its processes and temporary files are gone.

    ``echo`` gets every line of every role. If the job fails, the result has ``failed`` (see
    JobResult.check). Raises ``UserError`` if the job cannot be started as specified. SIGINT ends
    the job and raises ``KeyboardInterrupt``; SIGTERM and SIGHUP end it and raise
    ``EndedBySignal``, a ``SystemExit``. summary.json is written unless ``UserError`` is raised or a
    SIGINT follows another signal.
    """
    return run_resolved(resolve_job(spec), echo)


class Elsewhere(Protocol):
    """Runs a job's roles on other hosts: each is a process here that is a client of the role there.

    The client passes on what the role prints and its exit status, ends it on SIGTERM, and ends only
    when nothing of the role is left there.
    """

    def plans(self, job: ResolvedJob, temporary: Path) -> list[RolePlan]:
        """The clients, in the order of their start. ``temporary`` is removed when all ended."""

    def results(self, roles: tuple[RoleResult, ...]) -> tuple[RoleResult, ...]:
        """The results of the roles themselves, where they are known; ``roles``: the clients'."""


def run_resolved(
    job: ResolvedJob, echo: Echo | None = None, elsewhere: Elsewhere | None = None
) -> JobResult:
    """Runs a job, or a role of one, as ``run_job`` does. ``elsewhere``: on other hosts."""
    spec = job.spec
    if not _one_job.acquire(blocking=False):
        raise RuntimeError("run_job: this process already runs a job")
    try:
        rundir.prepare(
            spec,
            {"port": job.port, "partition_bytes": job.partition_bytes, "settings": job.settings},
            told_environment(job.environment),
            elsewhere=elsewhere is not None,
        )
        with Signals() as signals:
            with kept_room(spec.run_directory, rundir.SUMMARY_BYTES):
                result, cancelled = _run(job, signals, echo, elsewhere)
            status = "interrupted" if signals.received else "failed" if result.failed else "done"
            result = rundir.write_summary(spec.run_directory / job.summary, status, result)
    finally:
        _one_job.release()
    if signals.received == signal.SIGINT:
        raise KeyboardInterrupt
    if signals.received is not None:
        raise EndedBySignal(signals.received, cancelled)
    return result


def _run(
    job: ResolvedJob, signals: Signals, echo: Echo | None, elsewhere: Elsewhere | None
) -> tuple[JobResult, str | None]:
    """The result, and what Slurm said if it ended the job."""
    spec = job.spec
    started_s = time.monotonic()
    with ExitStack() as stack:
        temporary = Path(
            stack.enter_context(
                tempfile.TemporaryDirectory(
                    prefix="byteprophet-", dir=_temporary_parent(), ignore_cleanup_errors=True
                )
            )
        )
        # A host in namespaces has its own /dev/shm, which disappears with it.
        shared = () if spec.namespaces or elsewhere is not None else job.shared_memory
        own = () if job.is_whole else tuple(name.name for name in job.names)
        run = str(spec.run_directory.absolute())
        leftovers = Leftovers(run, str(temporary), shared, own)
        descendants = stack.enter_context(Descendants())
        descendants.spared.add(stack.enter_context(Caretaker(leftovers)).pid)
        stack.callback(descendants.reap_orphans)
        hosts, cluster = None, None
        if spec.namespaces:
            cluster = stack.enter_context(Cluster(job.host_specs()))
            descendants.spared |= cluster.pids
            hosts = cluster.hosts
        if elsewhere is None:
            plans = plan_roles(job, hosts, temporary)
        else:
            plans = elsewhere.plans(job, temporary)
        stopped_s = None if job.dead_after_s is None else job.dead_after_s + spec.limits.stopped_s
        stopped = StoppedWatch(descendants, stopped_s)
        supervisor = Supervisor(descendants, signals, spec.limits, stopped, echo)
        stack.callback(descendants.kill_all, _KILL_TIMEOUT_S)
        stepper = None
        if cluster is not None and spec.steps:
            stepper = Stepper(cluster, job.stepped_hosts(), spec.steps, spec.run_directory)
        try:
            failed = supervisor.run(plans, spec.timeout_s)
        finally:
            try:
                if stepper is not None:
                    stepper.close()
            finally:
                supervisor.stop()
        if stepper is not None:
            failed = failed or stepper.failed
        roles = supervisor.results()
        if elsewhere is not None:
            roles = elsewhere.results(roles)
    wall_s = round(time.monotonic() - started_s, 3)
    result = JobResult(0 if failed is None else 1, roles, failed, wall_s, spec.restart)
    return result, supervisor.cancelled()


def _temporary_parent() -> str:
    try:
        parent = tempfile.gettempdir()
    except OSError as error:  # Python has tried all candidates
        raise UserError(f"TMPDIR: {error.strerror}") from None
    return parent if len(os.fsencode(parent)) <= _LONGEST_TEMPORARY else "/tmp"  # noqa: S108
