"""The ways to run a job that ``byteprophet run --on`` offers.

On this machine, roles share its network (local), or are on emulated hosts (namespaces).
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from byteprophet.errors import UserError
from byteprophet.launcher.plan import resolve_on_hosts
from byteprophet.launcher.restarts import Start
from byteprophet.launcher.spec import JobSpec
from byteprophet.remote.hosts_file import read_hosts_file
from byteprophet.remote.job import find_site, refuse_local, run_at
from byteprophet.remote.mpi import find_mpi_site, run_by_mpirun
from byteprophet.remote.placement import usual_servers, usual_workers
from byteprophet.remote.places import Places
from byteprophet.remote.slurm import (
    Slurm,
    allocated_nodes,
    enter_allocation,
    has_entered,
    is_in_allocation,
)

LOCAL, NAMESPACES, SSH, SLURM, MPI, KUBERNETES, RAY = LAUNCHERS = (
    "local", "namespaces", "ssh", "slurm", "mpi", "kubernetes", "ray",
)  # fmt: skip
WITHOUT_CONTROLLER = (MPI, KUBERNETES, RAY)
"""One process starts all roles there, and waits for all: a controller ends only with the job."""


class Launcher(Protocol):
    """A way to run jobs. The numbers of roles are None if the user gives none."""

    def counts(self, workers: int | None, servers: int | None) -> tuple[int, int]:
        """The numbers of workers and servers."""

    def prepare(self, spec: JobSpec) -> Start:
        """Finds out whether and where the job can run, and returns what runs it.

        Raises ``UserError`` if it cannot. Nothing is written.
        """

    def text(self, spec: JobSpec) -> str | None:
        """What a user wants to see of the job, which is then not started; None: it is started."""


@dataclass(frozen=True)
class Options:
    """What a user says about where a job runs.

    Attributes:
        on: one of ``LAUNCHERS``.
        hosts: of ssh, a hosts file; of mpi, mpirun's; of Kubernetes, a pods file.
        slurm: options of salloc, for a process that is in no allocation yet.
        interface: of all roles.
        image: of pods.
        jobset: pods are those of a JobSet.
        apply: pods are started.
    """

    on: str
    hosts: Path | None = None
    slurm: str | None = None
    interface: str | None = None
    image: str | None = None
    jobset: bool = False
    apply: bool = False

    def check(self) -> None:
        """Raises ``UserError`` for options that do not fit."""
        if self.on not in LAUNCHERS:
            raise UserError(f"--on {self.on}: choose one of {', '.join(LAUNCHERS)}")
        if self.hosts is not None and self.on not in (SSH, MPI, KUBERNETES):
            raise UserError("--hosts: only with --on ssh, mpi and kubernetes")
        if self.slurm is not None and self.on != SLURM:
            raise UserError("--slurm: only with --on slurm")
        own = {"--image": self.image is not None, "--jobset": self.jobset, "--apply": self.apply}
        given = [name for name, is_given in own.items() if is_given]
        if given and self.on != KUBERNETES:
            raise UserError(f"{given[0]}: only with --on kubernetes")
        if self.interface is not None and self.on in (KUBERNETES, RAY):
            raise UserError(f"--interface: not with --on {self.on}, whose network has one for all")


def open_launcher(options: Options) -> Launcher | None:
    """The launcher that a user asks for; None: this machine. ``UserError`` if none can be."""
    options.check()
    if options.on == MPI:
        return _ByMpirun(options.hosts)
    if options.on == KUBERNETES:
        from byteprophet.remote.kubernetes.site import open_pods  # which needs a YAML library

        return open_pods(options.hosts, options.image, options.jobset, options.apply)
    if options.on == RAY:
        return _InRay()
    if options.on == SSH:
        if options.hosts is None:
            raise UserError("--on ssh: name the hosts with --hosts FILE (docs/formats.md)")
        return _AtPlaces(open_ssh(options.hosts, options.interface))
    if options.on == SLURM:
        if is_in_allocation():
            if not has_entered() and options.slurm is not None:
                raise UserError(
                    "--slurm: this process is in an allocation already: give these options to what "
                    "asked for it, sbatch or salloc"
                )
            return _AtPlaces(Slurm(allocated_nodes(options.interface)))
        return _InNewAllocation(options.slurm or "")
    return None


def open_ssh(hosts: Path, interface: str | None) -> Places[Any]:
    """The hosts in the file ``hosts``. ``interface``: of all their roles."""
    from byteprophet.remote.ssh import Ssh  # whose asyncio takes a moment to import

    found = read_hosts_file(hosts)
    if interface is not None:
        found = [replace(host, interface=interface) for host in found]
    return Ssh(found)


class _Starts:
    def text(self, spec: JobSpec) -> str | None:
        return None


class _AtPlaces(_Starts):
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


class _UsualCounts(_Starts):
    """As on this machine, because nobody has listed the hosts yet."""

    def counts(self, workers: int | None, servers: int | None) -> tuple[int, int]:
        return 2 if workers is None else workers, 1 if servers is None else servers


class _ByMpirun(_UsualCounts):
    def __init__(self, hosts: Path | None) -> None:
        self._hosts = hosts

    def prepare(self, spec: JobSpec) -> Start:
        site = find_mpi_site(spec, self._hosts)
        return lambda spec, echo: run_by_mpirun(site, spec, echo)


class _InRay(_UsualCounts):
    def prepare(self, spec: JobSpec) -> Start:
        from byteprophet.remote.ray_cluster.site import find_ray_site, run_by_ray

        site = find_ray_site(spec)
        return lambda spec, echo: run_by_ray(site, spec, echo)


class _InNewAllocation(_UsualCounts):
    """Becomes salloc, which runs this command again."""

    def __init__(self, options: str) -> None:
        self._options = options

    def prepare(self, spec: JobSpec) -> Start:
        refuse_local(spec)
        resolve_on_hosts(spec, "", "", 0, 0, runs_here=False)  # before it waits in a queue
        enter_allocation(spec.workers, self._options, sys.argv[1:])
