"""The fork server: imports modules, then forks a process per request until its client has ended.

It has one thread, because a fork only copies the thread that forks. A server is not used if an
import has started a thread, or if an import has written output that a normal start would write,
too. The imported modules read no variable that may differ between the forks of a server
(``fork_key.py``). They do not load BytePS, which reads such variables.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import io
import json
import os
import signal
import socket
import sys
import threading
import time
import weakref
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from byteprophet.readable import readable

# What many workers import, as far as it loads no BytePS. Modules that are started with -m are not
# here, because runpy warns of those that are loaded already.
IMPORTS = (
    "torch",
    "torch._dynamo",
    "torch.distributed",
    "torch.distributed.fsdp",
    "byteprophet.session.process",
    "byteprophet.control.client",
    "byteprophet.paced.check",
    "byteprophet.paced.collective_front",
    "byteprophet.paced.real_time",
    "psutil",
    "zmq",
)
_PR_SET_PDEATHSIG = 1
_ADOPTED_TIMEOUT_S = 10.0
_WORD_TIMEOUT_S = 60.0
# These signals end a job, come from a terminal, or are for scripts. The server goes on until its
# client has ended.
_NOT_OURS = (
    signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTSTP, signal.SIGUSR1, signal.SIGUSR2
)  # fmt: skip
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)
_MODULES = (".py", ".so", ".pyc")
_AUTOLOADED = (
    "BYTEPS_SCHEDULER",
    "BYTEPROPHET_SYNC",
    "BYTEPROPHET_STRATEGY",
    "BYTEPROPHET_RECORD",
    "BYTEPROPHET_REGION_COSTS",
)
"""The variables that byteprophet.pth looks at."""


def serve(number: int) -> dict[str, Any]:
    """Serves the client at socket ``number``. The process ends when the client has ended.

    Returns only in a fork, with the request. The fork is then completely set up, and only has to
    run the program.
    """
    ended = os.pidfd_open(os.getppid())
    for signum in _NOT_OURS:
        signal.signal(signum, signal.SIG_IGN)
    with socket.socket(fileno=number) as client:
        client.sendall(b"1" if _load() else b"0")
        while ended not in readable((number, ended)):
            head, streams, _, _ = socket.recv_fds(client, 8, 4)
            if not head:
                break
            request = json.loads(_exactly(client, int.from_bytes(head, "little")))
            if _is_fork():
                client.close()
                os.close(ended)
                _inherit(request, streams)
                return dict(request)
            for stream in streams:
                os.close(stream)
    os._exit(0)


def _load() -> bool:
    """Imports the modules, and returns whether a fork can then replace a normal start."""
    said = os.memfd_create("said")
    for number in (1, 2):
        os.dup2(said, number)
    gc.disable()  # imports leave hardly any garbage, and looking for it takes long
    for name in IMPORTS:
        importlib.import_module(name)
    _keep_libraries()
    gc.enable()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    gc.collect()
    gc.freeze()  # otherwise the collector would write to all pages shared with forks
    quiet = os.fstat(said).st_size == 0
    os.close(said)
    return quiet and len(list(Path("/proc/self/task").iterdir())) == 1


def _keep_libraries() -> None:
    """Forks do not take torch's libraries of operators apart when they end.

    That takes most of the time of an empty program, to copy pages that are shared with the server.
    Libraries that a program makes itself are taken apart as always.
    """
    for each in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        alive = each.peek()
        if alive is not None and alive[1].__module__ == "torch.library":
            each.atexit = False


def _exactly(client: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = client.recv(size - len(data))
        if not more:
            os._exit(0)  # the client has ended
        data += more
    return data


def _is_fork() -> bool:
    """Forks twice, and returns True in the fork.

    The process in between ends, so that the client adopts the fork.
    """
    between = os.fork()
    if between:
        os.waitpid(between, 0)
        return False
    if os.fork():
        os._exit(0)
    return True


def _inherit(request: Mapping[str, Any], streams: Sequence[int]) -> None:
    """Gives this fork the state of the client's own child, and waits for the confirmation."""
    own = os.getpid().to_bytes(8, "little")
    with socket.socket(fileno=streams[3]) as client:
        client.settimeout(_WORD_TIMEOUT_S)
        try:
            _wait_adopted(request["parent"])
            _check_modules(_first_path(request["command"], request["directory"]))
            _enter(request["namespaces"])
            os.chdir(request["directory"])
            if request["new_session"]:
                os.setsid()
            if request["dies_with_parent"]:
                _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            _wait_adopted(request["parent"])  # it may have ended before the line above
            _set_environment(request["environment"])
            _show(request["command"], request["environment"])
            _set_streams(streams[:3])
            _renew()
            _set_signals(request["ignored"], request["blocked"])
        except Exception:  # noqa: BLE001 - whatever it is, a normal start reports it, too
            client.sendall(own + b"0")
            os._exit(1)
        client.sendall(own + b"1")
        if client.recv(1) != b"1":
            os._exit(1)


