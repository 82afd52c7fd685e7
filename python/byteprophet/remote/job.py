"""Runs one job whose roles are on other hosts.

    Places      where roles can be, and how one is started there    ssh.py, slurm.py
    placement   which host runs which roles                         placement.py
    Look        what each host says about itself, before a start    look.py, addresses.py
    client      a process here per role there                       ssh_client.py, tethered.py
    tether      what the role hears from its client                 launcher/tether.py

The roles are those of ``byteprophet role``. The clients are supervised as a local job's roles are
(launcher/job.py), so that logs, deadlines, signals and exit status are the same. Each role has a
run directory of its own. When all have ended, their files are moved to the job's.
"""

from __future__ import annotations

import errno
import filecmp
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic

from byteprophet.control.keys import key_texts, make_keys
from byteprophet.errors import UserError, warn
from byteprophet.input_files import read_json
from byteprophet.launcher.environment import (
    MESH_KEY,
    base_environment,
    given_environment,
    told_environment,
)
from byteprophet.launcher.job import run_resolved
from byteprophet.launcher.job_file import Address, JobFile, job_text
from byteprophet.launcher.plan import SUMMARY, ResolvedJob, new_mesh_key, resolve_on_hosts
from byteprophet.launcher.restarts import ATTEMPTS
from byteprophet.launcher.role import RolePlan
from byteprophet.launcher.spec import Echo, JobResult, JobSpec, RoleResult
from byteprophet.launcher.tether import Told
from byteprophet.network.tools import require
from byteprophet.remote.addresses import root_address
from byteprophet.remote.client_limits import FETCH_TIMEOUT_S, with_client_limits
from byteprophet.remote.echoes import by_role
from byteprophet.remote.look import check_look
from byteprophet.remote.placement import Unit, place
from byteprophet.remote.places import HostT, Places
from byteprophet.runtime_settings import STRATEGY, STRATEGY_MODEL
from byteprophet.whole_files import make_directory

ROLES = "roles"
"""The folder of the run directory in which roles' own directories are until the job's end."""
FILES = {
    STRATEGY: "strategy.json",
    STRATEGY_MODEL: "strategy-model.json",
    "BYTEPROPHET_PROFILE": "profile.json",
}
"""Variables with the path of a file that roles read, and its name where it travels with the job."""
_KEYS = "keys"
_LATER_S = 60.0  # a role's time limit is later than the job's, which names all roles


@dataclass(frozen=True)
class Site(Generic[HostT]):
    """Where a job runs: the host of each role, and the addresses that all roles know."""

    places: Places[HostT]
    hosts: Mapping[Unit, HostT]
    root: Address
    controller: Address | None


def find_site(places: Places[HostT], spec: JobSpec) -> Site[HostT]:
    """Places the roles of ``spec``, and looks at their hosts.

    Raises ``UserError`` if the job cannot run there. Starts no role and writes nothing.
    """
    refuse_local(spec)
    resolve_on_hosts(spec, "", "", 0, 0, runs_here=False)  # what is wrong on every host
    hosts = place(places.hosts, spec.workers, spec.servers, spec.controller)
    used = list(dict.fromkeys(hosts.values()))
    looks = dict(zip(used, places.look(used, needed_paths(spec)), strict=True))
    for host, look in looks.items():
        check_look(look, f"host {host.name}")
    first = next(iter(hosts.values()))  # the scheduler's, or rank 0's
    address = first.address or root_address(
        list(looks.values()), looks[first], first.interface, places.ask
    )
    port, controller_port = looks[first].ports
    return Site(
        places,
        hosts,
        Address(address, spec.port or port),
        Address(address, controller_port) if spec.controller else None,
    )


def refuse_local(spec: JobSpec) -> None:
    """Raises ``UserError`` for what only a job on this machine can have."""
    if spec.namespaces:
        raise UserError("a bandwidth limits emulated links of this machine: use --on namespaces")
    if spec.ranks:
        raise UserError("--sync byteps: only with --on local")


def needed_paths(spec: JobSpec) -> list[str]:
    """Files of this host that roles read under the same path.

    A relative path is one from where workers start. Hosts are asked elsewhere, so not for these.
    """
    environment = carried_environment(spec)
    return [path for name in FILES if Path(path := environment.get(name, "")).is_absolute()]


def carried_environment(spec: JobSpec) -> dict[str, str]:
    """The variables that a job file carries to other hosts: the job's, and those of this shell.

    No defaults are among them: a host, or a pod's image, may have values of its own.
    """
    return told_environment(given_environment(os.environ, spec.environment))


def run_at(site: Site[HostT], spec: JobSpec, echo: Echo | None = None) -> JobResult:
    """Runs ``spec`` there, as ``run_job`` does here."""
    controller = None if site.controller is None else site.controller.port
    fetch_s = 0.0 if site.places.is_shared else FETCH_TIMEOUT_S
    job = resolve_on_hosts(
        with_client_limits(spec, fetch_s),
        site.root.host,
        site.root.host,
        site.root.port,
        controller,
        runs_here=False,
    )
    if echo is not None and spec.local_ranks > 1:  # a worker's role names the rank of each line
        echo = by_role(echo)
    return run_resolved(job, echo, _Elsewhere(site, spec))


