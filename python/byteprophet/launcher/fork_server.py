"""Manages the fork servers of this process: starts them on demand, requests forks, ends them.

A server (``fork_server_main.py``) has imported torch and most other modules that workers import. It
can only fork programs that would inherit the same state (``fork_key.py``); for others, another
server is started. Only the few that were used last are kept.

*Parents.* A server forks twice, and the process in between ends. So the fork is adopted by its
nearest ancestor that is a "child subreaper", and this process is one at that moment. The fork is
then our child, as if we had started it: we wait for it, its CPU time is counted, and it gets a
parent-death signal when we end. The server has nothing more to do with it.

*Ends.* A server ends when its socket is closed or this process has ended for any reason. Its forks
go on.

Threads: ``_lock`` is held during a request to a server. A child that was forked from this process
has no servers.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from byteprophet.launcher.fork_key import early_variables, fork_key

_MAIN = Path(__file__).with_name("fork_server_main.py")
_KEPT = 2
_START_TIMEOUT_S = 120.0
_FORK_TIMEOUT_S = 30.0
_END_TIMEOUT_S = 2.0
# A fork overwrites the server's arguments and environment with its own, so that /proc shows them.
_COMMAND_BYTES = 4 << 10
_ENVIRONMENT_BYTES = 96 << 10
_PR_SET_CHILD_SUBREAPER = 36
_PR_GET_CHILD_SUBREAPER = 37


@dataclass(frozen=True)
class ForkRequest:
    """Describes the process that a fork becomes.

    ``command`` is this interpreter without options, followed by ``-m``, ``-c`` or a script.
    ``namespaces`` (paths in /proc) are entered in this order. ``ignored`` and ``blocked`` are
    signals.
    """

    command: tuple[str, ...]
    environment: dict[str, str]
    directory: str
    namespaces: tuple[str, ...]
    dies_with_parent: bool
    new_session: bool
    ignored: tuple[int, ...]
    blocked: tuple[int, ...]
    parent: int


def fork(request: ForkRequest, streams: Sequence[int], starts_server: bool) -> int | None:
    """Forks a new child of this process, which has ``streams`` as 0, 1 and 2; returns its id.

    None if a fork cannot replace a normal start, or fails, or if there is no server yet and
    ``starts_server`` is false. Then nothing runs.
    """
    with _lock:
        key = fork_key(request.environment)
        if not starts_server and key not in _servers:
            return None
        try:
            server = _server_for(key, request.environment)
            return None if server is None else server.fork(request, streams)
        except OSError:  # this server is not used again
            broken = _servers.pop(key, None)
            _servers[key] = None
            if broken is not None:
                broken.close()
            return None


def close() -> None:
    """Ends all servers. New ones are started when they are needed."""
    with _lock:
        for server in _servers.values():
            if server is not None:
                server.close()
        _servers.clear()


class _Server:
    """A fork server that has been started."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._socket, theirs = socket.socketpair()
        room = {"BYTEPROPHET_FORK_SERVER_ROOM": " " * _ENVIRONMENT_BYTES}
        with theirs:
            self._process = subprocess.Popen(
                (sys.executable, str(_MAIN), str(theirs.fileno()), " " * _COMMAND_BYTES),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env={**early_variables(environment), **room},
                pass_fds=(theirs.fileno(),),
            )

    def wait_ready(self) -> bool:
        """Whether the server can fork: False if it has several threads or has written output."""
        self._socket.settimeout(_START_TIMEOUT_S)
        return self._socket.recv(1) == b"1"

    def fork(self, request: ForkRequest, streams: Sequence[int]) -> int | None:
        """Like the function ``fork``.

        A fork waits for our confirmation before it becomes the program, and ends without it. So a
        fork that we do not know of never runs.
        """
        ours, theirs = socket.socketpair()
        with ours, _adopting():
            ours.settimeout(_FORK_TIMEOUT_S)
            with theirs:
                text = json.dumps(asdict(request)).encode()
                head = len(text).to_bytes(8, "little")
                self._socket.settimeout(_FORK_TIMEOUT_S)
                socket.send_fds(self._socket, [head], [*streams, theirs.fileno()])
                self._socket.sendall(text)
            said = ours.recv(9)
            if said[8:] == b"1":
                ours.sendall(b"1")
                return int.from_bytes(said[:8], "little")
        if len(said) >= 8:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(int.from_bytes(said[:8], "little"), 0)
        return None

    def close(self) -> None:
        """Ends the server."""
        self._socket.close()
        try:
            self._process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(_END_TIMEOUT_S)


@contextlib.contextmanager
def _adopting() -> Iterator[None]:
    """Makes this process a child subreaper within the context."""
    libc = ctypes.CDLL(None)
    before = ctypes.c_int()
    libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(1), 0, 0, 0)
    try:
        yield
    finally:
        libc.prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(before.value), 0, 0, 0)


_lock = threading.Lock()
_servers: dict[object, _Server | None] = {}  # None: it cannot fork; the last used comes last


def _server_for(key: object, environment: Mapping[str, str]) -> _Server | None:
    """The server for ``key``, started if necessary; None if it cannot fork.

    REQUIRES: the lock is held.
    """
    if key not in _servers:
        _make_room()
        server = _Server(environment)
        _servers[key] = None
        if server.wait_ready():
            _servers[key] = server
        else:
            server.close()
    _servers[key] = _servers.pop(key)
    return _servers[key]


def _make_room() -> None:
    """Ends the least recently used server if there are as many as are kept."""
    running = [(key, server) for key, server in _servers.items() if server is not None]
    if len(running) >= _KEPT:
        key, server = running[0]
        del _servers[key]
        server.close()


def _forget() -> None:
    """Called in a child that was forked from this process: the servers belong to its parent."""
    global _lock
    _lock = threading.Lock()
    _servers.clear()


os.register_at_fork(after_in_child=_forget)
atexit.register(close)
