"""The entry point of the installed command, which imports all the rest.

Imports take a moment, and so does the end of the interpreter. An interrupt then ends the process
silently, as it ends other programs, instead of with a traceback of whatever was being imported.
"""

from __future__ import annotations

import signal


def main() -> None:
    """Runs the command line of this process, and ends the process."""
    # A signal that is ignored, as under nohup, stays ignored.
    is_usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_usual:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from byteprophet.cli.main import main as run_command_line

    if is_usual:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        run_command_line()
    finally:
        if is_usual:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
