"""Turns a JobSpec into the exact plan of what is started. Nothing is started yet."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from byteprophet import schedulers
from byteprophet.control.keys import make_keys
from byteprophet.errors import UserError
from byteprophet.launcher.checks import (
    LOOPBACK_INTERFACE,
    check_command,
    check_spec,
    interface_address,
    root_port,
)
from byteprophet.launcher.environment import (
    JobFacts,
    RoleName,
    base_environment,
    role_environment,
)
from byteprophet.launcher.forked_process import ForkPlan, forks_wanted
from byteprophet.launcher.ranks import rank_environment, with_rank
from byteprophet.launcher.role import RolePlan
from byteprophet.launcher.spec import JobSpec
from byteprophet.network import Host, HostSpec, why_not_permitted
from byteprophet.network.namespaces import INTERFACE, check_hosts
from byteprophet.network.tools import require
from byteprophet.silence import dead_after_s
from byteprophet.tune.request import VARIABLE, parse_request
from byteprophet.whole_files import make_directory

SUMMARY = "summary.json"
_NAMESPACE_PORT = 9000  # the host belongs to one role, so the port is free
_NAMESPACE_CONTROLLER_PORT = 9001
_NAMESPACE_RANKS_PORT = 9002


@dataclass(frozen=True)
class ResolvedJob:
    """A job that can be started, or a role of one.

    Without namespaces, all roles in ``names`` have ``address``. ``root`` is the address of the
    scheduler role, or of rank 0 in a job without servers. ``controller_host``: the controller's
    address; "": it is the root's. ``controller_keys``: a directory; "": new keys are made.
    ``mesh_key``: a secret of the job's ranks, the same on all hosts; "": none.
    ``memory_name``: a part of the names of shared memory, which no other start of a role has.
    """

    spec: JobSpec
    names: tuple[RoleName, ...]
    environment: dict[str, str]
    settings: dict[str, int]
    partition_bytes: int | None  # None: nothing is scheduled
    address: str
    port: int
    dead_after_s: float | None  # silence after which a role counts as dead; None: never
    controller_port: int | None  # None: there is no controller
    ranks_port: int | None  # where rank 0 listens in a job with servers; None: there are no ranks
    forks: bool  # workers and the controller are forked if that is equivalent to a start
    root: str
    controller_host: str = ""
    controller_keys: str = ""
    mesh_key: str = ""
    memory_name: str = field(default_factory=lambda: secrets.token_hex(8))

    @property
    def is_whole(self) -> bool:
        """Whether ``names`` has all roles of the job."""
        return self.names == tuple(_role_names(self.spec))

    @property
    def summary(self) -> str:
        """The name of the file with the result. Other roles may write beside it."""
        if self.is_whole:
            return SUMMARY
        first = self.names[0]
        return f"summary-{first.name.partition('.')[0]}.json"

    @property
    def shared_memory(self) -> tuple[str, ...]:
        """Patterns of the names of BytePS' shared memory, which contain ``memory_name``.

        What else they contain, patch 0003 of BytePS says; no other start has this name.
        """
        return (f"BytePS_*_{self.memory_name}_*",)

    def host_specs(self) -> list[HostSpec]:
        """The hosts, the scheduler's (or rank 0's) first. Its link is not limited."""
        spec = self.spec
        own = {"worker": spec.worker_bandwidth_bps, "server": spec.server_bandwidth_bps}
        usual_bps = {"worker": spec.bandwidth_bps}
        rates = {
            role.host: own.get(role.kind, {}).get(role.index, usual_bps.get(role.kind))
            for role in self.names
        }
        return [HostSpec(host, rate_bps) for host, rate_bps in rates.items()]

    def stepped_hosts(self) -> list[str]:
        """The hosts whose links the job's steps change: those of workers without their own rate."""
        workers = [role for role in self.names if role.kind == "worker"]
        own = self.spec.worker_bandwidth_bps
        return list(dict.fromkeys(role.host for role in workers if role.index not in own))


def resolve_job(spec: JobSpec) -> ResolvedJob:
    """Checks ``spec`` and decides everything that it leaves open.

    Raises ``UserError`` if the job cannot be started.
    """
    environment = _checked_environment(spec)
    require("setpriv")  # it starts every role
    address = interface_address(spec.interface)
    if spec.namespaces:
        reason = why_not_permitted()
        if reason is not None:
            raise UserError(f"a bandwidth needs network namespaces: {reason}")
        check_hosts(spec.workers + spec.servers + (not spec.all_reduce))  # one is the scheduler's
        port = _NAMESPACE_PORT if spec.port is None else spec.port
    else:
        port = root_port(spec.port, address)
    controller_port, ranks_port = None, None
    if spec.controller:
        controller_port = _NAMESPACE_CONTROLLER_PORT if spec.namespaces else port
        while controller_port == port:
            controller_port = root_port(None, address)
    if spec.ranks and not spec.all_reduce:
        ranks_port = _NAMESPACE_RANKS_PORT if spec.namespaces else port
        while ranks_port in (port, controller_port):
            ranks_port = root_port(None, address)
    resolved = _resolved(spec, environment, address, address, port, controller_port, ranks_port)
    return replace(resolved, mesh_key=new_mesh_key())


def new_mesh_key() -> str:
    """A key for ``JobFacts.mesh_key`` that nobody can guess."""
    return secrets.token_hex(32)


