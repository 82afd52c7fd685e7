"""``byteprophet run``: one job on this machine, under a scheduler, with or without a limit."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from byteprophet import schedulers
from byteprophet.errors import JobFailed, UserError
from byteprophet.launcher import (
    JobResult,
    JobSpec,
    check_job,
    make_run_directory,
    read_worker_results,
    run_job,
)
from byteprophet.launcher.spec import WEEK_S
from byteprophet.launcher.stepper import read_steps
from byteprophet.network import monitoring, parse_rate, parse_step
from byteprophet.observe import recording
from byteprophet.observe.windows import Windows
from byteprophet.profile import read_profile, saving

SCHEMA = 1

_HELP = f"""Run a command as the workers of a BytePS job, or of an all-reduce job, on this machine.

Starts the scheduler, the servers and the workers, shows what they print, and ends them together.
With a bandwidth, each gets a host of its own out of network namespaces, and the workers' links are
limited in both directions. Schedulers: {", ".join(schedulers.names)} (stock is BytePS as shipped).
With --servers 0 there is no BytePS: workers find each other as torchrun would have it.

Example: byteprophet run --scheduler prophet --bandwidth 1gbit -- python train.py --epochs 2

Example: byteprophet run --servers 0 --workers 3 --bandwidth 1gbit -- python train_ddp.py
"""


def parse_settings(items: list[str]) -> dict[str, int]:
    """``["window_max_bytes=2097152"]`` as a mapping; UserError for what is not name=integer."""
    settings: dict[str, int] = {}
    for item in items:
        name, _, value = item.partition("=")
        try:
            settings[name.strip()] = int(value)
        except ValueError:
            raise UserError(
                f"--set {item!r}: use name=integer, e.g. --set window_max_bytes=2097152"
            ) from None
    return settings


def parse_worker_rates(items: list[str]) -> dict[int, int]:
    """``["1=100mbit"]`` as bits per second by worker; UserError for what is not index=rate."""
    rates_bps: dict[int, int] = {}
    for item in items:
        index, _, rate = item.partition("=")
        name = f"--worker-bandwidth {item!r}"
        if not index.strip().isdecimal() or not rate:
            raise UserError(f"{name}: use worker=rate, e.g. --worker-bandwidth 1=100mbit")
        rate_bps = parse_rate(rate, f"{name}:")
        if rate_bps is None:
            raise UserError(f"{name}: a worker of its own rate needs one, e.g. 100mbit")
        if rates_bps.setdefault(int(index), rate_bps) != rate_bps:
            raise UserError(f"{name}: worker {int(index)} has another rate already; give one")
    return rates_bps


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(
        "run",
        help=_HELP,
        # What follows the first word of COMMAND is the command's, also where it looks like ours.
        context_settings={"allow_interspersed_args": False},
    )(run)


def run(
    command: Annotated[list[str], typer.Argument(metavar="COMMAND", help="What each worker runs.")],
    scheduler: Annotated[str, typer.Option(help="Scheduling policy.")] = schedulers.DEFAULT,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A setting of the scheduler; repeatable."),
    ] = None,
    workers: Annotated[int, typer.Option(help="Number of workers.")] = 2,
    local_ranks: Annotated[
        int, typer.Option(help="Processes per worker that share its link, one per GPU.")
    ] = 1,
    servers: Annotated[
        int, typer.Option(help="Number of servers; 0: all-reduce by torch.distributed.")
    ] = 1,
    bandwidth: Annotated[
        str | None,
        typer.Option(help="Rate of each worker's link, e.g. 500mbit, 1gbit, unlimited."),
    ] = None,
    worker_bandwidth: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WORKER=RATE",
            help="Rate of one worker's link instead, e.g. 1=100mbit; workers count from 0;"
            " repeatable.",
        ),
    ] = None,
    step: Annotated[
        list[str] | None,
        typer.Option(
            metavar="RATE@SECONDS",
            help="A new rate of the workers' links so long after the start, e.g. 3gbit@20s;"
            " repeatable.",
        ),
    ] = None,
    monitor: Annotated[
        bool, typer.Option("--monitor", help="Watch the network: see byteprophet network.")
    ] = False,
    probe: Annotated[
        bool, typer.Option("--probe", help="Measure the network before the job; with --monitor.")
    ] = False,
    partition_bytes: Annotated[
        int | None, typer.Option(help="BytePS' partition size; default: the scheduler's.")
    ] = None,
    port: Annotated[int | None, typer.Option(help="The scheduler role's port; default: any.")] = (
        None
    ),
    interface: Annotated[
        str | None, typer.Option(help="Network interface of the roles; default: loopback.")
    ] = None,
    timeout: Annotated[
        float, typer.Option(show_default="a week", help="Seconds after which the job has failed.")
    ] = WEEK_S,
    controller: Annotated[
        bool | None,
        typer.Option(
            "--controller/--no-controller",
            help="A process that gathers profiles and plans; default: if the scheduler uses plans.",
        ),
    ] = None,
    runs: Annotated[Path, typer.Option(help="Where run directories are made.")] = Path("runs"),
    record: Annotated[
        bool,
        typer.Option("--record", help="Save transfers and spans in the run directory's events/."),
    ] = False,
    record_steps: Annotated[
        str | None,
        typer.Option(
            metavar="FIRST:STOP",
            help="Record these iterations only, e.g. 10:20 (20 is left out); with --record.",
        ),
    ] = None,
    profile: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Start from the profile.json of an earlier run."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Result as JSON on standard output, all else on error.")
    ] = False,
) -> int:
    """See _HELP, which names the schedulers there are."""
    worker_bandwidth_bps = parse_worker_rates(worker_bandwidth or [])
    steps = tuple(parse_step(text) for text in step or [])
    if any(step.at_update is not None for step in steps):
        raise UserError("--step: only a bench knows when an update begins; use e.g. 3gbit@20s")
    _check_all_reduce(servers, monitor or probe, profile)
    environment = _watching(scheduler, monitor or probe, probe)
    environment |= _recording(record, record_steps)
    if profile is not None:
        if scheduler == schedulers.STOCK:
            raise UserError("--profile: nothing is scheduled under stock; use e.g. prophet")
        read_profile(profile)
        environment[saving.PROFILE] = str(profile.absolute())
    spec = JobSpec(
        command=tuple(command),
        environment=environment,
        run_directory=runs,
        workers=workers,
        local_ranks=local_ranks,
        servers=servers,
        scheduler=scheduler,
        settings=parse_settings(settings or []),
        partition_bytes=partition_bytes,
        bandwidth_bps=None if bandwidth is None else parse_rate(bandwidth, "--bandwidth"),
        worker_bandwidth_bps=worker_bandwidth_bps,
        steps=steps,
        # "unlimited" too: hosts of their own, as for a limit, with which it is to be compared.
        namespaces=bandwidth is not None or bool(worker_bandwidth_bps or steps),
        timeout_s=timeout,
        port=port,
        interface=interface,
        controller=scheduler in schedulers.PLANNED and servers > 0
        if controller is None
        else controller,
    )
    # Wrong input must not leave an empty run directory behind.
    check_job(spec)
    label = "allreduce" if spec.all_reduce else scheduler
    spec = dataclasses.replace(spec, run_directory=make_run_directory(runs, label))
    print(f"byteprophet: run {spec.run_directory}", file=sys.stderr)
    output = sys.stderr if as_json else sys.stdout

    def echo(role: str, line: str) -> None:
        try:
            print(f"[{role}] {line}", file=output, flush=True)
        except BrokenPipeError:
            # What is buffered must not fail once more at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), output.fileno())
            raise JobFailed("stopped, as nobody reads the output any more") from None

    result = run_job(spec, echo)
    late = [row for row in read_steps(spec.run_directory) if row["done_ns"] is None]
    if late:
        print(f"byteprophet: warning: the job ended before {len(late)} step(s)", file=sys.stderr)
    if as_json:
        print(json.dumps(_report(spec, result), indent=2), flush=True)
    if result.failed is not None:
        raise JobFailed(result.failed)
    print(f"byteprophet: done after {result.wall_s:.1f} s", file=sys.stderr)
    return 0


def _check_all_reduce(servers: int, monitor: bool, profile: Path | None) -> None:
    """UserError for options that nobody would follow; the launcher knows the others."""
    if servers == 0 and monitor:
        raise UserError("--monitor, --probe: with --servers 0 there is no BytePS to be watched")
    if servers == 0 and profile is not None:
        raise UserError("--profile: with --servers 0 there is no BytePS to start from it")


def _watching(scheduler: str, monitor: bool, probe: bool) -> dict[str, str]:
    """The variables that ask for the network monitor and the probe."""
    if monitor and scheduler == schedulers.STOCK:
        raise UserError("--monitor, --probe: nothing is recorded under stock; use e.g. fifo")
    wanted = {monitoring.VARIABLE: monitor, monitoring.PROBE_VARIABLE: probe}
    return {name: "1" for name, on in wanted.items() if on}


def _recording(record: bool, steps: str | None) -> dict[str, str]:
    """The variables that ask for events."""
    if steps is None:
        return {recording.VARIABLE: "1"} if record else {}
    if not record:
        raise UserError("--record-steps: says which iterations --record records; give both")
    Windows.parse(steps, "--record-steps")
    return {recording.VARIABLE: "1", recording.STEPS: steps}


def _report(spec: JobSpec, result: JobResult) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "run": str(spec.run_directory),
        "status": "done" if result.failed is None else "failed",
        "failed": result.failed,
        "wall_s": result.wall_s,
        "roles": [dataclasses.asdict(role) for role in result.roles],
        "results": read_worker_results(spec.run_directory),
    }
