"""One process that keeps one host's namespaces alive.

Nothing has a name in the file system: the namespaces exist while a process is in them, and the
kernel removes their devices, queues and mounts with the last one. The holder is ``cat`` on a pipe
whose other end only this process has, so that it ends on close(), and also however this process
ends: the pipe's end of file cannot be missed, whereas a parent-death signal (set too) can be, by
a parent that dies before the child asked for it.

It runs in a session of its own, so that Ctrl-C at the terminal does not take it away before the
roles that use it have been ended in order.
"""

from __future__ import annotations

import contextlib
import shlex
import subprocess
from collections.abc import Sequence

from byteprophet.errors import UserError
from byteprophet.network import tools
from byteprophet.readable import readable

_READY_TIMEOUT_S = 10.0
_END_TIMEOUT_S = 2.0


class Holder:
    """A process in fresh namespaces; ``pid`` names them to nsenter and ip."""

    def __init__(self, name: str, unshare: Sequence[str], setup: Sequence[Sequence[str]]) -> None:
        """Starts it; ``setup`` are commands run inside, in order, before it is ready."""
        self.name = name
        script = [shlex.join(command) for command in setup]
        script += ["echo ready", "exec cat >/dev/null"]
        die_with_parent = [tools.require("setpriv"), "--pdeathsig", "KILL", "--"]
        self._process = subprocess.Popen(
            # After unshare: entering a user namespace clears the parent-death signal.
            [*unshare, *die_with_parent, "sh", "-c", " && ".join(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self.pid = self._process.pid

    def wait_ready(self) -> None:
        """Returns once the namespaces exist and are set up; UserError with the reason if not."""
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        if not readable([self._process.stdout.fileno()], _READY_TIMEOUT_S):
            raise UserError(f"host {self.name} was not ready within {_READY_TIMEOUT_S:.0f} s")
        if self._process.stdout.readline() != b"ready\n":
            said = self._process.stderr.read().decode(errors="replace").strip()
            raise UserError(f"host {self.name} cannot be made: {said}")

    def close(self) -> None:
        """Ends the process; its namespaces go when nobody else is in them. May be called twice."""
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert pipe is not None
            pipe.close()
        try:
            self._process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_TIMEOUT_S)
