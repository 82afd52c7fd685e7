"""``byteprophet doctor``: what is installed, what is missing, what to do about it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import typer

from byteprophet.cli.checkup import Finding, check_up

SCHEMA = 1

_HELP = """Show what is installed, what is missing, and what to do about it.

Ends with status 0 if jobs can be run here, 1 if something that they need is missing.

With --resources FILE, it only writes what this host has into FILE, which may already describe other
hosts: the link of its default route, cores and accelerators (docs/formats.md).

Example: byteprophet doctor

Example: byteprophet doctor --resources cluster.toml
"""


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("doctor", help=_HELP)(doctor)


def doctor(
    as_json: Annotated[
        bool, typer.Option("--json", help="Findings as JSON on standard output.")
    ] = False,
    resources: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write this host's resources to FILE.")
    ] = None,
) -> int:
    """See _HELP."""
    if resources is not None:
        return _write_resources(resources)
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


def _write_resources(path: Path) -> int:
    # Imported here, because the command must work where something is missing.
    from byteprophet.strategy.resources import (
        read_resources,
        this_host,
        with_host,
        write_resources,
    )

    known = read_resources(path) if path.exists() else None
    host = this_host()
    write_resources(path, with_host(known, host))
    print(f"saved: {path}: {host.name}")
    return 0


def _line(finding: Finding) -> str:
    mark = "ok" if finding.ok else "MISSING" if finding.required else "without"
    todo = f"\n{'':9}-> {finding.todo}" if finding.todo else ""
    return f"{mark:8} {finding.name}: {finding.found}{todo}"
