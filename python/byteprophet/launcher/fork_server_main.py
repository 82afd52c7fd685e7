"""The fork server's program: ``fork_server_main.py SOCKET ROOM``, started by ``fork_server.py``."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    if not getattr(sys.flags, "safe_path", False):
        del sys.path[0]  # this folder: its modules have names that other modules have, too
    from byteprophet.launcher import forking
    from byteprophet.launcher.forked_program import run

    run(forking.serve(int(sys.argv[1])))