def _wait_adopted(parent: int) -> None:
    deadline_s = time.monotonic() + _ADOPTED_TIMEOUT_S
    while os.getppid() != parent:
        if time.monotonic() > deadline_s:
            raise OSError("not adopted by the client")
        time.sleep(0.0002)


def _first_path(command: Sequence[str], directory: str) -> Path:
    """The folder that the program's imports search first."""
    if command[1] in ("-m", "-c"):
        return Path(directory)
    return (Path(directory) / command[1]).resolve().parent


def _check_modules(folder: Path) -> None:
    """Raises ``ValueError`` if ``folder`` has a module that is already loaded from elsewhere."""
    for entry in folder.iterdir():
        loaded = getattr(sys.modules.get(entry.name.partition(".")[0]), "__file__", None)
        elsewhere = loaded is not None and folder not in Path(loaded).parents
        if elsewhere and (entry.suffix in _MODULES or (entry / "__init__.py").exists()):
            raise ValueError(f"{entry} is not {loaded}")


def _libc(name: str, *arguments: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*map(ctypes.c_ulong, arguments)) != 0:
        raise OSError(ctypes.get_errno(), name)


def _prctl(option: int, value: int) -> None:
    _libc("prctl", option, value, 0, 0, 0)


def _enter(namespaces: Iterable[str]) -> None:
    opened = [os.open(path, os.O_RDONLY | os.O_CLOEXEC) for path in namespaces]
    for number in opened:
        _libc("setns", number, 0)
        os.close(number)


def _set_environment(environment: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)


def _show(command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Makes /proc show the program's command and environment, by which jobs find processes."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    arguments, end, variables, last = map(int, fields[45:49])
    shown = os.fsencode(" ".join(command))[: end - arguments - 2].ljust(end - arguments - 1, b"\0")
    # If the last byte is not 0, Linux shows one string up to the first 0.
    ctypes.memmove(arguments, shown + b" ", end - arguments)
    text = b"".join(os.fsencode(f"{n}={v}") + b"\0" for n, v in environment.items())
    if len(text) > last - variables:
        raise ValueError("no room for the environment")
    ctypes.memmove(variables, text.ljust(last - variables, b"\0"), last - variables)


def _set_streams(streams: Sequence[int]) -> None:
    """Opens the standard streams as Python does when it starts."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdin = sys.__stdin__ = _opened(0, "r", sys.__stdin__)  # type: ignore[misc]
    sys.stdout = sys.__stdout__ = _opened(1, "w", sys.__stdout__)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _opened(2, "w", sys.__stderr__)  # type: ignore[misc]


def _opened(number: int, mode: str, like: io.TextIOWrapper | None) -> io.TextIOWrapper:
    assert like is not None
    unbuffered = like.write_through  # PYTHONUNBUFFERED
    raw = io.FileIO(number, mode, closefd=False)
    raw.name = ("<stdin>", "<stdout>", "<stderr>")[number]
    buffered: Any = raw
    if mode == "r":
        buffered = io.BufferedReader(raw)
    elif not unbuffered:
        buffered = io.BufferedWriter(raw)
    stream = io.TextIOWrapper(
        buffered,
        like.encoding,
        like.errors,
        newline="\n",
        line_buffering=not unbuffered and (number == 2 or os.isatty(number)),
        write_through=unbuffered,
    )
    stream.mode = mode  # type: ignore[misc]
    return stream


def _renew() -> None:
    """Renews state that every process has of its own and that Python does not renew in a fork."""
    loaded = sys.modules  # loaded by IMPORTS
    loaded["torch"].default_generator.seed()
    loaded["numpy.random"].seed()
    loaded["multiprocessing.process"].current_process().authkey = os.urandom(32)
    threading.main_thread()._set_native_id()  # type: ignore[attr-defined]
    importlib.invalidate_caches()
    if any(map(os.environ.get, _AUTOLOADED)):  # as byteprophet.pth
        importlib.import_module("byteprophet._autoload")


def _set_signals(ignored: Iterable[int], blocked: Iterable[int]) -> None:
    left = {*ignored}
    for signum in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        handler: Any = signal.SIG_DFL
        if signum in left or signum in _IGNORED_BY_PYTHON:
            handler = signal.SIG_IGN
        elif signum == signal.SIGINT:
            handler = signal.default_int_handler
        with contextlib.suppress(OSError, ValueError):
            signal.signal(signum, handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
