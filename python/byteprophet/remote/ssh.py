"""Hosts behind ssh, as places for the roles of a job."""

from __future__ import annotations

import asyncio
import json
import secrets
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from byteprophet.errors import UserError
from byteprophet.launcher.job_file import parse_job
from byteprophet.launcher.tether import Told
from byteprophet.remote.client_limits import ENDING_S
from byteprophet.remote.connection import connected, require_library
from byteprophet.remote.hosts_file import SshHost
from byteprophet.remote.look import Look, parse_looks
from byteprophet.remote.placement import Unit
from byteprophet.remote.programs import python_command
from byteprophet.remote.ssh_client import SshTask
from byteprophet.whole_files import write_whole

_LOOK_TIMEOUT_S = 60.0
_MOST_AT_ONCE = 32
_CLIENT_S = ENDING_S + 10.0  # a role may hear late that it is asked to end


class Ssh:
    """Starts roles over ssh. No directory is shared: what a role wrote is fetched when it ended."""

    is_shared = False
    ask = "give its address in the hosts file, or --interface"

    def __init__(self, hosts: Sequence[SshHost]) -> None:
        require_library()
        self.hosts = tuple(hosts)

    def look(self, hosts: Sequence[SshHost], paths: Sequence[str]) -> list[Look]:
        """Looks at all of ``hosts`` at once. Raises ``UserError`` for the first that is no good."""
        return asyncio.run(_look_at_all(hosts, paths))

    def directory(self, host: SshHost) -> str:
        """Where workers on ``host`` start."""
        return host.directory

    def run_directory(self, unit: Unit, host: SshHost, kept: Path) -> Path:
        """Where ``unit`` writes on ``host``, until it is fetched to ``kept``."""
        token = secrets.token_hex(8)  # a job that starts again must not find what is left
        name = f"byteprophet-{kept.parents[1].name}-{unit.name}-{token}"
        return Path(PurePosixPath(host.scratch) / name)

    def client(
        self, unit: Unit, host: SshHost, told: Told, fetched: Path, kept: Path, temporary: Path
    ) -> list[str]:
        """The command of the client of ``unit``."""
        role = ["role", unit.kind, "--job", "-", "--index", str(unit.index)]
        if host.interface is not None:
            role += ["--interface", host.interface]
        command, line = remote_command(host, "byteprophet", role), told.to_line().decode()
        ending_s = parse_job(told.job, "job").spec.limits.grace_s + _CLIENT_S
        task = SshTask(host, command, line, str(fetched), str(kept), ending_s)
        path = temporary / f"{unit.name}.json"
        write_whole(path, json.dumps(task.to_fields()))
        return [sys.executable, "-m", "byteprophet.remote.ssh_client", str(path)]


def remote_command(host: SshHost, module: str, arguments: Sequence[str]) -> str:
    """A line for the shell of ``host``, whatever shell that is: it starts ``sh``."""
    return shlex.join(python_command(host.python, module, arguments))


async def _look_at_all(hosts: Sequence[SshHost], paths: Sequence[str]) -> list[Look]:
    turns = asyncio.Semaphore(_MOST_AT_ONCE)

    async def one(host: SshHost) -> Look:
        async with turns:
            try:
                return await asyncio.wait_for(_look_at(host, paths), _LOOK_TIMEOUT_S)
            except asyncio.TimeoutError:
                raise UserError(
                    f"host {host.name}: no answer within {_LOOK_TIMEOUT_S:.0f} s"
                ) from None

    found = await asyncio.gather(*(one(host) for host in hosts), return_exceptions=True)
    for result in found:
        if isinstance(result, BaseException):
            raise result
    return [result for result in found if isinstance(result, Look)]


async def _look_at(host: SshHost, paths: Sequence[str]) -> Look:
    where = f"host {host.name}"
    async with connected(host) as connection:
        needed = [host.directory, host.scratch, *paths]
        command = remote_command(host, "byteprophet.remote.look", needed)
        done = await connection.run(command, encoding="utf-8", errors="replace")
    looks = parse_looks(str(done.stdout), where)
    if not looks:
        said = [line.strip() for line in str(done.stderr).splitlines() if line.strip()]
        reason = said[-1] if said else f"status {done.exit_status}"
        raise UserError(
            f"{where}: {host.python} -m byteprophet does not run there: {reason}; "
            "give python in the hosts file"
        )
    return looks[0]
