"""A job in a Ray cluster. Here is one process for all roles, the client (client.py)."""

from __future__ import annotations

import importlib.util
import json
import os
import secrets
import shutil
import socket
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from byteprophet.errors import UserError
from byteprophet.input_files import whole_number
from byteprophet.launcher.environment import base_environment
from byteprophet.launcher.job import run_resolved
from byteprophet.launcher.job_file import Address, JobFile, job_text
from byteprophet.launcher.plan import ResolvedJob, resolve_on_hosts
from byteprophet.launcher.role import RolePlan
from byteprophet.launcher.spec import Echo, JobResult, JobSpec, RoleResult
from byteprophet.network.tools import require
from byteprophet.remote.by_rank import units_of
from byteprophet.remote.client_limits import FETCH_TIMEOUT_S, with_client_limits
from byteprophet.remote.echoes import by_role
from byteprophet.remote.job import (
    ROLES,
    carried_environment,
    collect,
    needed_paths,
    refuse_local,
)
from byteprophet.remote.placement import Unit
from byteprophet.remote.ray_cluster.client import Task
from byteprophet.whole_files import make_directory, write_whole

_RAY = "ray"
_SCRATCH = "/tmp"  # noqa: S108 - names in it cannot be guessed
_LATER_S = 60.0  # a role's time limit is later than the job's, which names all roles
_UNABLE = 2
_CONNECT_TIMEOUT_S = 5.0
_NOT_YET = Address("127.0.0.1", 1)  # the client finds out where the root is


@dataclass(frozen=True)
class RaySite:
    """The roles of a job, and the bundle of the placement group in which each one is."""

    units: tuple[Unit, ...]
    bundles: tuple[int, ...]


def find_ray_site(spec: JobSpec) -> RaySite:
    """Places the roles of ``spec`` in bundles. Raises ``UserError`` if there can be no such job."""
    if importlib.util.find_spec("ray") is None:
        raise UserError("--on ray needs Ray: pip install 'byteprophet[ray]'")
    refuse_local(spec)
    if spec.controller:
        raise UserError("--controller: not with --on ray")
    resolve_on_hosts(spec, "", "", 0, None, runs_here=False)
    _check_address(os.environ.get("RAY_ADDRESS", ""))
    units = tuple(units_of(spec))
    # The scheduler role needs little, and is in the first server's bundle.
    first = {"scheduler": 0, "server": 0, "worker": spec.servers}
    bundles = tuple(first[unit.kind] + unit.index for unit in units)
    return RaySite(units, bundles)


def _check_address(address: str) -> None:
    """Raises ``UserError`` if nobody listens there: Ray itself would try for a minute.

    Ray finds a cluster on this machine itself.
    """
    if address in ("", "auto", "local"):
        return
    host, _, port = address.rpartition(":")
    number = whole_number(port)
    if "/" in host or number is None:
        raise UserError(f"RAY_ADDRESS={address}: must be that of the head node, as 10.0.0.1:6379")
    try:
        socket.create_connection((host, number), _CONNECT_TIMEOUT_S).close()
    except OSError as error:
        raise UserError(
            f"--on ray: no Ray cluster can be reached at RAY_ADDRESS={address}: "
            f"{error.strerror or error}"
        ) from None


def run_by_ray(site: RaySite, spec: JobSpec, echo: Echo | None = None) -> JobResult:
    """Runs ``spec`` there, as ``run_job`` does here.

    Raises ``UserError`` if the cluster cannot be reached, or has no room.
    """
    limited = with_client_limits(spec, FETCH_TIMEOUT_S)
    job = resolve_on_hosts(limited, "", "", 0, None, runs_here=False)
    elsewhere = _Elsewhere(site, spec)
    result = run_resolved(job, None if echo is None else by_role(echo), elsewhere)
    if result.failed is not None and elsewhere.is_refused:
        if spec.restart == 0:  # no role has run, so there is nothing to keep
            shutil.rmtree(spec.run_directory, ignore_errors=True)
        raise UserError(result.failed.removeprefix(f"{_RAY}: "))
    return result


class _Elsewhere:
    """See ``launcher.job.Elsewhere``. ``is_refused``: the client could start no role."""

    def __init__(self, site: RaySite, spec: JobSpec) -> None:
        self._site = site
        self._spec = spec
        self._run_directory = spec.run_directory.absolute()
        self.is_refused = False

    def plans(self, job: ResolvedJob, temporary: Path) -> list[RolePlan]:
        make_directory(self._run_directory / ROLES)
        path = temporary / "task.json"
        write_whole(path, json.dumps(asdict(self._task())))
        # No client outlives this process; Ray then ends its actors, and they their roles.
        argv = [require("setpriv"), "--pdeathsig", "KILL", "--", sys.executable, "-m"]
        argv += ["byteprophet.remote.ray_cluster.client", str(path)]
        environment = base_environment(os.environ, {})
        log = self._run_directory / "logs" / f"{_RAY}.log"
        return [RolePlan(_RAY, "worker", argv, environment, self._run_directory, log, host="")]

    def _task(self) -> Task:
        spec = replace(
            self._spec,
            directory=Path.cwd(),
            environment=carried_environment(self._spec),
            timeout_s=self._spec.timeout_s + _LATER_S,
        )
        site, token = self._site, secrets.token_hex(8)
        stem = f"{_SCRATCH}/byteprophet-{self._run_directory.name}"
        return Task(
            job=job_text(JobFile(spec, _NOT_YET, None, "")),
            units=[(unit.kind, unit.index) for unit in site.units],
            bundles=list(site.bundles),
            servers=spec.servers,
            workers=spec.workers,
            local_ranks=spec.local_ranks,
            paths=[str(Path.cwd()), *needed_paths(self._spec)],
            scratch=[f"{stem}-{unit.name}-{token}" for unit in site.units],
            run_directory=str(self._run_directory),
            port=spec.port,
        )

    def results(self, roles: tuple[RoleResult, ...]) -> tuple[RoleResult, ...]:
        self.is_refused = any(role.exit_status == _UNABLE for role in roles)
        found: list[RoleResult] = []
        for unit in self._site.units:
            if (self._run_directory / ROLES / unit.name).is_dir():
                found += collect(self._run_directory, unit.name)
        return tuple(found) or roles
