"""The nodes of a Slurm allocation, as places for the roles of a job.

Every role is a step of its own (srun). Steps share the nodes' cores, memory and GPUs. The run
directory must be on a file system that all nodes share, as is usual with Slurm.

In a heterogeneous allocation, the first component's nodes have the servers, and the others' have
the workers: servers need no GPUs.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from byteprophet.errors import UserError
from byteprophet.launcher.job_file import parse_job
from byteprophet.launcher.tether import BEAT_PERIOD_S, Told
from byteprophet.network.tools import require
from byteprophet.remote import tethered
from byteprophet.remote.client_limits import ENDING_S
from byteprophet.remote.look import Look, parse_looks
from byteprophet.remote.placement import Unit
from byteprophet.remote.programs import run_program

_LOOK_TIMEOUT_S = 120.0
_LIST_TIMEOUT_S = 30.0
_TASK_PLUGINS = re.compile(r"^TaskPlugin\s*=\s*(.*)$", re.MULTILINE)
_GROUP = "SLURM_JOB_NODELIST_HET_GROUP_"
_ENTERED = "BYTEPROPHET_ENTERED_ALLOCATION"
# Not -m: Python would search the user's directory first, which may have a signal.py.
_BYTEPROPHET = (
    "import sys; sys.path[:] = filter(None, sys.path); "
    "from byteprophet.cli.entry import main; main()"
)


@dataclass(frozen=True)
class Node:
    """A node. ``group``: its component of a heterogeneous allocation; None: it is not one."""

    name: str
    group: int | None = None
    workers: int | None = None
    servers: int | None = None
    interface: str | None = None
    address: str | None = None


def is_in_allocation() -> bool:
    """Whether Slurm started this process, or a process above it."""
    return "SLURM_JOB_ID" in os.environ


def has_entered() -> bool:
    """Whether ``enter_allocation`` has led to this process. Only the first call knows."""
    return os.environ.pop(_ENTERED, None) is not None


def enter_allocation(nodes: int, options: str, arguments: Sequence[str]) -> NoReturn:
    """Becomes salloc, which runs ``byteprophet`` with ``arguments`` in an allocation.

    ``options``: more of salloc's. Does not return. Raises ``UserError`` if Slurm is not installed.
    """
    asked = ["salloc", f"--nodes={nodes}", *_words(options)]
    argv = [_program("salloc"), *asked[1:], "--", sys.executable, "-c", _BYTEPROPHET, *arguments]
    os.environ[_ENTERED] = "1"
    # What salloc says comes next, and this process cannot say anything after it.
    print(f"byteprophet: in no allocation yet: {shlex.join(asked)}", file=sys.stderr, flush=True)
    os.execv(argv[0], argv)  # noqa: S606 - there is no shell, and none is wanted


def allocated_nodes(interface: str | None) -> list[Node]:
    """The nodes of the allocation that this process is in. Raises ``UserError`` if it is in none.

    ``interface``: of all roles; None: the one that leads to the root.
    """
    environment = os.environ
    groups = int(environment.get("SLURM_HET_SIZE", "0"))
    if groups < 2:
        nodes = _listed(environment, "SLURM_JOB_NODELIST")
        return [Node(name, interface=interface) for name in nodes]
    return [
        Node(
            name,
            group,
            workers=0 if group == 0 else None,
            servers=None if group == 0 else 0,
            interface=interface,
        )
        for group in range(groups)
        for name in _listed(environment, f"{_GROUP}{group}")
    ]


class Slurm:
    """Starts roles as steps of the allocation that this process is in."""

    is_shared = True
    ask = "give --interface"

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.hosts = tuple(nodes)
        self._srun = _program("srun")
        scontrol = _program("scontrol")
        config = run_program([scontrol, "show", "config"], f"Slurm: {scontrol}", _LIST_TIMEOUT_S)
        plugins = _TASK_PLUGINS.search(config.stdout)
        # Roles have threads, and share the job's cores. Where Slurm binds nothing, srun complains.
        binds = plugins is not None and ("affinity" in plugins[1] or "cgroup" in plugins[1])
        self._binding = ["--cpu-bind=none"] if binds else []

    def look(self, hosts: Sequence[Node], paths: Sequence[str]) -> list[Look]:
        """Looks at all of ``hosts``, one step per component. Raises ``UserError``."""
        found: dict[Node, Look] = {}
        for group in dict.fromkeys(node.group for node in hosts):
            nodes = [node for node in hosts if node.group == group]
            found |= self._look_at(nodes, group, [str(Path.cwd()), *paths])
        return [found[node] for node in hosts]

    def _look_at(
        self, nodes: list[Node], group: int | None, paths: Sequence[str]
    ) -> dict[Node, Look]:
        where = f"nodes {','.join(node.name for node in nodes)}"
        step = self.step(nodes, group, "look")
        command = [*step, sys.executable, "-m", "byteprophet.remote.look", *paths]
        done = run_program(command, f"{where}: {command[0]}", _LOOK_TIMEOUT_S)
        looks = {look.node: look for look in parse_looks(done.stdout, where)}
        missing = [node.name for node in nodes if node.name not in looks]
        if missing:
            said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
            raise UserError(
                f"node {missing[0]}: {sys.executable} -m byteprophet does not run there: "
                f"{said[0] if said else f'srun ended with status {done.returncode}'}"
            )
        return {node: looks[node.name] for node in nodes}

    def step(self, nodes: Sequence[Node], group: int | None, name: str) -> list[str]:
        """The start of a command that runs the rest once on each of ``nodes``."""
        count = len(nodes)
        return [
            self._srun,
            "--quiet",
            "--overlap",  # roles share what the job has
            "--mem=0",
            *self._binding,
            f"--nodes={count}",
            f"--ntasks={count}",
            "--ntasks-per-node=1",
            f"--nodelist={','.join(node.name for node in nodes)}",
            *([] if group is None else [f"--het-group={group}"]),
            f"--job-name={name}",
            "--chdir=/",  # python -m looks for modules there first
        ]

    def directory(self, host: Node) -> str:
        """Where workers start: where this process is."""
        return str(Path.cwd())

    def run_directory(self, unit: Unit, host: Node, kept: Path) -> Path:
        """The same on all nodes."""
        return kept

    def client(
        self, unit: Unit, host: Node, told: Told, fetched: Path, kept: Path, temporary: Path
    ) -> list[str]:
        """The command of the client of ``unit``."""
        path = temporary / f"{unit.name}.told"
        path.touch(mode=0o600)
        path.write_bytes(told.to_line())
        step = self.step([host], host.group, unit.name)
        role = [sys.executable, "-m", "byteprophet", "role", unit.kind]
        role += ["--job", "-", "--index", str(unit.index)]
        if host.interface is not None:
            role += ["--interface", host.interface]
        # If this process is killed, its clients still ask the roles to end. srun must get no signal
        # then: it would have the whole step killed, with what cleans up after the role.
        dies_with = [require("setpriv"), "--pdeathsig", "TERM", "--"]
        return [
            *dies_with,
            *(sys.executable, "-I", "-S", tethered.__file__, str(path), str(BEAT_PERIOD_S)),
            *(str(parse_job(told.job, "job").spec.limits.grace_s + ENDING_S), "--"),
            *(*dies_with, *step, *role),
        ]


def _listed(environment: Mapping[str, str], name: str) -> list[str]:
    """The nodes in the variable ``name``, which has them in Slurm's short form: n[1-3]."""
    text = environment.get(name)
    if not text:
        raise UserError(f"{name} is not set: this process is in no allocation of Slurm")
    scontrol = _program("scontrol")
    command = [scontrol, "show", "hostnames", text]
    done = run_program(command, f"{name}: {scontrol}", _LIST_TIMEOUT_S)
    if done.returncode != 0:
        raise UserError(f"{name}={text}: scontrol says: {done.stderr.strip()}")
    return done.stdout.split()


def _program(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise UserError(
            f"--on slurm: {name} is not installed here: use a login node of the cluster"
        )
    return path


def _words(options: str) -> list[str]:
    try:
        return shlex.split(options)
    except ValueError as error:
        raise UserError(f"--slurm {options!r}: {error}") from None
