"""The fork server's program: ``fork_server_main.py SOCKET ROOM``, started by ``fork_server.py``."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable

_last: list[Callable[[], None]] = []


def _run_last() -> None:
    for function in _last:
        function()


if __name__ == "__main__":
    if not getattr(sys.flags, "safe_path", False):
        del sys.path[0]  # this folder: its modules have names that other modules have, too
    if not atexit._ncallbacks():
        atexit.register(_run_last)  # before the imports below register handlers of their own
    from byteprophet.launcher import forking
    from byteprophet.launcher.forked_end import end
    from byteprophet.launcher.forked_program import run

    _last.append(end)
    run(forking.serve(int(sys.argv[1])))
