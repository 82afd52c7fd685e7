"""The command ``byteprophet``, and the one place where exceptions become exit statuses.

    0    done
    1    a job failed, or something required is missing: one line on standard error
    2    wrong usage, also of hosts where no job can run: one line on standard error
    130  interrupted (143 for SIGTERM, 129 for SIGHUP): one line on standard error

Standard output may be a full disk (status 2) or a pipe that nobody reads any more (status 1, and
nothing is said: ``byteprophet report RUN | head -1`` wants no more).

A command is a module of this package with ``register(app)``, imported when it is asked for: all of
them together, plots and reports included, take four times as long to import as ``run``.
"""

from __future__ import annotations

import atexit
import errno
import gc
import importlib
import io
import os
import signal
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn

from byteprophet.cli.collecting import no_collecting
from byteprophet.cli.output import write_no_more
from byteprophet.errors import EndedBySignal, JobFailed, UserError, one_line, tell

with no_collecting():  # a command's import is a good part of what it takes of the processor
    import typer

COMMANDS = (
    "run",
    "role",
    "watch",
    "bench",
    "profile",
    "timeline",
    "replay",
    "optimize",
    "strategy",
    "simulate",
    "memory",
    "cluster",
    "costs",
    "trace",
    "report",
    "network",
    "control",
    "workload",
    "doctor",
)
_INTERRUPTED = 130
# What a disk says. Files that we write are named (whole_files.py), so without a name it is of
# standard output.
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)


def version() -> str:
    """The installed package's version."""
    import importlib.metadata  # which takes a moment

    try:
        return importlib.metadata.version("byteprophet")
    except importlib.metadata.PackageNotFoundError:
        return "unknown (not installed)"


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"byteprophet {version()}")
        raise typer.Exit


def make_app(commands: Iterable[str]) -> typer.Typer:
    """The application with these commands."""
    app = typer.Typer(
        name="byteprophet",
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )

    @app.callback()
    def byteprophet(
        show_version: Annotated[
            bool,
            typer.Option(
                "--version", is_eager=True, callback=_print_version, help="Print the version."
            ),
        ] = False,
    ) -> None:
        """Communication scheduling for distributed training with BytePS.

        Example: byteprophet run --workers 2 --bandwidth 1gbit -- python train.py
        """

    with no_collecting():
        for command in commands:
            importlib.import_module(f"byteprophet.cli.{command}").register(app)
    _list_whole_sentences(app)
    return app


def _list_whole_sentences(app: typer.Typer) -> None:
    """Has lists of commands show first lines of help, which click would cut off at 80 columns."""
    for command in app.registered_commands:
        text = command.help or getattr(command.callback, "__doc__", None)
        command.short_help = text.strip().partition("\n")[0] if text else None
    for group in app.registered_groups:
        within = group.typer_instance
        if within is not None:
            text = within.info.help
            group.short_help = text.strip().partition("\n")[0] if isinstance(text, str) else None
            _list_whole_sentences(within)


def run_cli(arguments: Sequence[str]) -> int:
    """Runs the command line ``arguments``; its exit status. No traceback for what a user did."""
    try:
        status = _run(arguments)
        if sys.stdout is not None:
            sys.stdout.flush()  # here, where it can be told, not at exit
        return status
    except BrokenPipeError:
        write_no_more(sys.stdout)
        return 1
    except OSError as error:
        if error.errno not in _DISK_ERRORS:
            raise
        write_no_more(sys.stdout)
        return _complain(f"standard output: cannot be written: {error.strerror}", 2)


def _run(arguments: Sequence[str]) -> int:
    try:
        Path.cwd()
    except FileNotFoundError:
        return _complain("the current directory has been removed: change to another one", 2)
    # Help and errors may speak of all commands.
    if arguments[:1] == ["--version"]:
        commands: Sequence[str] = ()
    elif arguments and arguments[0] in COMMANDS:
        commands = arguments[:1]
    else:
        commands = COMMANDS
    try:
        # Not standalone: it would print usage errors in a box of its own, and exit by itself.
        status = make_app(commands)(list(arguments), prog_name="byteprophet", standalone_mode=False)
    except typer.TyperException as error:  # wrong options and arguments
        if "\n" in error.format_message():  # all of a group's help, as no command of it was named
            return _complain(f"name a command: see byteprophet {' '.join(arguments)} --help", 2)
        return _complain(f"{error.format_message().rstrip('.')}; see --help", 2)
    except UserError as error:
        return _complain(str(error), 2)
    except JobFailed as error:
        return _complain(str(error), 1)
    except OSError as error:
        if error.filename is None:  # standard output, or no file at all
            raise
        return _complain(f"{error.filename}: cannot be read or written: {error.strerror}", 2)
    except (KeyboardInterrupt, typer.Abort):
        return _complain("interrupted", _INTERRUPTED)
    except EndedBySignal as ended:
        cause = "" if ended.cause is None else f": {ended.cause}"
        return _complain(f"ended by signal {ended.signum}{cause}", 128 + ended.signum)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 1
    if status == _INTERRUPTED:  # typer has caught the KeyboardInterrupt
        return _complain("interrupted", _INTERRUPTED)
    return status if isinstance(status, int) else 0


def _complain(text: str, status: int) -> int:
    tell(f"error: {one_line(text)}")
    return status


def _end(signum: int, _frame: FrameType | None) -> NoReturn:
    """Unwind what the command does. A second signal ends the process at once."""
    signal.signal(signum, signal.SIG_DFL)
    raise EndedBySignal(signum)


def main() -> NoReturn:
    """Runs the command line of this process, and ends it with its exit status."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # What a name has and the terminal's encoding lacks is shown, and is no error.
        sys.stdout.reconfigure(errors="backslashreplace")
    if sys.argv[1:2] == ["report"]:
        # It multiplies no matrices, and starts no process that might: numpy need start no threads.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if sys.stderr is None:  # it was closed: else print would take standard output for it
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115
    # A process whose parent ignores it is not told how its own children ended.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for signum in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(signum) is signal.SIG_DFL:  # one that is ignored, by nohup, stays so
            signal.signal(signum, _end)
    # Else all that there is would be searched for cycles once more at exit.
    atexit.register(gc.freeze)
    sys.exit(run_cli(sys.argv[1:]))
