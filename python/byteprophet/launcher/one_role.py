"""One role of a job on this host, as a job file describes it.

A role's address is that of the interface through which this host reaches the job's root, or of the
interface that the user names. What ``job.py`` does for all roles of a job happens here for one: its
output is logged and shown, processes that it starts end with it, and so does it with this process.
"""

from __future__ import annotations

import ipaddress
import os
import re
import socket
from dataclasses import replace
from pathlib import Path

import psutil

from byteprophet.errors import UserError
from byteprophet.input_files import whole_number
from byteprophet.launcher.checks import LOOPBACK_INTERFACE, interface_address
from byteprophet.launcher.environment import RoleName, base_environment
from byteprophet.launcher.job import run_resolved
from byteprophet.launcher.job_file import Address, JobFile
from byteprophet.launcher.leftovers import marked_processes
from byteprophet.launcher.plan import ResolvedJob, resolve_on_hosts
from byteprophet.launcher.spec import Echo, JobResult, JobSpec
from byteprophet.silence import start_timeout_s
from byteprophet.whole_files import writing

# Matches what a role says that has waited in vain for others: ours, and torch's.
_WAITED = re.compile(r"\bwaited [\d.]+ s for\b|\btimed out\b", re.IGNORECASE)

KINDS = ("scheduler", "server", "worker", "rank", "controller")
JOBSET_RESTART = "JOBSET_RESTART_ATTEMPT"
"""The variable that pods of a JobSet get: how often they were all started again."""


def run_role(
    job: JobFile, kind: str, index: int, interface: str | None, echo: Echo | None = None
) -> JobResult:
    """Run role ``index`` of ``kind`` to its end, and return its result.

    ``interface`` is None if the route to the root decides. Raises ``UserError`` if the job has no
    such role, if this host cannot reach the root, or if it runs that role already. Signals are
    handled as by ``run_job``.
    """
    role = resolve_role(job, kind, index, interface)
    _refuse_a_second(role)
    _remove_earlier(role)
    result = run_resolved(role, echo)
    if result.failed is None or not _WAITED.search(result.failed):
        return result
    return replace(result, failed=_with_loopback(result.failed, job.root, role.root))


def _with_loopback(failed: str, root: Address, address: str) -> str:
    """``failed``, and that ``root`` leads to loopback on this host, if it is a name that does.

    Debian's installer, for example, has a host's own name lead to 127.0.1.1 there.
    """
    if root.host == address or not ipaddress.ip_address(address).is_loopback:
        return failed
    cause, separator, log = failed.partition("; its log: ")
    return (
        f"{cause}; on this host, the root's name {root.host} leads to {address}, which no other "
        f"host reaches: correct /etc/hosts here, or give the root's address instead of its name"
        f"{separator}{log}"
    )


def _refuse_a_second(role: ResolvedJob) -> None:
    """Otherwise the end of the second one would kill the processes of the first one, too."""
    run_directory = str(role.spec.run_directory.absolute())
    for name in role.names:
        running = marked_processes(run_directory, name.name)
        if running:
            raise UserError(
                f"{name.name}: this host runs it already, with the run directory {run_directory} "
                f"(process {running[0]}): end that one, or give this job another run_directory"
            )


def _remove_earlier(role: ResolvedJob) -> None:
    """Removes how an earlier run of this role ended, which a viewer would take for this one's end.

    The next run of a job file has the same run directory.
    """
    run_directory = role.spec.run_directory
    statuses = (run_directory / "live" / f"{name.name}.json" for name in role.names)
    for path in (run_directory / role.summary, *statuses):
        with writing(path):
            path.unlink(missing_ok=True)


def resolve_role(job: JobFile, kind: str, index: int, interface: str | None) -> ResolvedJob:
    """What ``run_role`` starts. Raises ``UserError`` as it does, and starts nothing."""
    spec = _restarted(job.spec)
    timeout_s = start_timeout_s(base_environment(os.environ, spec.environment))
    root = job.root.resolved(timeout_s)
    wanted = "worker" if kind == "rank" else kind
    if kind == "rank" and spec.servers:
        raise UserError("rank: a job with servers has workers; use worker")
    if interface is None:
        address = _route_to(root)
        interface = _interface_of(address)
    else:
        address = interface_address(interface)
    spec = replace(spec, interface=interface)
    controller = None if job.controller is None else job.controller.resolved(timeout_s)
    resolved = resolve_on_hosts(
        spec, address, root.host, root.port, None if controller is None else controller.port
    )
    names = tuple(name for name in resolved.names if (name.kind, name.index) == (wanted, index))
    if not names:
        raise UserError(f"{kind} {index}: the job has {_counts(resolved.names)}")
    return replace(
        resolved,
        names=names,
        controller_host="" if controller is None else controller.host,
        # Roles start in different directories: a relative path is from where this process is.
        controller_keys=str(Path(job.controller_keys).absolute()) if job.controller_keys else "",
        mesh_key=job.mesh_key,
    )


def _restarted(spec: JobSpec) -> JobSpec:
    """``spec`` with the number of the restart, where a JobSet of Kubernetes starts pods again."""
    number = whole_number(os.environ.get(JOBSET_RESTART, ""))
    return spec if number is None else replace(spec, restart=number)


def _counts(names: tuple[RoleName, ...]) -> str:
    """The roles of a job, as "1 scheduler, 2 workers"."""
    kinds = list(dict.fromkeys(name.kind for name in names))
    counts = {kind: len({name.index for name in names if name.kind == kind}) for kind in kinds}
    return ", ".join(f"{count} {kind}{'s' * (count > 1)}" for kind, count in counts.items())


def _route_to(root: Address) -> str:
    """The address from which this host would send to ``root``. Sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((root.host, root.port))
        except OSError as error:
            raise UserError(
                f"root {root.host}: this host has no route to it ({error.strerror}): name an "
                "interface with --interface"
            ) from None
        address: str = probe.getsockname()[0]
        return address


def _interface_of(address: str) -> str:
    for name, addresses in psutil.net_if_addrs().items():
        if any(each.address == address for each in addresses):
            return name
    return LOOPBACK_INTERFACE
