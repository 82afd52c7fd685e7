"""From a JobSpec to what exactly is started: everything left open decided, nothing done yet."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from byteprophet import schedulers
from byteprophet.control.keys import make_keys
from byteprophet.errors import UserError
from byteprophet.launcher.checks import (
    LOOPBACK_INTERFACE,
    check_spec,
    interface_address,
    root_port,
)
from byteprophet.launcher.deadlines import dead_after_s
from byteprophet.launcher.environment import (
    JobFacts,
    RoleName,
    base_environment,
    role_environment,
)
from byteprophet.launcher.ranks import rank_environment
from byteprophet.launcher.role import RolePlan
from byteprophet.launcher.spec import JobSpec
from byteprophet.network import Host, HostSpec, why_not_permitted
from byteprophet.network.namespaces import INTERFACE, check_hosts
from byteprophet.network.tools import require
from byteprophet.tune.request import VARIABLE, parse_request

_NAMESPACE_PORT = 9000  # nobody else is on a host of its own
_NAMESPACE_CONTROLLER_PORT = 9001


@dataclass(frozen=True)
class ResolvedJob:
    """A job that can be started. ``address`` is every role's without namespaces."""

    spec: JobSpec
    names: tuple[RoleName, ...]
    environment: dict[str, str]
    settings: dict[str, int]
    partition_bytes: int | None  # None: nothing is scheduled
    address: str
    port: int
    dead_after_s: float | None  # silence after which the heartbeats give a role up; None: never
    controller_port: int | None  # None: there is no controller

    def host_specs(self) -> list[HostSpec]:
        """The scheduler's (or rank 0's) first; only the workers' links are limited."""
        spec = self.spec
        rates = {
            role.host: spec.worker_bandwidth_bps.get(role.index, spec.bandwidth_bps)
            if role.kind == "worker"
            else None
            for role in self.names
        }
        return [HostSpec(host, rate_bps) for host, rate_bps in rates.items()]

    def stepped_hosts(self) -> list[str]:
        """Whose links change with the job's steps: the workers that have no rate of their own."""
        workers = [role for role in self.names if role.kind == "worker"]
        own = self.spec.worker_bandwidth_bps
        return list(dict.fromkeys(role.host for role in workers if role.index not in own))


def resolve_job(spec: JobSpec) -> ResolvedJob:
    """Checks ``spec`` and decides what it leaves open; UserError where it cannot be started."""
    environment = base_environment(os.environ, spec.environment)
    check_spec(spec, environment)
    silence_s = dead_after_s(environment)
    settings: dict[str, int] = {}
    partition_bytes = None
    if not spec.all_reduce:
        settings, partition_bytes = schedulers.resolve(
            spec.scheduler, spec.settings, spec.partition_bytes
        )
        parse_request(environment.get(VARIABLE, ""), spec.scheduler, settings)
    elif environment.get(VARIABLE):
        raise UserError(f"{VARIABLE}: without servers there is no BytePS, and nothing to tune")
    address = interface_address(spec.interface)
    if spec.namespaces:
        reason = why_not_permitted()
        if reason is not None:
            raise UserError(f"a bandwidth needs network namespaces: {reason}")
        check_hosts(spec.workers + spec.servers + (not spec.all_reduce))  # one is the scheduler's
        port = _NAMESPACE_PORT if spec.port is None else spec.port
    else:
        port = root_port(spec.port, address)
    controller_port = None
    if spec.controller:
        controller_port = _NAMESPACE_CONTROLLER_PORT if spec.namespaces else port
        while controller_port == port:
            controller_port = root_port(None, address)
    names = tuple(_role_names(spec))
    return ResolvedJob(
        spec,
        names,
        environment,
        settings,
        partition_bytes,
        address,
        port,
        silence_s,
        controller_port,
    )


def _role_names(spec: JobSpec) -> Iterator[RoleName]:
    # The first is the one that the others look for.
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
    """What to start for each role, on ``hosts`` if there are.

    Makes the directories for sockets, and the controller's keys, in ``temporary``.
    """
    spec = job.spec
    run_directory = spec.run_directory.absolute()
    root_address = job.address if hosts is None else hosts[0].address
    controller, keys = None, temporary / "keys"
    if job.controller_port is not None:
        controller = f"tcp://{root_address}:{job.controller_port}"
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
    )
    interface = (spec.interface or LOOPBACK_INTERFACE) if hosts is None else INTERFACE
    host_of = {} if hosts is None else {host.name: host for host in hosts}
    plans = []
    for role in job.names:
        sockets = temporary / role.host
        sockets.mkdir(exist_ok=True)
        # Only workers start where the user is: `python -c` looks for modules in the current
        # directory first, where a signal.py or a byteps/ may be that is not meant for a server.
        directory = spec.directory.absolute() if role.kind == "worker" else run_directory
        # So that no role outlives this process, even if it is killed.
        argv = [require("setpriv"), "--pdeathsig", "KILL", "--", *commands[role.kind]]
        address = job.address
        if hosts is not None:
            address = host_of[role.host].address
            argv = host_of[role.host].enter(argv, directory)
        if spec.all_reduce:
            environment = rank_environment(job.environment, facts, role, interface)
        else:
            environment = role_environment(job.environment, facts, role, address, str(sockets))
        log = run_directory / "logs" / f"{role.name}.log"
        plans.append(RolePlan(role.name, role.kind, argv, environment, directory, log))
    return plans