def resolve_on_hosts(
    spec: JobSpec,
    address: str,
    root: str,
    port: int,
    controller_port: int | None,
    runs_here: bool = True,
) -> ResolvedJob:
    """A job on several hosts, of which this one has ``address``. ``port``: the root's.

    ``runs_here``: whether this host runs some of its roles, and so needs its command. Raises
    ``UserError`` if the job cannot be started.
    """
    environment = _checked_environment(spec, runs_here)
    return _resolved(spec, environment, address, root, port, controller_port, None)


def _resolved(
    spec: JobSpec,
    environment: dict[str, str],
    address: str,
    root: str,
    port: int,
    controller_port: int | None,
    ranks_port: int | None,
) -> ResolvedJob:
    settings: dict[str, int] = {}
    partition_bytes = None
    if not spec.all_reduce:
        settings, partition_bytes = schedulers.resolve(
            spec.scheduler, spec.settings, spec.partition_bytes
        )
        parse_request(environment.get(VARIABLE, ""), spec.scheduler, settings)
    elif environment.get(VARIABLE):
        raise UserError(f"{VARIABLE}: without servers there is no BytePS, and nothing to tune")
    return ResolvedJob(
        spec,
        tuple(_role_names(spec)),
        environment,
        settings,
        partition_bytes,
        address,
        port,
        dead_after_s(environment),
        controller_port,
        ranks_port,
        forks_wanted(os.environ, spec.forks),
        root,
    )


def _checked_environment(spec: JobSpec, runs_here: bool = True) -> dict[str, str]:
    environment = base_environment(os.environ, spec.environment)
    check_spec(spec, environment)
    if runs_here:
        check_command(spec, environment)
    return environment


def _role_names(spec: JobSpec) -> Iterator[RoleName]:
    # The other roles connect to the first one.
    if not spec.all_reduce:
        yield RoleName("scheduler", 0, "scheduler")
    for index in range(spec.servers):
        yield RoleName("server", index, f"server-{index}")
    for index in range(spec.workers):
        for local_rank in range(spec.local_ranks):
            suffix = "" if spec.local_ranks == 1 else f".{local_rank}"
            yield RoleName("worker", index, f"worker-{index}{suffix}", local_rank)
    if spec.controller:
        yield RoleName("controller", 0, "controller")


def plan_roles(job: ResolvedJob, hosts: Sequence[Host] | None, temporary: Path) -> list[RolePlan]:
    """The plan for each role. With ``hosts``, each role runs on its host.

    Makes the directories for sockets, and the controller's keys, in ``temporary``.
    """
    spec = job.spec
    run_directory = spec.run_directory.absolute()
    root_address = job.root if hosts is None else hosts[0].address
    controller, keys = None, Path(job.controller_keys or temporary / "keys")
    if job.controller_port is not None:
        controller = f"tcp://{job.controller_host or root_address}:{job.controller_port}"
        if not job.controller_keys:
            make_keys(keys)
    commands = {
        "scheduler": spec.roles.scheduler,
        "server": spec.roles.server,
        "worker": spec.command,
        "controller": (sys.executable, "-m", "byteprophet", "control"),
    }
    facts = JobFacts(
        root_address=root_address,
        root_port=job.port,
        workers=spec.workers,
        servers=spec.servers,
        scheduler=None if spec.scheduler == schedulers.STOCK else spec.scheduler,
        settings_text=schedulers.settings_text(job.settings),
        partition_bytes=job.partition_bytes or 0,
        run_directory=str(run_directory),
        local_ranks=spec.local_ranks,
        controller=controller,
        controller_keys=str(keys),
        step_updates=",".join(
            str(step.at_update) for step in spec.steps if step.at_update is not None
        ),
        restart=spec.restart,
        max_restarts=spec.max_restarts,
        mesh_key=job.mesh_key,
        memory_name=job.memory_name,
    )
    interface = (spec.interface or LOOPBACK_INTERFACE) if hosts is None else INTERFACE
    host_of = {} if hosts is None else {host.name: host for host in hosts}
    plans = []
    for role in job.names:
        sockets = temporary / role.host
        make_directory(sockets)
        # Only workers start in the user's directory. `python -c` looks for modules in the current
        # directory first, and the user's may have a signal.py or byteps/ not meant for a server.
        directory = spec.directory.absolute() if role.kind == "worker" else run_directory
        # No role must outlive this process, even if this process is killed.
        argv = [require("setpriv"), "--pdeathsig", "KILL", "--", *commands[role.kind]]
        address = job.address
        namespaces: tuple[str, ...] = ()
        if hosts is not None:
            host = host_of[role.host]
            address, namespaces = host.address, host.namespaces
            argv = host.enter(argv, directory)
        fork = None
        if job.forks and role.kind in ("worker", "controller"):  # other roles import little
            fork = ForkPlan(
                commands[role.kind],
                namespaces,
                dies_with_parent=True,
                starts_server=role.kind == "worker",
            )
        if spec.all_reduce:
            environment = rank_environment(job.environment, facts, role, interface)
        else:
            environment = role_environment(job.environment, facts, role, address, str(sockets))
            if job.ranks_port is not None and role.kind == "worker":
                first = host_of["worker-0"].address if host_of else job.address
                environment = with_rank(environment, facts, role, interface, first, job.ranks_port)
        log = run_directory / "logs" / f"{role.name}.log"
        plans.append(RolePlan(role.name, role.kind, argv, environment, directory, log, fork))
    return plans
