"""The command ``byteprophet``, and the one place where exceptions become exit statuses.

    0    done
    1    a job failed, or something required is missing: one line on standard error
    2    wrong usage: one line on standard error
    130  interrupted (143 for SIGTERM)

A command is a module of this package with ``register(app)``, imported when it is asked for: all of
them together, plots and reports included, take four times as long to import as ``run``.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
from collections.abc import Iterable, Sequence
from typing import Annotated, NoReturn

import typer

from byteprophet.errors import JobFailed, UserError

COMMANDS = (
    "run",
    "bench",
    "profile",
    "timeline",
    "replay",
    "report",
    "network",
    "control",
    "workload",
    "doctor",
)
_INTERRUPTED = 130


def version() -> str:
    """The installed package's version."""
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

    for command in commands:
        importlib.import_module(f"byteprophet.cli.{command}").register(app)
    return app


def run_cli(arguments: Sequence[str]) -> int:
    """Runs the command line ``arguments``; its exit status. No traceback for what a user did."""
    # Anything but a command's name is help or an error, which may speak of them all.
    commands = arguments[:1] if arguments and arguments[0] in COMMANDS else COMMANDS
    try:
        # Not standalone: it would print usage errors in a box of its own, and exit by itself.
        status = make_app(commands)(list(arguments), prog_name="byteprophet", standalone_mode=False)
    except typer.TyperException as error:  # wrong options and arguments
        return _complain(f"{error.format_message().rstrip('.')}; see --help", 2)
    except UserError as error:
        return _complain(str(error), 2)
    except JobFailed as error:
        return _complain(str(error), 1)
    except OSError as error:
        if error.filename is None:  # no file that somebody named
            raise
        return _complain(f"{error.filename}: cannot be read or written: {error.strerror}", 2)
    except (KeyboardInterrupt, typer.Abort):
        return _complain("interrupted", _INTERRUPTED)
    except SystemExit as ended:  # by the launcher, after a signal
        status = ended.code if isinstance(ended.code, int) else 1
        return _complain(f"ended by signal {status - 128}", status) if status > 128 else status
    if status == _INTERRUPTED:  # typer has caught the KeyboardInterrupt
        return _complain("interrupted", _INTERRUPTED)
    return status if isinstance(status, int) else 0


def _complain(text: str, status: int) -> int:
    line = " ".join(text.split())
    print(f"byteprophet: error: {line}", file=sys.stderr)
    return status


def main() -> NoReturn:
    """The entry point of the installed command."""
    sys.exit(run_cli(sys.argv[1:]))
