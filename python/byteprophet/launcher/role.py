"""Runs one role of a job as a process: logs its output, and takes its exit status and CPU time.

Only the supervisor's thread uses this.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from byteprophet.errors import UserError, warn
from byteprophet.launcher.causes import cancelled_in, error_in, lost_node_in, verdict_in
from byteprophet.launcher.forked_process import ForkPlan, Process
from byteprophet.launcher.signals import ignored_script_signals
from byteprophet.launcher.spec import RoleResult
from byteprophet.whole_files import writing

_READ_BYTES = 1 << 16
_LONGEST_LINE_BYTES = 1 << 16
_LONGEST_QUOTE = 300
# Matches lines that tell why a process ended, unlike the stack frames after them.
_TELLING = re.compile(r"(?i)error|exception|check failed|fatal|abort|assert|cannot|refused")
# Matches what a rank says when a connection to another one has ended: ours, and Gloo's.
_PEER_GONE = re.compile(r"\brank \d+ is gone\b|connection (closed|reset) by peer", re.IGNORECASE)


@dataclass(frozen=True)
class RolePlan:
    """A role to start. ``kind`` is scheduler, server, worker or controller.

    ``fork`` describes what a fork does instead of ``argv``. None: ``argv`` is started.

    ``host``: the process is a client of a role that another launcher runs there, and says why it
    ended; "": it is one of several roles in several places.
    """

    name: str
    kind: str
    argv: Sequence[str]
    environment: Mapping[str, str]
    directory: Path
    log: Path
    fork: ForkPlan | None = None
    host: str | None = None


class Role:
    """A started role. Its process leads a session and a process group of its own."""

    def __init__(self, plan: RolePlan) -> None:
        self.plan = plan
        self.name = plan.name
        self.stopped = False  # the launcher asked it to end
        self.verdict: str | None = None  # its message that another role is lost
        self.lost_node: str | None = None  # what Slurm says of its node
        self.cancelled: str | None = None  # what Slurm says when it ends its step
        self.exit_status: int | None = None
        self.started_s = time.monotonic()
        self.ended_s = self.started_s
        self._cpu_s = 0.0
        self._partial = b""
        self._recent: deque[str] = deque(maxlen=40)
        with writing(plan.log):
            self._log = plan.log.open("wb", buffering=0)
        # Slurm may send signals for scripts to all processes, and only workers run scripts.
        is_script = plan.kind == "worker" and plan.host is None
        try:
            with nullcontext() if is_script else ignored_script_signals():
                self._process: Process[bytes] = Process(
                    plan.argv,
                    plan.fork,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    cwd=plan.directory,
                    env=plan.environment,
                    start_new_session=True,
                )
        except OSError as error:
            self._log.close()
            raise UserError(f"{plan.name} cannot be started: {error}") from None
        self.pid = self._process.pid
        assert self._process.stdout is not None
        self.output_fd = self._process.stdout.fileno()
        os.set_blocking(self.output_fd, False)

    def read(self) -> tuple[list[str], int, bool]:
        """Reads the pipe once; never blocks.

        Returns the new complete lines, the number of bytes read, and whether the pipe is still
        open.
        """
        try:
            data = os.read(self.output_fd, _READ_BYTES)
        except BlockingIOError:
            return [], 0, True
        self._keep(data)
        *whole, self._partial = (self._partial + data).split(b"\n")
        if self._partial and (not data or len(self._partial) > _LONGEST_LINE_BYTES):
            whole.append(self._partial)
            self._partial = b""
        # A progress bar redraws itself with \r, so the line is its last state.
        lines = [line.decode("utf-8", "replace").rstrip("\r").rpartition("\r")[2] for line in whole]
        self._recent.extend(line for line in lines if line.strip())
        for line in lines:
            self.verdict = self.verdict or verdict_in(line)
            if self.plan.host is not None:
                self.lost_node = self.lost_node or lost_node_in(line)
                self.cancelled = self.cancelled or cancelled_in(line)
        return lines, len(data), bool(data)

    def _keep(self, data: bytes) -> None:
        """Appends ``data`` to the log. If that fails, e.g. on a full disk, warns and goes on."""
        if not self._log.closed:
            rest = memoryview(data)
            try:
                while rest:
                    rest = rest[self._log.write(rest) :]
            except OSError as error:
                self._log.close()
                warn(
                    f"{self.plan.log}: {error.strerror}; "
                    f"what {self.name} writes from here on is not kept"
                )

    def poll(self) -> bool:
        """Whether the process has ended. If so, takes its status and CPU time."""
        if self.exit_status is None:
            pid, status, usage = os.wait4(self.pid, os.WNOHANG)
            if pid == 0:
                return False
            self.ended_s = time.monotonic()
            self.exit_status = os.waitstatus_to_exitcode(status)
            self._cpu_s = usage.ru_utime + usage.ru_stime
            # With this, Popen neither waits for the process again nor warns that nobody has.
            self._process.returncode = self.exit_status
        return True

    def close(self) -> None:
        """Closes the log and the pipe. Processes that still write to the pipe get SIGPIPE."""
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._log.close()

    def result(self) -> RoleResult:
        """The role's result. A process that not even SIGKILL has ended counts as killed."""
        status = -signal.SIGKILL if self.exit_status is None else self.exit_status
        return RoleResult(self.name, self.pid, int(status), round(self._cpu_s, 3), self.stopped)

    def obituary(self) -> str:
        """One line about the role's end: status, time, its most informative line, and its log."""
        assert self.exit_status is not None
        if self.plan.host is not None:
            told = [found for line in self._recent if (found := error_in(line)) is not None]
            if told:
                cause = told[0] if told[0].startswith(self.name) else f"{self.name}: {told[0]}"
                where = f" (on {self.plan.host})" if self.plan.host else ""
                return f"{cause}{where}; its log: {self.plan.log}"
        if self.exit_status < 0:
            how = f"was killed by signal {-self.exit_status} ({_signal_name(-self.exit_status)})"
        else:
            how = f"ended with status {self.exit_status}"
        text = f"{self.name} {how} after {self.ended_s - self.started_s:.1f} s"
        quote = self._telling_line()
        if quote:
            text += f"; it said: {quote}"
        return f"{text}; its log: {self.plan.log}"

    def blames_peer(self) -> bool:
        """Whether the role has said, of late, that a connection to another rank has ended."""
        return any(map(_PEER_GONE.search, self._recent))

    def _telling_line(self) -> str:
        unindented = [line for line in self._recent if not line[0].isspace()]
        telling = [line for line in unindented if _TELLING.search(line)]
        # A role that was killed could not know that, so its last line is no explanation.
        last = [] if self.exit_status == -signal.SIGKILL else unindented or list(self._recent)
        lines = telling or last
        return lines[-1].strip()[:_LONGEST_QUOTE] if lines else ""


def _signal_name(signum: int) -> str:
    try:
        return signal.Signals(signum).name
    except ValueError:  # a real-time signal
        return "no name"
