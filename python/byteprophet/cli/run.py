"""``byteprophet run``: one job under a scheduler, on this machine or on other hosts.

What only some options need is imported when they are given: it would take longer than the rest.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from byteprophet import schedulers
from byteprophet.cli.given import is_given, refuse_given, spelled
from byteprophet.cli.output import echo_to
from byteprophet.cli.owners import OWNERS_HELP, parse_owners
from byteprophet.errors import JobFailed, UserError, tell, warn
from byteprophet.input_files import whole_number
from byteprophet.job.owners import text_of
from byteprophet.job.strategy import ALL_REDUCE, AUTO, BYTEPS, SYNCS
from byteprophet.job.strategy_file import Used, read_strategy_file, strategy_path
from byteprophet.launcher import (
    JobResult,
    JobSpec,
    check_job,
    make_run_directory,
    read_worker_results,
    run_job,
)
from byteprophet.launcher.checks import check_counts
from byteprophet.launcher.environment import SAID_OTHERWISE
from byteprophet.launcher.given_strategy import SERVERS, servers_under, with_strategy
from byteprophet.launcher.restarts import Start, run_with_restarts
from byteprophet.launcher.signals import outlive_script_signals
from byteprophet.launcher.spec import GRACE_S, WEEK_S, Limits
from byteprophet.launcher.stepper import read_steps
from byteprophet.network import parse_rate, parse_step
from byteprophet.remote.launchers import (
    KUBERNETES,
    LAUNCHERS,
    LOCAL,
    NAMESPACES,
    WITHOUT_CONTROLLER,
    Options,
    open_launcher,
)
from byteprophet.runtime_settings import OWNERS, SYNC

SCHEMA = 1

_HELP = f"""Run a command as the workers of a BytePS job, or of an all-reduce job.

Starts the scheduler, the servers and the workers, shows what they print, and ends them together.
With --on namespaces or a bandwidth, each role gets its own emulated host (a network namespace), and
the bandwidth limits the workers' links in both directions. With --servers 0 there is no BytePS:
workers get the variables of torchrun to find each other. Roles run on this machine, or where --on
says (docs/clusters.md). Their standard input is /dev/null. Schedulers:
{", ".join(schedulers.names)} (stock is BytePS as shipped).

Example: byteprophet run --scheduler prophet --bandwidth 1gbit -- python train.py --epochs 2

Example: byteprophet run --servers 0 --workers 3 --bandwidth 1gbit -- python train_ddp.py

Example: byteprophet run --servers 0 --workers 4 --bandwidth 1gbit --worker-bandwidth 3=500mbit \
--owners auto -- python train.py

Example: byteprophet run --servers 0 --sync dear-planned --bandwidth 1gbit -- python train_ddp.py

Example: byteprophet run --strategy best/strategy.json -- python train.py

Example: byteprophet run --on ssh --hosts hosts.toml -- python train.py

Example: byteprophet run --on kubernetes --image registry.example.com/train:1 -- python train.py

