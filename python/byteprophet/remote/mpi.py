"""A job whose roles mpirun starts, one process each.

mpirun numbers its processes, and each takes its role by its number (by_rank.py). Here is one
process, mpirun, for all of them. It ends all roles if one fails. The run directory must be on a
file system that all hosts share.
"""

from __future__ import annotations

import math
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from byteprophet.errors import UserError
from byteprophet.launcher.environment import base_environment
from byteprophet.launcher.job import run_resolved
from byteprophet.launcher.job_file import Address, JobFile, job_text
from byteprophet.launcher.plan import ResolvedJob, resolve_on_hosts
from byteprophet.launcher.role import RolePlan
from byteprophet.launcher.spec import Echo, JobResult, JobSpec, RoleResult
from byteprophet.network.tools import require
from byteprophet.remote.addresses import root_address
from byteprophet.remote.by_rank import BY_RANK, units_of
from byteprophet.remote.client_limits import with_client_limits
from byteprophet.remote.echoes import by_role
from byteprophet.remote.job import (
    ROLES,
    carried_environment,
    collect,
    needed_paths,
    refuse_local,
)
from byteprophet.remote.look import Look, check_look, parse_looks
from byteprophet.remote.placement import Unit
from byteprophet.remote.programs import python_command, run_program
from byteprophet.whole_files import make_directory, write_whole

_LOOK_TIMEOUT_S = 120.0
_VERSION_TIMEOUT_S = 20.0
_ENDING_S = 2.0  # for a role, once it has killed its processes
_MPIRUN = "mpirun"


@dataclass(frozen=True)
class MpiSite:
    """Where a job runs: mpirun's command without the program, and the root."""

    command: tuple[str, ...]
    units: tuple[Unit, ...]
    root: Address
    interface: str | None


def find_mpi_site(spec: JobSpec, hosts: Path | None) -> MpiSite:
    """Asks mpirun where it starts processes. ``hosts``: its hostfile; None: this host.

    Raises ``UserError`` if the job cannot run there. Starts no role and writes nothing.
    """
    refuse_local(spec)
    if spec.controller:
        raise UserError("--controller: not with --on mpi, which waits for all of its processes")
    resolve_on_hosts(spec, "", "", 0, None, runs_here=False)
    units = tuple(units_of(spec))
    command = _mpirun(len(units), hosts, spec.limits.grace_s)
    looks = _look(command, [str(Path.cwd()), *needed_paths(spec)])
    missing = set(range(len(units))) - looks.keys()
    if missing:
        raise UserError(f"mpirun started no process number {min(missing)}")
    for look in looks.values():
        check_look(look, f"host {look.host}")
    root = looks[0]
    address = root_address(list(looks.values()), root, spec.interface, "give --interface")
    return MpiSite(command, units, Address(address, spec.port or root.ports[0]), spec.interface)


def run_by_mpirun(site: MpiSite, spec: JobSpec, echo: Echo | None = None) -> JobResult:
    """Runs ``spec`` there, as ``run_job`` does here."""
    job = resolve_on_hosts(
        with_client_limits(spec, ending_s=2 * _kill_s(spec.limits.grace_s)),
        site.root.host,
        site.root.host,
        site.root.port,
        None,
        runs_here=False,
    )
    return run_resolved(job, None if echo is None else by_role(echo), _Elsewhere(site, spec))


class _Elsewhere:
    """See ``launcher.job.Elsewhere``."""

    def __init__(self, site: MpiSite, spec: JobSpec) -> None:
        self._site = site
        self._spec = spec
        self._run_directory = spec.run_directory.absolute()

    def plans(self, job: ResolvedJob, temporary: Path) -> list[RolePlan]:
        make_directory(self._run_directory / ROLES)
        spec = replace(
            self._spec,
            directory=Path.cwd(),
            run_directory=self._run_directory / ROLES,
            environment=carried_environment(self._spec),
        )
        path = self._run_directory / "job.toml"
        write_whole(path, job_text(JobFile(spec, self._site.root, None, "")))
        role = ["role", BY_RANK, "--job", str(path)]
        if self._site.interface is not None:
            role += ["--interface", self._site.interface]
        environment = base_environment(os.environ, {})
        # SIGTERM if this process is killed: mpirun then ends its processes.
        argv = [require("setpriv"), "--pdeathsig", "TERM", "--", *self._site.command]
        # Open MPI hands on none of this shell's variables, such as PATH, to other hosts.
        argv += python_command(sys.executable, "byteprophet", role)
        log = self._run_directory / "logs" / f"{_MPIRUN}.log"
        return [RolePlan(_MPIRUN, "worker", argv, environment, self._run_directory, log, host="")]

    def results(self, roles: tuple[RoleResult, ...]) -> tuple[RoleResult, ...]:
        found: list[RoleResult] = []
        for unit in self._site.units:
            found += collect(self._run_directory, unit.name)
        return tuple(found) or roles


def mpirun_per_host(hosts: Path | None) -> tuple[str, ...]:
    """The start of a command line that runs the rest once on each host of mpirun's hostfile."""
    path, hostfile = _open_mpi(hosts)
    return (path, *hostfile, "--map-by", "ppr:1:node", "--bind-to", "none", "--wdir", "/")


def _mpirun(count: int, hosts: Path | None, grace_s: float) -> tuple[str, ...]:
    path, hostfile = _open_mpi(hosts)
    # Roles wait more than they compute, and have threads: not one core each.
    spread = ["--map-by", "node:OVERSUBSCRIBE", "--bind-to", "none"]
    # Otherwise mpirun kills roles a second after it has asked them to end. Open MPI 4 sends
    # SIGCONT, SIGTERM and SIGKILL, and waits for all of this time after either of the first two,
    # even if the roles end sooner.
    kills = ["--mca", "odls_base_sigkill_timeout", str(_kill_s(grace_s))]
    return (path, "-np", str(count), *hostfile, *spread, *kills, "--wdir", "/")


def _kill_s(grace_s: float) -> int:
    """How long mpirun waits before its next signal. It does so twice when it ends roles."""
    return math.ceil(grace_s + _ENDING_S)


def _open_mpi(hosts: Path | None) -> tuple[str, list[str]]:
    """Open MPI's mpirun, and its options for the hostfile ``hosts``. Raises ``UserError``."""
    path = shutil.which(_MPIRUN)
    if path is None:
        raise UserError("--on mpi: mpirun is not installed here: apt-get install openmpi-bin")
    version = run_program([path, "--version"], _MPIRUN, _VERSION_TIMEOUT_S)
    if "Open MPI" not in version.stdout:
        raise UserError(
            f"--on mpi: {path} is not Open MPI's: write a job file, and start byteprophet role "
            f"{BY_RANK} with it"
        )
    if hosts is not None and not hosts.is_file():
        raise UserError(f"--hosts {hosts}: there is no such file")
    return path, [] if hosts is None else ["--hostfile", str(hosts.absolute())]


def _look(command: Sequence[str], paths: Sequence[str]) -> dict[int, Look]:
    looking = [*command, sys.executable, "-m", "byteprophet.remote.look", *paths]
    done = run_program(looking, _MPIRUN, _LOOK_TIMEOUT_S)
    looks = {look.rank: look for look in parse_looks(done.stdout, _MPIRUN)}
    if not looks:
        said = [line.strip() for line in done.stderr.splitlines() if line.strip(" -*")]
        raise UserError(f"mpirun: {' '.join(said) or f'it ended with status {done.returncode}'}")
    return looks
