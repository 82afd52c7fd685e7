"""``byteprophet control``: a job's controller. ``byteprophet plan``: what one did."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from byteprophet.cli.runs import RUN_HELP, run_meant
from byteprophet.errors import UserError

_CONTROL_HELP = """Run the controller of one job; it gathers profiles and hands out plans.

byteprophet run starts one by itself. On a cluster, start it where all workers can reach it, and set
for them: BYTEPROPHET_CONTROLLER=tcp://ADDRESS:PORT, BYTEPROPHET_CONTROLLER_KEYS=DIRECTORY. The
controller makes the keys if the directory does not exist. Copy worker.key_secret and controller.key
to each worker's host. It serves until it is interrupted; the job does not depend on it.

Example: byteprophet control --listen tcp://10.0.0.1:7000 --keys keys --job 10.0.0.1:9000
"""

_PLAN_HELP = """Show the plans of a run: what each one predicted, and what was measured then.

Example: byteprophet plan runs/20260101T120000Z-prophet
"""


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command("control", help=_CONTROL_HELP)(control)
    app.command("plan", help=_PLAN_HELP)(plan)


def control(
    listen: Annotated[
        str,
        typer.Option(
            envvar="BYTEPROPHET_CONTROLLER", help="Address to listen on: tcp://ADDRESS:PORT."
        ),
    ],
    keys: Annotated[
        Path,
        typer.Option(envvar="BYTEPROPHET_CONTROLLER_KEYS", help="Directory of the CURVE keys."),
    ],
    job: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="The job's scheduler role; default: DMLC_PS_ROOT_URI and _PORT.",
        ),
    ] = None,
    run: Annotated[
        Path,
        typer.Option(envvar="BYTEPROPHET_RUN", help="Run directory for control.jsonl, plan.json."),
    ] = Path(),
) -> int:
    """See _CONTROL_HELP."""
    from byteprophet.control.keys import make_keys, read_keys
    from byteprophet.control.server import run_controller

    if job is None:
        host, port = os.environ.get("DMLC_PS_ROOT_URI"), os.environ.get("DMLC_PS_ROOT_PORT")
        if not host or not port:
            raise UserError("--job: give the scheduler role's HOST:PORT, or set DMLC_PS_ROOT_URI")
        job = f"{host}:{port}"
    if not keys.exists():
        make_keys(keys)
    run_controller(listen, read_keys(keys, "controller"), job, run)
    return 0


def plan(
    run: Annotated[Path, typer.Argument(metavar="RUN", help=RUN_HELP)],
    as_json: Annotated[
        bool, typer.Option("--json", help="The events as JSON on standard output.")
    ] = False,
) -> int:
    """See _PLAN_HELP."""
    from byteprophet.control.log import NAME, read_events
    from byteprophet.report.console import table_console
    from byteprophet.report.plans import plans_table

    run = run_meant(run)
    events = read_events(run / NAME)
    if as_json:
        print(json.dumps({"schema": 1, "run": str(run), "events": events}, indent=2))
    else:
        console = table_console()
        console.print(plans_table(events))
    return 0
