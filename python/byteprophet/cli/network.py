"""``byteprophet network``: what the network monitor found in a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from byteprophet.cli.runs import RUN_HELP, run_meant
from byteprophet.monitor.samples import WorkerNetwork, read_network
from byteprophet.report.console import table_console
from byteprophet.report.network import network_table

SCHEMA = 1

_HELP = """Show the network monitor's findings in a run.

They are the available bandwidth, its spread, the cost of a message beyond its bytes, and the delay
of the path, per worker, server and direction. The job must have been monitored: it ran with
--monitor, or with a controller.

Example: byteprophet network runs/20261120T165058Z-prophet
"""


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("network", help=_HELP)(network)


def network(
    run: Annotated[Path, typer.Argument(help=RUN_HELP)],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print as JSON, with the history.")
    ] = False,
) -> int:
    """See _HELP."""
    found = read_network(run_meant(run))
    if as_json:
        report = {"schema": SCHEMA, "workers": [worker.to_json() for worker in found]}
        print(json.dumps(report, indent=1))
        return 0
    console = table_console()
    console.print(network_table(found))
    for worker in found:
        console.print(f"worker rank {worker.rank}: {_said(worker)}")
    return 0


def _said(worker: WorkerNetwork) -> str:
    if worker.check["disagrees"] is None:
        return f"not checked against an interface: {worker.check['note']}"
    interface = worker.check["interface"]
    if worker.check["disagrees"]:
        return f"{interface} disagrees: {worker.check['note']}"
    return f"{interface} counted what transfers explain"