Example: byteprophet run --restarts 3 -- python train.py
"""

_IN_A_STRATEGY = ("scheduler", "settings", "partition_bytes", "owners", "sync")
# How many processes mpirun or srun started. SLURM_NTASKS also is in a batch script, which is one.
_STARTED = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")


def parse_settings(items: list[str]) -> dict[str, int]:
    """``["window_max_bytes=2097152"]`` as a mapping; UserError for what is not name=integer."""
    settings: dict[str, int] = {}
    for item in items:
        name, _, value = (part.strip() for part in item.partition("="))
        if name in settings:
            raise UserError(f"--set {name}: is given twice")
        try:
            settings[name] = int(value)
        except ValueError:
            raise UserError(
                f"--set {item!r}: use name=integer, e.g. --set window_max_bytes=2097152"
            ) from None
    return settings


def parse_rates(items: list[str], role: str = "worker") -> dict[int, int]:
    """``["1=100mbit"]`` as bits per second by index; UserError for what is not index=rate.

    ``role``: what the indices count, as ``--worker-bandwidth`` has it in its name.
    """
    rates_bps: dict[int, int] = {}
    for item in items:
        index, _, rate = item.partition("=")
        name = f"--{role}-bandwidth {item!r}"
        number = whole_number(index.strip())
        if number is None or not rate:
            raise UserError(f"{name}: use {role}=rate, e.g. --{role}-bandwidth 1=100mbit")
        rate_bps = parse_rate(rate, f"{name}:")
        if rate_bps is None:
            raise UserError(f"{name}: needs a rate other than unlimited, e.g. 100mbit")
        if rates_bps.setdefault(number, rate_bps) != rate_bps:
            raise UserError(f"{name}: {role} {number} already has another rate; give one")
    return rates_bps


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(
        "run",
        help=_HELP,
        # All words after the first one of COMMAND belong to it, even if they look like our options.
        context_settings={"allow_interspersed_args": False},
    )(run)


def run(
    context: typer.Context,
    command: Annotated[
        list[str], typer.Argument(metavar="COMMAND", help="Command of each worker.")
    ],
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
        int,
        typer.Option(
            help="Number of servers; 0: all-reduce by torch.distributed. With --strategy, that of"
            " the strategy.",
        ),
    ] = SERVERS,
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
    server_bandwidth: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SERVER=RATE",
            help="Rate of one server's link, e.g. 0=1gbit; servers count from 0; others are not"
            " limited; repeatable.",
        ),
    ] = None,
    step: Annotated[
        list[str] | None,
        typer.Option(
            metavar="RATE@SECONDS",
            help="Change the rate of the workers' links at this time after the start, e.g."
            " 3gbit@20s; repeatable.",
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
        float, typer.Option(show_default="a week", help="Seconds after which the job fails.")
    ] = WEEK_S,
    grace: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            help="How long the script may take after SIGTERM, e.g. for a checkpoint, before it is"
            " killed.",
        ),
    ] = GRACE_S,
    restarts: Annotated[
        int,
        typer.Option(
            help="How often the job starts again after a role has failed (docs/clusters.md)."
        ),
    ] = 0,
    controller: Annotated[
        bool | None,
        typer.Option(
            "--controller/--no-controller",
            help="Start a controller, which makes plans; default: if the scheduler uses plans.",
        ),
    ] = None,
    runs: Annotated[Path, typer.Option(help="Where run directories are made.")] = Path("runs"),
    on: Annotated[
        str, typer.Option(metavar="LAUNCHER", help=f"Where roles run: {', '.join(LAUNCHERS)}.")
    ] = LOCAL,
    hosts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="With --on ssh, a hosts file; with mpi, mpirun's; with kubernetes, a pods file.",
        ),
    ] = None,
    slurm: Annotated[
        str | None,
        typer.Option(
            metavar="OPTIONS", help="With --on slurm outside an allocation: options of salloc."
        ),
    ] = None,
    image: Annotated[
        str | None, typer.Option(help="With --on kubernetes: the image of all pods.")
    ] = None,
    jobset: Annotated[
        bool, typer.Option("--jobset", help="With --on kubernetes: a JobSet, not plain Jobs.")
    ] = False,
    apply: Annotated[
        bool,
        typer.Option(
            "--apply",
            help="With --on kubernetes: start the pods by kubectl, and wait; default: print them.",
        ),
    ] = False,
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
    strategy: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="How gradients are synchronised, as optimize saves it."),
    ] = None,
    sync: Annotated[
        str | None,
        typer.Option(
            metavar="RUNTIME",
            help="Who exchanges the gradients of DistributedDataParallel: "
            f"{', '.join(SYNCS)} (dear-planned or itself, whichever is faster); default: itself.",
        ),
    ] = None,
    owners: Annotated[
        str | None, typer.Option(metavar="WEIGHTS", help=f"{OWNERS_HELP}, the default.")
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="Result as JSON on standard output, the rest on standard error."
        ),
    ] = False,
) -> int:
    """See _HELP, which lists all schedulers."""
    outlive_script_signals()
    _refuse_several(os.environ)
    worker_bandwidth_bps = parse_rates(worker_bandwidth or [])
    server_bandwidth_bps = parse_rates(server_bandwidth or [], "server")
    steps = tuple(parse_step(text) for text in step or [])
    if any(step.at_update is not None for step in steps):
        raise UserError("--step: only bench counts updates; use a time, e.g. 3gbit@20s")
    used = None
    if strategy is not None:
        refuse_given(context, _IN_A_STRATEGY, "is what --strategy says")
        strategy = strategy_path(strategy) if strategy.is_dir() else strategy
        used = read_strategy_file(strategy)
        servers = servers_under(strategy, used, servers if is_given(context, "servers") else None)
        if used.policy is not None:
            scheduler, used = used.policy.name, replace(used, servers=used.servers and servers)
    launcher = open_launcher(Options(on, hosts, slurm, interface, image, jobset, apply))
    if launcher is not None:
        workers, servers = launcher.counts(
            workers if is_given(context, "workers") else None,
            servers if strategy is not None or is_given(context, "servers") else None,
        )
    check_counts(workers, servers)
    if servers > 0 and strategy is None:
        _refuse_unheard(context, os.environ, scheduler)
    if on == KUBERNETES and not apply:
        refuse_given(context, ("as_json",), "is a job's result, and without --apply there is none")
    _check_all_reduce(servers, monitor or probe, profile)
    _check_sync(sync, servers, record)
    environment = _watching(scheduler, monitor or probe, probe)
    environment |= _recording(record, record_steps)
    if profile is not None:
        if scheduler == schedulers.STOCK:
            raise UserError("--profile: stock schedules nothing; use e.g. --scheduler prophet")
        from byteprophet.profile import read_profile
        from byteprophet.session.profiling import PROFILE

        read_profile(profile)
        environment[PROFILE] = str(profile.absolute())
    bandwidth_bps = None if bandwidth is None else parse_rate(bandwidth, "--bandwidth")
    if sync is not None:
        environment[SYNC] = sync
    if owners is not None:
        if servers > 0:
            raise UserError("--owners: with servers, ranks own nothing; use --servers 0")
        rates_bps = [worker_bandwidth_bps.get(index, bandwidth_bps) for index in range(workers)]
        environment[OWNERS] = text_of(parse_owners(owners, rates_bps, local_ranks).weights)
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
        bandwidth_bps=bandwidth_bps,
        worker_bandwidth_bps=worker_bandwidth_bps,
        server_bandwidth_bps=server_bandwidth_bps,
        steps=steps,
        # "unlimited" too: hosts of their own, as for a limit, with which it is to be compared.
        namespaces=on == NAMESPACES
        or bandwidth is not None
        or bool(worker_bandwidth_bps or server_bandwidth_bps or steps),
        timeout_s=timeout,
        limits=Limits(grace_s=grace),
        max_restarts=restarts,
        port=port,
        interface=interface,
        controller=scheduler in schedulers.PLANNED and servers > 0 and on not in WITHOUT_CONTROLLER,
        ranks=sync == BYTEPS,
    )
    if strategy is not None and used is not None:
        spec = with_strategy(spec, used, strategy)
        if on in WITHOUT_CONTROLLER:
            spec = replace(spec, controller=False)
    if controller is not None:
        spec = replace(spec, controller=controller)
    text = None if launcher is None else launcher.text(spec)
    if text is not None:
        print(text, end="", flush=True)
        return 0
    prepare = _prepare_here if launcher is None else launcher.prepare
    start = prepare(spec)  # wrong input must not leave an empty run directory behind
    spec = replace(spec, run_directory=make_run_directory(runs, _exchange_of(spec, sync, used)))
    tell(f"run {spec.run_directory}")
    output = sys.stderr if as_json else sys.stdout

    echo = echo_to(spec.run_directory / "logs", output)
    result = run_with_restarts(start, prepare, spec, echo)
    late = [row for row in read_steps(spec.run_directory) if row["done_ns"] is None]
    if late:
        warn(f"the job ended before {len(late)} step(s)")
    if as_json:
        print(json.dumps(_report(spec, result), indent=2), flush=True)
    if result.failed is not None:
        raise JobFailed(result.failed)
    tell(f"done after {result.wall_s:.1f} s")
    return 0


def _refuse_several(environment: Mapping[str, str]) -> None:
    """UserError if mpirun or srun started this command several times: each would start a job."""
    for name in _STARTED:
        count = whole_number(environment.get(name, ""))
        if count is not None and count > 1:
            raise UserError(
                f"run: mpirun or srun has started it {count} times ({name}), and each would start "
                "a whole job: start it once; it starts all roles itself (--on slurm, --on mpi). "
                f"If several jobs are meant, unset {name}"
            )


def _refuse_unheard(context: typer.Context, environment: Mapping[str, str], scheduler: str) -> None:
    """UserError for another policy in the shell's variables, unless an option overrides it."""
    for name, field in SAID_OTHERWISE.items():
        value = environment.get(name, "")
        if value not in ("", scheduler) and not is_given(context, field):
            raise UserError(
                f"{name}={value}: is for roles started by hand: use {spelled(field)}, or unset it"
            )


