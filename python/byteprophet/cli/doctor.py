"""``byteprophet doctor``: what is installed, what is missing, what to do about it."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated

import typer

from byteprophet.cli.checkup import Finding, check_up

SCHEMA = 1

_HELP = """Show what is installed, what is missing, and what to do about it.

Ends with status 0 if jobs can be run here, 1 if something that they need is missing.

Example: byteprophet doctor
"""


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("doctor", help=_HELP)(doctor)


def doctor(
    as_json: Annotated[
        bool, typer.Option("--json", help="Findings as JSON on standard output.")
    ] = False,
) -> int:
    """See _HELP."""
    findings = check_up()
    able = all(finding.ok for finding in findings if finding.required)
    if as_json:
        report = {
            "schema": SCHEMA,
            "able": able,
            "findings": [dataclasses.asdict(finding) for finding in findings],
        }
        print(json.dumps(report, indent=2))
    else:
        for finding in findings:
            print(_line(finding))
        print("able to run jobs" if able else "not able to run jobs: see what is marked MISSING")
    return 0 if able else 1


def _line(finding: Finding) -> str:
    mark = "ok" if finding.ok else "MISSING" if finding.required else "without"
    todo = f"\n{'':9}-> {finding.todo}" if finding.todo else ""
    return f"{mark:8} {finding.name}: {finding.found}{todo}"