class _Elsewhere(Generic[HostT]):
    """See ``launcher.job.Elsewhere``."""

    def __init__(self, site: Site[HostT], spec: JobSpec) -> None:
        self._site = site
        self._spec = spec
        self._run_directory = spec.run_directory.absolute()
        # Where files are shared, the cluster's clients do not encrypt what roles are told. So no
        # key is made there, but the user may have exported one.
        is_shared = site.places.is_shared
        self._mesh_key = os.environ.get(MESH_KEY, "") if is_shared else new_mesh_key()

    def plans(self, job: ResolvedJob, temporary: Path) -> list[RolePlan]:
        make_directory(self._run_directory / ROLES)
        keys = self._make_keys(temporary)
        # Without the mark of a role (leftovers.py): a role on this host must not take a client for
        # one of its processes.
        environment = base_environment(os.environ, {})
        plans = []
        for unit, host in self._site.hosts.items():
            kept = self._run_directory / ROLES / unit.name
            fetched = self._site.places.run_directory(unit, host, kept)
            told = self._told(unit, host, fetched, keys)
            client = self._site.places.client(unit, host, told, fetched, kept, temporary)
            plans.append(
                RolePlan(
                    unit.name,
                    unit.kind,
                    # No client outlives this process; and no role its client.
                    [require("setpriv"), "--pdeathsig", "KILL", "--", *client],
                    environment,
                    self._run_directory,
                    self._run_directory / "logs" / f"{unit.name}.log",
                    host=host.name,
                )
            )
        return plans

    def _make_keys(self, temporary: Path) -> Path | None:
        if self._site.controller is None:
            return None
        keys = (self._run_directory if self._site.places.is_shared else temporary) / _KEYS
        make_keys(keys)
        return keys

    def _told(self, unit: Unit, host: HostT, fetched: Path, keys: Path | None) -> Told:
        is_shared = self._site.places.is_shared
        spec = replace(
            self._spec,
            directory=Path(self._site.places.directory(host)),
            run_directory=fetched,
            environment=carried_environment(self._spec),
            timeout_s=self._spec.timeout_s + _LATER_S,
        )
        job = JobFile(spec, self._site.root, self._site.controller, str(keys) if keys else "")
        texts: dict[str, str] = {}
        if keys is not None and not is_shared and unit.kind in ("worker", "controller"):
            texts = key_texts(keys, "worker" if unit.kind == "worker" else "controller")
        return Told(job_text(job), texts, self._mesh_key, is_scratch=not is_shared)

    def results(self, roles: tuple[RoleResult, ...]) -> tuple[RoleResult, ...]:
        shutil.rmtree(self._run_directory / _KEYS, ignore_errors=True)
        found: list[RoleResult] = []
        for client in roles:
            found += collect(self._run_directory, client.name) or [client]
        return tuple(found)


def collect(run_directory: Path, name: str) -> list[RoleResult]:
    """Moves the files of the role ``name`` to where those of a local job are.

    Returns what the role said of itself, for each of its processes; nothing if it wrote nothing.
    What cannot be moved stays.
    """
    directory = run_directory / ROLES / name
    found = _own_results(directory, name)
    try:
        _move(directory, run_directory, name)
        with suppress(FileNotFoundError):  # a role that was ended early may have no folder
            (run_directory / ROLES).rmdir()  # with the last one
    except OSError as error:
        if error.errno != errno.ENOTEMPTY:
            warn(f"{directory}: cannot be moved to {run_directory}: {error.strerror}")
    return found


def _own_results(directory: Path, name: str) -> list[RoleResult]:
    path = directory / f"summary-{name}.json"
    if not path.exists():
        path = directory / SUMMARY  # of a job that has no other role
    try:
        rows = read_json(path)["roles"]
        return [RoleResult(**row) for row in rows]
    except (UserError, KeyError, TypeError):
        return []


def _move(directory: Path, run_directory: Path, name: str) -> None:
    """Moves the files and links below ``directory``, but for those that the job has itself.

    A file of an earlier start is replaced. If another role has written a file of the same name and
    another content, this role's stays where it is, with a warning.
    """
    own = {Path("config.toml"), Path(SUMMARY), Path("logs") / f"{name}.log"}
    started_s = _last_start_s(run_directory)
    staying: list[Path] = []
    for path in sorted(directory.rglob("*")):
        relative = path.relative_to(directory)
        target = run_directory / relative
        if path.is_dir() and not path.is_symlink():
            continue
        if relative in own or _are_equal(path, target):
            path.unlink()
        elif os.path.lexists(target) and target.lstat().st_ctime > started_s:
            staying.append(relative)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            if target.is_symlink():  # of an earlier start; it may lead to a folder
                target.unlink()
            shutil.move(path, target)
    if staying:
        warn(f"{staying[0]}: {name} and another role wrote it: that of {name} is in {directory}")
    else:
        shutil.rmtree(directory, ignore_errors=True)


def _are_equal(path: Path, target: Path) -> bool:
    """Whether both are files of one content, or links that say the same."""
    if path.is_symlink() or target.is_symlink():
        return path.is_symlink() and target.is_symlink() and path.readlink() == target.readlink()
    return target.is_file() and filecmp.cmp(path, target, shallow=False)


def _last_start_s(run_directory: Path) -> float:
    """When the job was started again: what an earlier start wrote is older."""
    aside = (run_directory / ATTEMPTS).glob("*")
    return max((path.stat().st_mtime for path in aside), default=0.0)
