"""Starts a process as ``subprocess.Popen`` does or, if it is equivalent, forks it from a server."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, AnyStr

from byteprophet.launcher import fork_server
from byteprophet.runtime_settings import flag

VARIABLE = "BYTEPROPHET_FORK_SERVER"


def forks_wanted(environment: Mapping[str, str], default: bool) -> bool:
    """Whether programs should be forked. ``default`` counts if the variable is not set.

    Raises ``UserError`` if the variable has a wrong value.
    """
    return flag(environment, VARIABLE, str(int(default)))


@dataclass(frozen=True)
class ForkPlan:
    """Describes what a fork does instead of a longer command line.

    It enters ``namespaces`` (paths in /proc, in this order) and becomes ``command``. If
    ``dies_with_parent``, it is killed when the process that started it ends. Without
    ``starts_server``, it is forked only if another program's server is there: it imports less than
    a server does.
    """

    command: tuple[str, ...]
    namespaces: tuple[str, ...] = ()
    dies_with_parent: bool = False
    starts_server: bool = True


class Process(subprocess.Popen[AnyStr]):
    """A program that has been started. ``is_fork`` tells whether it was forked.

    ``plan`` describes what a fork does instead of ``command``. Without a plan, or if a fork cannot
    replace a normal start, ``command`` is started as by ``Popen``.
    """

    def __init__(
        self,
        command: Sequence[str],
        plan: ForkPlan | None,
        *,
        stdin: int | IO[Any] | None = None,
        stdout: int | IO[Any] | None = None,
        stderr: int | IO[Any] | None = None,
        cwd: str | Path | None = None,
        env: Mapping[str, str] | None = None,
        text: bool | None = None,
        start_new_session: bool = False,
    ) -> None:
        self.is_fork = False
        self._plan = plan
        self._new_session = start_new_session
        super().__init__(
            list(command),
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            cwd=cwd,
            env=env,
            text=text,
            start_new_session=start_new_session,
        )

    def _execute_child(self, *given: Any) -> None:
        """Overrides the method of ``Popen`` that starts the program.

        Its arguments are the same in CPython 3.10 to 3.14.
        """
        ends = given[10:16]  # pipe ends: the child's and ours for 0, ours and the child's for 1, 2
        streams = (ends[0], ends[3], ends[5])
        pid = None
        if self._plan is not None:
            pid = _fork(self._plan, given[5], given[6], streams, self._new_session)
        if pid is None:
            super()._execute_child(*given)  # type: ignore[misc]
        else:
            self.is_fork = self._child_created = True
            self.pid = pid
            self._close_pipe_fds(*ends)  # type: ignore[attr-defined]


def _fork(
    plan: ForkPlan,
    directory: str | Path | None,
    environment: Mapping[str, str] | None,
    streams: Sequence[int],
    new_session: bool,
) -> int | None:
    """The fork's process id; None if there is no fork. A stream of -1 is this process' own."""
    try:
        folder = Path.cwd() / (directory or "")
    except OSError:  # the current directory has been removed
        return None
    variables = dict(os.environ if environment is None else environment)
    if not _can_be_forked(plan.command, folder, variables.get("PATH")):
        return None
    request = fork_server.ForkRequest(
        command=plan.command,
        environment=variables,
        directory=str(folder),
        namespaces=plan.namespaces,
        dies_with_parent=plan.dies_with_parent,
        new_session=new_session,
        ignored=tuple(s for s in signal.valid_signals() if signal.getsignal(s) == signal.SIG_IGN),
        blocked=tuple(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        parent=os.getpid(),
    )
    own = [number if stream == -1 else stream for number, stream in enumerate(streams)]
    return fork_server.fork(request, own, plan.starts_server)


def _can_be_forked(command: Sequence[str], folder: Path, search_path: str | None) -> bool:
    """Whether ``command`` is this interpreter with only ``-m MODULE``, ``-c CODE`` or a script."""
    if len(command) < 2 or "\0" in "".join(command):
        return False
    if command[0] != sys.executable and not _is_this_interpreter(command[0], search_path):
        return False
    if command[1] in ("-m", "-c"):
        return len(command) > 2
    return command[1].endswith(".py") and (folder / command[1]).is_file()


def _is_this_interpreter(name: str, search_path: str | None) -> bool:
    """Whether ``name``, such as python, is found in ``search_path`` as this interpreter.

    The environment of an interpreter is that of the folder in which it was found, so a link to it
    in another folder does not count.
    """
    if "/" in name or search_path is None:
        return False
    found = shutil.which(name, path=search_path)
    own = Path(sys.executable)
    return found is not None and Path(found).parent == own.parent and own.samefile(found)
