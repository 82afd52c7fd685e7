"""``byteprophet report``: what made a recorded run's iterations as long as they are."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from byteprophet.cli.collecting import no_collecting
from byteprophet.cli.runs import RUN_HELP, run_meant
from byteprophet.cli.targets import check_targets
from byteprophet.diagnose import compare, diagnose
from byteprophet.diagnose.plain import as_json
from byteprophet.errors import NotWritten
from byteprophet.measure.run import Run
from byteprophet.report.console import table_console
from byteprophet.report.diagnosis import diagnosis_tables
from byteprophet.report.page import write_page
from byteprophet.whole_files import check_no_link

NAME = "report.html"

_HELP = """Show where the time of a recorded run went, and write a page about it.

The run must have been recorded (--record). Prints the parts of iterations, their critical path and
the workers that came last. Writes RUN/report.html, a single file that needs no network, with a
timeline, waits per gradient, bandwidth and a replay's prediction. --against compares two runs.

Example: byteprophet report runs

Example: byteprophet report runs/20261121T224844Z-prophet

Example: byteprophet report runs/20261121T224844Z-prophet --against runs/20261121T224911Z-fifo
"""


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("report", help=_HELP)(report)


def report(
    run: Annotated[Path, typer.Argument(help=RUN_HELP)],
    against: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Another run to compare with.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help=f"The page to write; default: {NAME} in the run.")
    ] = None,
    as_data: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> int:
    """See _HELP."""
    with no_collecting():
        directory, other = run_meant(run), None if against is None else run_meant(against)
        return _report(directory, other, out, as_data)


def _report(run: Path, against: Path | None, out: Path | None, as_data: bool) -> int:
    target = out or run / NAME
    with _advising(out):
        check_targets({"--out": target}, [run, *([] if against is None else [against])])
        if out is None:
            check_no_link(target)
    found = diagnose(Run(run))
    other = None if against is None else diagnose(Run(against))
    comparison = None if other is None else compare(found, other)
    data = as_json(found, comparison, other.directory.resolve().name if other else "")
    if as_data:
        typer.echo(json.dumps(data, indent=1))
    else:
        console = table_console(140)
        console.print(diagnosis_tables(data))
    with _advising(out):
        write_page(target, found, data)
    typer.echo(f"page: {target}", err=True)
    return 0


@contextmanager
def _advising(out: Path | None) -> Iterator[None]:
    """Whoever cannot write a page, and has not said where it goes, is told of ``--out``."""
    try:
        yield
    except NotWritten as error:
        raise NotWritten(f"{error}{'' if out else ': --out puts the page elsewhere'}") from None
