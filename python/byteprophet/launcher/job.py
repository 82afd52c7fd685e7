"""Runs one job: the parts of this package, put together in the order of their undoing.

    Signals       Ctrl-C and SIGTERM become a request                      signals.py
    Descendants   whatever the roles start stays findable                  descendants.py
    Caretaker     cleans up even if this process is killed                 caretaker.py
    Cluster       one host per role, if asked for                          byteprophet.network
    StoppedWatch  finds roles that were stopped and left so                stopped.py
    Stepper       changes links in mid-run, if asked for                   stepper.py
    Supervisor    starts the roles, watches, decides, ends them            supervisor.py, role.py

One job at a time in a process: signal handlers and the child subreaper are the process' own.
"""

from __future__ import annotations

import os
import signal
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path

from byteprophet.launcher import rundir
from byteprophet.launcher.caretaker import Caretaker
from byteprophet.launcher.descendants import Descendants
from byteprophet.launcher.environment import told_environment
from byteprophet.launcher.leftovers import Leftovers
from byteprophet.launcher.plan import ResolvedJob, plan_roles, resolve_job
from byteprophet.launcher.signals import Signals
from byteprophet.launcher.spec import Echo, JobResult, JobSpec
from byteprophet.launcher.stepper import Stepper
from byteprophet.launcher.stopped import StoppedWatch
from byteprophet.launcher.supervisor import Supervisor
from byteprophet.network import Cluster

_KILL_TIMEOUT_S = 5.0
# A Unix socket's path has 107 bytes, of which "/byteprophet-abcdefgh/worker-999/socket_send_nccl63"
# takes 51.
_LONGEST_TEMPORARY = 56

_one_job = threading.Lock()


def check_job(spec: JobSpec) -> None:
    """UserError where ``spec`` cannot be started here; starts and writes nothing."""
    resolve_job(spec)


def run_job(spec: JobSpec, echo: Echo | None = None) -> JobResult:
    """Runs ``spec`` to its end and returns how it ended; nothing of it is left behind.

    ``echo`` gets every line of every role. Raises UserError where the job cannot be started as
    written. A job that failed is a JobResult with ``failed`` (see JobResult.check). On SIGINT
    the job is ended and KeyboardInterrupt raised, on SIGTERM or SIGHUP SystemExit with 128 plus
    the signal's number. summary.json is written in all these cases.
    """
    if not _one_job.acquire(blocking=False):
        raise RuntimeError("run_job: this process already runs a job")
    try:
        job = resolve_job(spec)
        rundir.prepare(
            spec,
            {"port": job.port, "partition_bytes": job.partition_bytes, "settings": job.settings},
            told_environment(job.environment),
        )
        with Signals() as signals:
            result = _run(job, signals, echo)
            interrupted = signals.received
        status = "interrupted" if interrupted else "failed" if result.failed else "done"
        rundir.write_summary(spec.run_directory, status, result)
    finally:
        _one_job.release()
    if interrupted == signal.SIGINT:
        raise KeyboardInterrupt
    if interrupted is not None:
        raise SystemExit(128 + interrupted)
    return result


def _run(job: ResolvedJob, signals: Signals, echo: Echo | None) -> JobResult:
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
        # BytePS names its shared memory after the root port and the worker. On a host of its own
        # it lies in the host's own /dev/shm and goes with it.
        shared = () if spec.namespaces else (f"BytePS_*_{job.port}_*_*",)
        leftovers = Leftovers(str(spec.run_directory.absolute()), str(temporary), shared)
        descendants = stack.enter_context(Descendants())
        descendants.spared.add(stack.enter_context(Caretaker(leftovers)).pid)
        stack.callback(descendants.reap_orphans)
        hosts, cluster = None, None
        if spec.namespaces:
            cluster = stack.enter_context(Cluster(job.host_specs()))
            descendants.spared |= cluster.pids
            hosts = cluster.hosts
        plans = plan_roles(job, hosts, temporary)
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
    wall_s = round(time.monotonic() - started_s, 3)
    return JobResult(0 if failed is None else 1, roles, failed, wall_s)


def _temporary_parent() -> str:
    parent = tempfile.gettempdir()
    return parent if len(os.fsencode(parent)) <= _LONGEST_TEMPORARY else "/tmp"  # noqa: S108