def _prepare_here(spec: JobSpec) -> Start:
    """What runs a job on this machine. Raises ``UserError`` if it cannot be started."""
    check_job(spec)
    return run_job


def _check_all_reduce(servers: int, monitor: bool, profile: Path | None) -> None:
    """UserError for options that nobody would follow; the launcher knows the others."""
    if servers == 0 and monitor:
        raise UserError("--monitor, --probe: they watch BytePS, which --servers 0 does not use")
    if servers == 0 and profile is not None:
        raise UserError("--profile: it is for BytePS, which --servers 0 does not use")


def _exchange_of(spec: JobSpec, sync: str | None, used: Used | None) -> str:
    """How gradients are exchanged, as far as it is known before the script runs."""
    if used is not None and used.strategy.runtime != BYTEPS:
        return used.strategy.runtime
    if spec.all_reduce:
        return sync or ALL_REDUCE
    return spec.scheduler


def _check_sync(sync: str | None, servers: int, record: bool) -> None:
    """UserError unless there is such a way to exchange gradients, and the job has what it needs."""
    if sync is not None and sync not in SYNCS:
        raise UserError(f"--sync {sync}: must be {', '.join(SYNCS)}")
    if sync is not None and (servers > 0) != (sync == BYTEPS):
        needed = "at least one server" if sync == BYTEPS else "--servers 0"
        raise UserError(f"--sync {sync}: this exchange needs {needed}")
    if sync == AUTO and record:
        raise UserError(f"--record: not with --sync {AUTO}; record the sync that it has chosen")


