"""``byteprophet timeline``: what was recorded, here or elsewhere, and what to look at it with."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from byteprophet.cli.runs import RUN_HELP, run_or_file
from byteprophet.cli.targets import check_chakra_targets, check_targets
from byteprophet.errors import UserError
from byteprophet.report.clocks import clocks_table
from byteprophet.report.console import table_console
from byteprophet.report.timeline import timeline_table
from byteprophet.timeline.aligned import align_events
from byteprophet.timeline.aligned_summary import clocks_json, warn_of_clocks
from byteprophet.timeline.events import Events
from byteprophet.timeline.export_chakra import write_chakra
from byteprophet.timeline.perfetto import write_perfetto
from byteprophet.timeline.sources import load_sources
from byteprophet.timeline.span_list import valid_text
from byteprophet.timeline.summary import summary
from byteprophet.whole_files import check_no_link

SCHEMA = 1

_FORMATS = {"perfetto": "timeline.json.gz", "chakra": "timeline"}
"""And what is written into a run directory by default."""

_HELP = """Show what was recorded, or write it for Perfetto or Chakra.

Reads run directories of jobs with --record, single files of these, and traces of other tools:
BytePS' comm.json, torch.profiler, MLCommons Chakra. Without --format, lists what they contain.
--format perfetto writes a file for https://ui.perfetto.dev, gzipped if its name ends in .gz.
--format chakra writes OUT.<rank>.et for each worker. If a foreign file does not name its worker's
rank, its position among the files of its kind is used.

Events of several machines are put on one clock, based on causes and effects in different machines.
The differences between the clocks are shown.

Example: byteprophet timeline runs/20261121T224844Z-prophet --format perfetto

Example: byteprophet timeline rank0.json rank1.json --format chakra --out ddp
"""


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("timeline", help=_HELP)(timeline)


def timeline(
    sources: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN|FILE...", help=f"{RUN_HELP} Or files to read.", show_default=False
        ),
    ],
    to: Annotated[
        str | None, typer.Option("--format", help="Format to write: perfetto or chakra.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Output file; default for a single run: in its directory."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="List contents and written files as JSON.")
    ] = False,
) -> int:
    """See _HELP."""
    if to is not None and to not in _FORMATS:
        raise UserError(f"--format {to}: must be {' or '.join(_FORMATS)}")
    if to is None and out is not None:
        raise UserError("--out: needs --format")
    sources = [run_or_file(source) for source in sources]
    target = None if to is None else out or _default_target(sources, to)
    if target is not None and to == "chakra":
        check_chakra_targets(target, sources)
    elif target is not None:
        check_targets({"--out": target}, sources)
    events = load_sources(sources)
    aligned = align_events(events)
    report: dict[str, Any] = {
        "schema": SCHEMA,
        "sources": [summary(table) for table in events],
        "clocks": clocks_json(aligned),
    }
    if to is not None and target is not None:
        report |= _write(to, target, aligned.events)
    warn_of_clocks(aligned)
    if as_json:
        typer.echo(json.dumps(report, indent=1))
    elif to is None:
        console = table_console()
        console.print(timeline_table(report["sources"]))
        if len(aligned.machines) > 1:
            console.print(clocks_table(report["clocks"]))
    else:
        typer.echo(valid_text(f"written: {', '.join(report['written'])}"))
    return 0


def _default_target(sources: Sequence[Path], to: str) -> Path:
    if len(sources) != 1 or not sources[0].is_dir():
        raise UserError("--out: is needed, because only a single run has a default for it")
    target = sources[0] / _FORMATS[to]
    for path in (target, *target.parent.glob(f"{target.name}.*.et")):
        check_no_link(path)
    return target


def _write(to: str, target: Path, events: Sequence[Events]) -> dict[str, Any]:
    if to == "chakra":
        return {"written": [str(path) for path in write_chakra(target, events)]}
    done = write_perfetto(target, events)
    return {"written": [str(done.path)], "slices": done.slices, "arrows": done.arrows}
