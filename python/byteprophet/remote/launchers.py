"""The ways to run a job that ``byteprophet run --on`` offers, apart from this machine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from byteprophet.errors import UserError
from byteprophet.launcher.plan import resolve_on_hosts
from byteprophet.launcher.spec import Echo, JobResult, JobSpec
from byteprophet.remote.hosts_file import read_hosts_file
from byteprophet.remote.job import find_site, refuse_local, run_at
from byteprophet.remote.mpi import find_mpi_site, run_by_mpirun
from byteprophet.remote.placement import usual_servers, usual_workers
from byteprophet.remote.places import Places
from byteprophet.remote.slurm import Slurm, allocated_nodes, enter_allocation, is_in_allocation

LOCAL, SSH, SLURM, MPI = LAUNCHERS = ("local", "ssh", "slurm", "mpi")

Start = Callable[[JobSpec, Echo | None], JobResult]


class Launcher(Protocol):
    """A way to run jobs. The numbers of roles are None if the user gives none."""

    def counts(self, workers: int | None, servers: int | None) -> tuple[int, int]:
        """The numbers of workers and servers."""

    def prepare(self, spec: JobSpec) -> Start:
        """Finds out whether and where the job can run, and returns what runs it.

        Raises ``UserError`` if it cannot. The run directory of ``spec`` is not made yet.
        """


def open_launcher(
    on: str, hosts: Path | None, slurm: str | None, interface: str | None
) -> Launcher | None:
    """The launcher ``on``; None: this machine. ``UserError`` for options that do not fit.

    ``hosts``: of ssh, a hosts file; of mpi, mpirun's. ``slurm``: options of salloc, for a process
    that is in no allocation yet. ``interface``: of all roles.
    """
    if on not in LAUNCHERS:
        raise UserError(f"--on {on}: choose one of {', '.join(LAUNCHERS)}")
    if hosts is not None and on not in (SSH, MPI):
        raise UserError("--hosts: only with --on ssh and --on mpi")
    if slurm is not None and on != SLURM:
        raise UserError("--slurm: only with --on slurm")
    if on == MPI:
        return _ByMpirun(hosts)
    if on == SSH:
        if hosts is None:
            raise UserError("--on ssh: name the hosts with --hosts FILE (docs/formats.md)")
        from byteprophet.remote.ssh import Ssh  # whose asyncio takes a moment to import

        found = read_hosts_file(hosts)
        if interface is not None:
            found = [replace(host, interface=interface) for host in found]
        return _AtPlaces(Ssh(found))
    if on == SLURM:
        if is_in_allocation():
            return _AtPlaces(Slurm(allocated_nodes(interface)))
        return _InNewAllocation(slurm or "")
    return None


class _AtPlaces:
    def __init__(self, places: Places[Any]) -> None:
        self._places = places

    def counts(self, workers: int | None, servers: int | None) -> tuple[int, int]:
        hosts = self._places.hosts
        return (
            usual_workers(hosts) if workers is None else workers,
            usual_servers(hosts) if servers is None else servers,
        )

    def prepare(self, spec: JobSpec) -> Start:
        site = find_site(self._places, spec)
        return lambda spec, echo: run_at(site, spec, echo)


class _ByMpirun:
    def __init__(self, hosts: Path | None) -> None:
        self._hosts = hosts

    def counts(self, workers: int | None, servers: int | None) -> tuple[int, int]:
        return 2 if workers is None else workers, 1 if servers is None else servers

    def prepare(self, spec: JobSpec) -> Start:
        site = find_mpi_site(spec, self._hosts)
        return lambda spec, echo: run_by_mpirun(site, spec, echo)


class _InNewAllocation:
    """Becomes salloc, which runs this command again."""

    def __init__(self, options: str) -> None:
        self._options = options

    def counts(self, workers: int | None, servers: int | None) -> tuple[int, int]:
        return 2 if workers is None else workers, 1 if servers is None else servers

    def prepare(self, spec: JobSpec) -> Start:
        refuse_local(spec)
        resolve_on_hosts(spec, "", "", 0, 0, runs_here=False)  # before it waits in a queue
        command = [sys.executable, "-m", "byteprophet", *sys.argv[1:]]
        enter_allocation(spec.workers, self._options, command)