def _watching(scheduler: str, monitor: bool, probe: bool) -> dict[str, str]:
    """The variables that ask for the network monitor and the probe."""
    if monitor and scheduler == schedulers.STOCK:
        raise UserError("--monitor, --probe: stock records nothing; use e.g. --scheduler fifo")
    if not monitor:
        return {}
    from byteprophet.session.monitoring import PROBE_VARIABLE, VARIABLE

    return {VARIABLE: "1", **({PROBE_VARIABLE: "1"} if probe else {})}


def _recording(record: bool, steps: str | None) -> dict[str, str]:
    """The variables that ask for events."""
    if not record:
        if steps is not None:
            raise UserError("--record-steps: needs --record, whose iterations it selects")
        return {}
    from byteprophet.observe import recording
    from byteprophet.observe.windows import Windows

    if steps is None:
        return {recording.VARIABLE: "1"}
    Windows.parse(steps, "--record-steps")
    return {recording.VARIABLE: "1", recording.STEPS: steps}


def _report(spec: JobSpec, result: JobResult) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "run": str(spec.run_directory),
        "status": "done" if result.failed is None else "failed",
        "failed": result.failed,
        "wall_s": result.wall_s,
        "restarts": result.restarts,
        "roles": [asdict(role) for role in result.roles],
        "results": read_worker_results(spec.run_directory),
    }
