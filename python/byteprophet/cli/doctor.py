"""``byteprophet doctor``: what is installed, what is missing, what to do about it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import typer

from byteprophet.cli.checkup import check_up
from byteprophet.cli.given import refuse_given
from byteprophet.remote.preflight.findings import Finding

SCHEMA = 1

_HELP = """Show what is installed, what is missing, and what to do about it.

Ends with status 0 if jobs can be run here, 1 if something that they need is missing.

With --on, look at the hosts of a job instead, from each of them: versions, files, limits, shared
memory, the ports of all others, clocks, and the bandwidth between every two. Ends with status 2 if
a job could not run there (docs/clusters.md).

With --resources FILE, it only writes what this host has into FILE, which may already describe other
hosts: the link of its default route, cores and accelerators (docs/formats.md).

Example: byteprophet doctor

Example: byteprophet doctor --on ssh --hosts hosts.toml

Example: byteprophet doctor --resources cluster.toml
"""
_UNABLE = 2


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("doctor", help=_HELP)(doctor)


def doctor(
    context: typer.Context,
    on: Annotated[
        str | None,
        typer.Option(metavar="LAUNCHER", help="Look at hosts: local, ssh, slurm or mpi."),
    ] = None,
    hosts: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="With --on ssh, a hosts file; with mpi, mpirun's."),
    ] = None,
    interface: Annotated[
        str | None, typer.Option(help="With --on: the network interface of all roles.")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=1, max=65535, help="With --on: the root's port, as run has it; default: any."
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Findings as JSON on standard output.")
    ] = False,
    resources: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write this host's resources to FILE.")
    ] = None,
) -> int:
    """See _HELP."""
    if on is not None:
        refuse_given(context, ("resources",), "is about this host: leave out --on")
        return _preflight(on, hosts, interface, port, as_json)
    refuse_given(context, ("hosts", "interface", "port"), "needs --on")
    if resources is not None:
        refuse_given(context, ("as_json",), "prints findings, and --resources looks for none")
        return _write_resources(resources)
    findings = check_up()
    able = all(finding.ok for finding in findings if finding.required)
    if as_json:
        print(json.dumps(_as_json(able, findings), indent=2))
    else:
        for finding in findings:
            print(_line(finding, "MISSING", "without"))
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


def _preflight(
    on: str, hosts: Path | None, interface: str | None, port: int | None, as_json: bool
) -> int:
    from byteprophet.remote.preflight.check import open_visitor, preflight

    report = preflight(open_visitor(on, hosts, interface), port)
    if as_json:
        pairs = [
            {
                **dataclasses.asdict(pair),
                "source": report.names[pair.source],
                "target": report.names[pair.target],
            }
            for pair in report.pairs
        ]
        found = {**_as_json(report.able, report.findings), "hosts": report.names, "pairs": pairs}
        print(json.dumps(found, indent=2))
    else:
        for finding in report.findings:
            print(_line(finding, "FAILED", "warning"))
        print("a job can run there" if report.able else "no job can run there: see FAILED")
    return 0 if report.able else _UNABLE


def _as_json(able: bool, findings: list[Finding]) -> dict[str, object]:
    return {
        "schema": SCHEMA,
        "able": able,
        "findings": [dataclasses.asdict(finding) for finding in findings],
    }


def _line(finding: Finding, needed: str, wanted: str) -> str:
    mark = "ok" if finding.ok else needed if finding.required else wanted
    todo = f"\n{'':9}-> {finding.todo}" if finding.todo else ""
    return f"{mark:8} {finding.name}: {finding.found}{todo}"
