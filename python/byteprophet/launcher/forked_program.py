"""Runs a program in a fork as ``python -m MODULE``, ``-c CODE`` or ``python SCRIPT`` would.

``__main__`` is a new module, tracebacks begin in the program, and the process does at its end what
an interpreter does for the program: it waits for threads, calls functions registered with atexit
and flushes streams (``forked_end.py``).
"""

from __future__ import annotations

import importlib.machinery
import runpy
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import Any

from byteprophet.launcher import forked_end

_OURS = {__file__, str(Path(__file__).with_name("fork_server_main.py"))}


def run(request: Mapping[str, Any]) -> None:
    """Runs the program of ``request`` (``fork_server.ForkRequest``). Its exceptions propagate."""
    command: Sequence[str] = request["command"]
    sys.orig_argv = list(command)
    main = ModuleType("__main__")
    main.__dict__.update(__builtins__=sys.modules["builtins"], __annotations__={})
    sys.modules["__main__"] = main
    try:
        if command[1] == "-m":
            _set_arguments(command[1], command[3:], str(Path.cwd()))
            runpy._run_module_as_main(command[2])  # type: ignore[attr-defined]
        else:
            exec(_code(command, main), main.__dict__)  # noqa: S102
    except SystemExit as ended:
        forked_end.note_exit(ended.code)
        raise
    except BaseException:
        _show_no_frames_of_ours()
        raise
    forked_end.note_exit(None)


def _code(command: Sequence[str], main: ModuleType) -> CodeType:
    if command[1] == "-c":
        _set_arguments("-c", command[3:], "")
        main.__loader__ = importlib.machinery.BuiltinImporter
        return compile(command[2], "<string>", "exec", dont_inherit=True)
    _set_arguments(command[1], command[2:], str(Path(command[1]).resolve().parent))
    path = f"{Path.cwd()}/{command[1]}" if command[1][0] != "/" else command[1]
    loader = importlib.machinery.SourceFileLoader("__main__", path)
    main.__dict__.update(__file__=path, __cached__=None, __loader__=loader)
    return compile(loader.get_data(path), path, "exec", dont_inherit=True)


def _set_arguments(first: str, rest: Sequence[str], folder: str) -> None:
    sys.argv = [first, *rest]
    if not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, folder)


def _show_no_frames_of_ours() -> None:
    hook = sys.excepthook

    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        while trace is not None and trace.tb_frame.f_code.co_filename in _OURS:
            trace = trace.tb_next
        hook(kind, error.with_traceback(trace), trace)

    sys.excepthook = show
