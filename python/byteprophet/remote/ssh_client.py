"""The client of one role that runs on a host behind ssh, as a program.

    python -m byteprophet.remote.ssh_client TASK.json

It sends the role what it is told (launcher/tether.py) and passes on what the role prints and its
exit status. SIGTERM asks the role to end; SIGUSR1 and SIGUSR2 are passed on to its script.
Afterwards, it fetches the role's run directory and removes it on the host. If this process is
killed, the role's standard input ends, and so does it.

One thread runs the event loop; another one only writes to standard output. A terminal that accepts
no output therefore stops neither beats nor keepalives.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from byteprophet.errors import Error, JobFailed, one_line
from byteprophet.input_files import read_json
from byteprophet.launcher.tether import BEAT, BEAT_PERIOD_S, END, PASSED_ON
from byteprophet.remote.client_limits import FETCH_TIMEOUT_S
from byteprophet.remote.connection import connected, lost
from byteprophet.remote.fetching import fetching, partial_of
from byteprophet.remote.hosts_file import SshHost

if TYPE_CHECKING:
    import asyncssh

_READ_BYTES = 1 << 16


@dataclass(frozen=True)
class SshTask:
    """What a client does.

    Attributes:
        host: where the role runs.
        command: a line for its shell.
        told: the first line for the command's standard input.
        fetched: the directory on the host to fetch.
        kept: where it comes to here; its parent exists.
        ending_s: how long the role may take to end when it is asked to.
    """

    host: SshHost
    command: str
    told: str
    fetched: str
    kept: str
    ending_s: float

    @classmethod
    def read(cls, path: Path) -> SshTask:
        """The task that ``asdict`` and JSON wrote to ``path``."""
        fields = read_json(path)
        return cls(**{**fields, "host": SshHost(**fields["host"])})

    def to_fields(self) -> dict[str, object]:
        """What ``read`` reads, as plain data."""
        return asdict(self)


async def run_task(task: SshTask) -> int:
    """Runs the role to its end and returns its exit status.

    Raises ``UserError`` if the host cannot be reached, and ``JobFailed`` if the connection is lost
    or the role does not end when it is asked to.
    """
    import asyncssh

    asked, late = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    async with connected(task.host) as connection:
        process = await connection.create_process(
            task.command, encoding=None, stderr=asyncssh.STDOUT
        )
        process.stdin.write(task.told.encode())
        loop.add_signal_handler(signal.SIGTERM, asked.set)
        for signum, word in PASSED_ON.items():
            loop.add_signal_handler(signum, _tell, process, word)
        beats = asyncio.create_task(_beat(process, asked))
        limit = asyncio.create_task(_leave_late(connection, asked, late, task.ending_s))
        try:
            while data := await process.stdout.read(_READ_BYTES):
                await loop.run_in_executor(None, _write, data)
            await process.wait_closed()
        finally:
            beats.cancel()
            limit.cancel()
        status: int | None = process.returncode
        if late.is_set():
            raise JobFailed(
                f"host {task.host.name}: its role has not ended for {task.ending_s:g} s after it "
                f"was asked to; its files are in {task.fetched} there"
            )
        if status is None:
            raise lost(task.host, None)
        await _fetch(connection, task)
    return status if status >= 0 else 128 - status


async def _beat(process: asyncssh.SSHClientProcess[bytes], asked: asyncio.Event) -> None:
    """Sends a beat per second until somebody has asked for the end, then that."""
    with suppress(OSError):  # the role has ended
        while not asked.is_set():
            process.stdin.write(BEAT)
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(asked.wait(), BEAT_PERIOD_S)
        process.stdin.write(END)


async def _leave_late(
    connection: asyncssh.SSHClientConnection,
    asked: asyncio.Event,
    late: asyncio.Event,
    ending_s: float,
) -> None:
    """Drops the connection if the role still runs ``ending_s`` after somebody has asked."""
    await asked.wait()
    await asyncio.sleep(ending_s)
    late.set()
    connection.abort()


def _tell(process: asyncssh.SSHClientProcess[bytes], word: bytes) -> None:
    with suppress(OSError):  # the role has ended
        process.stdin.write(word)


def _write(data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(1, rest) :]


async def _fetch(connection: asyncssh.SSHClientConnection, task: SshTask) -> None:
    """Copies the role's run directory and removes it there. If that fails, says where it stays.

    What cannot be copied, such as a link to an absolute path, is left out.
    """
    import asyncssh

    kept = Path(task.kept)
    left_out: list[str] = []

    def leave_out(error: Exception) -> None:
        torn = Path(os.fsdecode(getattr(error, "dstpath", b"")))
        left_out.append(f"{torn.name}: {error}")
        if torn.is_file() or torn.is_symlink():
            torn.unlink()

    async def copy() -> None:
        async with connection.start_sftp_client() as sftp:
            if await sftp.exists(task.fetched):
                with fetching(kept) as partial:
                    await sftp.get(task.fetched, partial, recurse=True, error_handler=leave_out)
                if not left_out:
                    await sftp.rmtree(task.fetched)

    stay = f"stay in {task.fetched} on {task.host.name}"
    try:
        await asyncio.wait_for(copy(), FETCH_TIMEOUT_S)
    except (OSError, asyncssh.Error, asyncio.TimeoutError) as error:
        reason = str(error) or f"it took longer than {FETCH_TIMEOUT_S:.0f} s"
        _say(
            f"warning: results cannot be fetched ({reason}); they {stay}; what has come is in "
            f"{partial_of(kept)}"
        )
    else:
        if left_out:
            count = len(left_out)
            _say(f"warning: {count} of the results cannot be fetched ({left_out[0]}); all {stay}")


def _say(text: str) -> None:
    with suppress(OSError):
        print(f"byteprophet: {one_line(text)}", flush=True)


def main(path: str) -> int:
    """Runs the task in ``path``; its exit status. 1 if the role cannot be started or is lost."""
    try:
        return asyncio.run(run_task(SshTask.read(Path(path))))
    except Error as error:
        _say(f"error: {error}")
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
