"""``byteprophet role``: one role of a job on this host, told everything by a job file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from byteprophet.cli.output import echo_to, tell
from byteprophet.errors import UserError
from byteprophet.launcher.job_file import read_job_file
from byteprophet.launcher.one_role import KINDS, run_role

_HELP = f"""Run one role of a job that spans several hosts.

Every host has the same job file (docs/formats.md), which names the address of the scheduler role,
or of rank 0 in a job without servers. Roles may start in any order. A worker starts all of its
local ranks. Kinds: {", ".join(KINDS)} (ranks are the workers of a job without servers).

Example: byteprophet role scheduler --job job.toml

Example: byteprophet role server --job job.toml --index 0

Example: byteprophet role worker --job job.toml --index 1 --interface eth1
"""


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("role", help=_HELP)(role)


def role(
    kind: Annotated[str, typer.Argument(help="What this host runs.")],
    job: Annotated[Path, typer.Option(metavar="FILE", help="The job file.")],
    index: Annotated[int, typer.Option(help="Which one of its kind, from 0.")] = 0,
    interface: Annotated[
        str | None,
        typer.Option(help="Its network interface; default: the one that leads to the root."),
    ] = None,
) -> int:
    """See _HELP."""
    if kind not in KINDS:
        raise UserError(f"role {kind!r}: choose of {', '.join(KINDS)}")
    described = read_job_file(job)
    logs = described.spec.run_directory / "logs"
    result = run_role(described, kind, index, interface, echo_to(logs))
    result.check()
    tell(f"done after {result.wall_s:.1f} s")
    return 0
