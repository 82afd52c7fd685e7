"""``byteprophet role``: one role of a job on this host, told everything by a job file."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from byteprophet.cli.given import refuse_given
from byteprophet.cli.output import echo_to
from byteprophet.control.keys import keep_key_texts
from byteprophet.errors import JobFailed, UserError, tell
from byteprophet.launcher.causes import without_log
from byteprophet.launcher.environment import MESH_KEY
from byteprophet.launcher.job_file import JobFile, parse_job, read_job_file
from byteprophet.launcher.one_role import KINDS, run_role
from byteprophet.launcher.signals import outlive_script_signals
from byteprophet.launcher.tether import Tether, Told, read_told
from byteprophet.remote.by_rank import BY_RANK, role_of_rank
from byteprophet.silence import dead_after_s
from byteprophet.starter import die_with_starter

_LAUNCHER = "-"
_STANDARD_INPUT = 0
# The roles' heartbeats have a verdict first, if a host is cut off.
_LATER_S = 6.0

_HELP = f"""Run one role of a job that spans several hosts.

Every host has the same job file (docs/formats.md), which names the address of the scheduler role,
or of rank 0 in a job without servers. Roles may start in any order. A worker starts all of its
local ranks. Kinds: {", ".join(KINDS)} (ranks are the workers of a job without servers), and
{BY_RANK}: what mpirun's or srun's number of this process says, first the scheduler, then servers,
then workers.

Example: byteprophet role scheduler --job job.toml

Example: byteprophet role server --job job.toml --index 0

Example: byteprophet role worker --job job.toml --index 1 --interface eth1

Example: mpirun -np 4 byteprophet role {BY_RANK} --job job.toml
"""


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("role", help=_HELP)(role)


def role(
    context: typer.Context,
    kind: Annotated[str, typer.Argument(help="What this host runs.")],
    job: Annotated[
        Path,
        typer.Option(
            metavar="FILE",
            help="The job file; -: a launcher on another host sends it, and the role ends with it.",
        ),
    ],
    index: Annotated[int, typer.Option(help="Which one of its kind, from 0.")] = 0,
    interface: Annotated[
        str | None,
        typer.Option(help="Its network interface; default: the one that leads to the root."),
    ] = None,
) -> int:
    """See _HELP."""
    outlive_script_signals()
    if kind not in (*KINDS, BY_RANK):
        raise UserError(f"role {kind!r}: choose of {', '.join((*KINDS, BY_RANK))}")
    if str(job) == _LAUNCHER:
        told = read_told(_STANDARD_INPUT)
        described = parse_job(told.job, "job")
        with _tethered(described, told) as described:
            return _run(described, kind, index, interface, is_shown_plainly=True)
    described = replace(read_job_file(job), mesh_key=_own_mesh_key())
    if kind == BY_RANK:
        refuse_given(context, ("index",), f"is what the number of a process says with {BY_RANK}")
        die_with_starter()  # mpirun that is killed ends nobody who has not joined MPI
        kind, index, described = role_of_rank(described)
    return _run(described, kind, index, interface, is_shown_plainly=False)


def _run(job: JobFile, kind: str, index: int, interface: str | None, is_shown_plainly: bool) -> int:
    """Runs the role. A launcher elsewhere names a role itself when it shows the role's lines."""
    echo = echo_to(job.spec.run_directory / "logs")
    if is_shown_plainly and (kind != "worker" or job.spec.local_ranks == 1):
        echo = echo_to(job.spec.run_directory / "logs", names=False)
    result = run_role(job, kind, index, interface, echo)
    if is_shown_plainly and result.failed is not None:  # the launcher moves or fetches the log
        raise JobFailed(without_log(result.failed))
    result.check()
    if not is_shown_plainly:
        tell(f"done after {result.wall_s:.1f} s")
    return 0


def _own_mesh_key() -> str:
    """The secret that the user has exported on all hosts of the job; "": there is none."""
    return os.environ.get(MESH_KEY, "")


@contextmanager
def _tethered(job: JobFile, told: Told) -> Iterator[JobFile]:
    """The job with its keys in place, while the launcher is watched.

    Raises ``JobFailed`` if the launcher is gone. A run directory that only the launcher would fetch
    is then removed.
    """
    run_directory = job.spec.run_directory.absolute()
    if told.is_scratch:
        _make_private(run_directory)
    job = replace(job, mesh_key=told.mesh_key or _own_mesh_key())
    keys = run_directory / "keys"
    if told.keys:
        keep_key_texts(keys, told.keys)
        job = replace(job, controller_keys=str(keys))
    silent_s = dead_after_s(job.spec.environment)
    tether = Tether(_STANDARD_INPUT, None if silent_s is None else silent_s + _LATER_S)
    try:
        with tether:
            yield job
    except SystemExit:
        if tether.lost is None:
            raise
        raise JobFailed(tether.lost) from None
    finally:
        if told.keys:
            shutil.rmtree(keys, ignore_errors=True)
        if told.is_scratch and tether.lost is not None:
            shutil.rmtree(run_directory, ignore_errors=True)


def _make_private(directory: Path) -> None:
    """Makes ``directory``, which only this user can read; ``UserError`` if that is impossible."""
    try:
        directory.mkdir(mode=0o700)
    except OSError as error:
        raise UserError(f"run directory {directory} cannot be made: {error.strerror}") from None
