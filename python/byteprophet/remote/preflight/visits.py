"""Runs a program of this package once on every host, at the same time, and takes what it prints.

Each way to reach hosts is a ``Visitor``. A program is told its host's index and where to read what
it is told: from its standard input, or from a file where an input cannot reach all of them.

Threads: ssh has an event loop in the caller's thread. In Slurm, a thread per node waits for its
step. They share nothing.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from byteprophet.errors import Error, UserError
from byteprophet.launcher.checks import LOOPBACK
from byteprophet.remote.connection import connected, require_library
from byteprophet.remote.hosts_file import SshHost
from byteprophet.remote.mpi import mpirun_per_host
from byteprophet.remote.programs import run_program
from byteprophet.remote.slurm import Node, Slurm
from byteprophet.remote.ssh import remote_command

_NAMES_TIMEOUT_S = 60.0
_ELSEWHERE = ("env", "--chdir=/")  # python -m looks for modules in the current directory first


@dataclass(frozen=True)
class Visit:
    """What a program printed on a host; ``error``: why it did not run to its end there, or ""."""

    output: str
    error: str = ""


@dataclass(frozen=True)
class Visited:
    """A host: its name for people, its address, interface and needed paths, where they are given.

    ``todo``: what to do if it cannot be reached.
    """

    name: str
    address: str | None
    interface: str | None
    paths: tuple[str, ...]
    todo: str


class Visitor(Protocol):
    """A way to run programs on hosts."""

    @property
    def hosts(self) -> Sequence[Visited]:
        """The hosts."""

    @property
    def ask(self) -> str:
        """How a user says which address a host has."""

    def visit(self, module: str, told: str, only: Sequence[int], timeout_s: float) -> list[Visit]:
        """Run ``module`` on the hosts ``only``; what each printed, in that order.

        Raises ``UserError`` if none can be reached for the same reason.
        """


class Here:
    """The machine on which one is."""

    ask = "give --interface"

    def __init__(self, interface: str | None) -> None:
        address = LOOPBACK if interface is None else None
        self.hosts = (Visited("this host", address, interface, (str(Path.cwd()),), ""),)

    def visit(self, module: str, told: str, only: Sequence[int], timeout_s: float) -> list[Visit]:
        """Run it here."""
        command = [*_ELSEWHERE, sys.executable, "-m", module, "0", "-"]
        return [_run(command, told, timeout_s) for _ in only]


class OverSsh:
    """Hosts behind ssh."""

    ask = "give its address in the hosts file, or --interface"

    def __init__(self, hosts: Sequence[SshHost], interface: str | None) -> None:
        require_library()
        self._hosts = tuple(hosts)
        names = Counter(host.name for host in hosts)
        self.hosts = tuple(
            Visited(
                host.name if names[host.name] == 1 or host.port is None
                else f"{host.name}:{host.port}",
                host.address,
                interface or host.interface,
                (host.directory, host.scratch),
                f"try: ssh {host.name}; docs/clusters.md says what its message means",
            )
            for host in hosts
        )  # fmt: skip

    def visit(self, module: str, told: str, only: Sequence[int], timeout_s: float) -> list[Visit]:
        """Run it on all of these hosts at once."""

        async def all_of_them() -> list[Visit]:
            visits = (self._visit(index, module, told, timeout_s) for index in only)
            return list(await asyncio.gather(*visits))

        return asyncio.run(all_of_them())

    async def _visit(self, index: int, module: str, told: str, timeout_s: float) -> Visit:
        host = self._hosts[index]
        try:
            async with connected(host) as connection:
                done = await asyncio.wait_for(
                    connection.run(
                        remote_command(host, module, [str(index), "-"]),
                        input=told,
                        encoding="utf-8",
                        errors="replace",
                    ),
                    timeout_s,
                )
        except Error as error:  # there is no connection, or it was lost
            return Visit("", str(error).removeprefix(f"host {host.name}: "))
        except asyncio.TimeoutError:
            return Visit("", f"no answer within {timeout_s:.0f} s")
        status = 1 if done.exit_status is None else int(done.exit_status)
        return _visit(str(done.stdout), str(done.stderr), status)


class InSlurm:
    """The nodes of the allocation that this process is in."""

    ask = "give --interface"

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._slurm = Slurm(nodes)
        directory = (str(Path.cwd()),)
        todo = "sinfo and scontrol show node say what state it is in"
        self.hosts = tuple(
            Visited(node.name, node.address, node.interface, directory, todo) for node in nodes
        )

    def visit(self, module: str, told: str, only: Sequence[int], timeout_s: float) -> list[Visit]:
        """Run it in a step on each of these nodes."""

        def one(index: int) -> Visit:
            node = self._slurm.hosts[index]
            step = self._slurm.step([node], node.group, "preflight")
            return _run([*step, sys.executable, "-m", module, str(index), "-"], told, timeout_s)

        with ThreadPoolExecutor(len(only)) as pool:
            return list(pool.map(one, only))


class ByMpirun:
    """The hosts of mpirun's hostfile, as mpirun itself counts them."""

    ask = "give --interface"

    def __init__(self, hostfile: Path | None, interface: str | None) -> None:
        self._command = mpirun_per_host(hostfile)
        directory = (str(Path.cwd()),)
        todo = "mpirun hostname must print its name"
        self.hosts = tuple(
            Visited(name, None, interface, directory, todo) for name in self._names()
        )

    def _names(self) -> list[str]:
        named = ["sh", "-c", 'echo "$OMPI_COMM_WORLD_RANK $(uname -n)"']
        done = run_program([*self._command, *named], "mpirun", _NAMES_TIMEOUT_S)
        rows = [line.split() for line in done.stdout.splitlines()]
        ranked = [row for row in rows if len(row) == 2 and row[0].isdecimal()]
        found = sorted((int(rank), name) for rank, name in ranked)
        if not found:
            said = " ".join(line.strip() for line in done.stderr.splitlines() if line.strip(" -*"))
            raise UserError(f"mpirun: {said or f'it ended with status {done.returncode}'}")
        return [name for _, name in found]

    def visit(self, module: str, told: str, only: Sequence[int], timeout_s: float) -> list[Visit]:
        """Run it on all hosts, whatever ``only`` says. All have the same output: that of all."""
        # mpirun passes its input on to one process only. All see this directory.
        descriptor, name = tempfile.mkstemp(prefix=".byteprophet-", dir=Path.cwd())
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(told)
            command = [*self._command, sys.executable, "-m", module, "rank", name]
            done = _run(command, "", timeout_s)
        finally:
            Path(name).unlink()
        return [done] * len(only)


def _run(command: Sequence[str], told: str, timeout_s: float) -> Visit:
    try:
        done: subprocess.CompletedProcess[str] = run_program(command, command[0], timeout_s, told)
    except (UserError, OSError) as error:
        return Visit("", str(error))
    return _visit(done.stdout, done.stderr, done.returncode)


def _visit(output: str, errors: str, status: int) -> Visit:
    if status == 0:
        return Visit(output)
    said = [line.strip() for line in errors.splitlines() if line.strip(" -*")]
    reason = said[-1] if said else f"status {status}"
    return Visit(output, f"python -m byteprophet does not run there: {reason}")
