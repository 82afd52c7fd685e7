"""``byteprophet bench``: schedulers compared on a paced workload, or on a grid of them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from byteprophet import schedulers
from byteprophet.bench import Case, Plan, describe_machine, run_bench
from byteprophet.bench.case import all_reduce_case, strategy_case, warmup_of
from byteprophet.bench.grid import built_in_grids
from byteprophet.bench.grid_phases import PHASES
from byteprophet.bench.runtimes import BYTEPS, RUNTIMES, runtime_of
from byteprophet.cli.given import is_given, refuse_given
from byteprophet.cli.lists import split
from byteprophet.cli.owners import EQUAL, OWNERS_HELP, parse_owners
from byteprophet.cli.run import parse_rates, parse_settings
from byteprophet.cli.targets import check_targets
from byteprophet.errors import UserError
from byteprophet.job.strategy import OURS
from byteprophet.launcher.checks import check_counts
from byteprophet.network import parse_rate, parse_step, why_not_permitted
from byteprophet.report.console import progress_of, table_console
from byteprophet.report.table import bench_table
from byteprophet.tune.space import SPACES
from byteprophet.whole_files import write_whole

SCHEMA = 1

_DEFAULT_SCHEDULERS = "stock,fifo,p3,bytescheduler,prophet"

_OF_A_WORKLOAD = (
    "workload",
    "runtime",
    "strategies",
    "bandwidth",
    "step",
    "workers",
    "servers",
    "iterations",
    "partition_bytes",
    "compute_ns",
    "worker_bandwidth",
    "server_bandwidth",
    "owners",
    "settings",
    "controller",
    "record",
    "tune",
    "runs",
)
_OF_BYTEPS = ("schedulers_", "servers", "server_bandwidth", "partition_bytes", "controller", "tune")
_OF_A_GRID = ("slowed", "phase", "out", "report")

_HELP = f"""Compare schedulers on a paced workload: timed compute, real bytes through BytePS.

Every scheduler runs once per round. Figures are medians over all rounds. The bound is a true lower
bound of the iteration time. Schedulers: {", ".join(schedulers.names)}.
With --grid, measure a grid of workloads, links and roles phase by phase, continue where an earlier
run stopped, and report every figure with its target. Grids: {", ".join(built_in_grids())}.

Example: byteprophet bench --workload resnet50 --schedulers stock,prophet --bandwidth 1gbit

Example: byteprophet bench --workload resnet50 --runtime byteps,ddp,dear-planned \
--schedulers prophet

Example: byteprophet bench --workload resnet50 --runtime ddp,dear-planned --workers 4 \
--worker-bandwidth 3=500mbit --owners equal --owners auto

Example: byteprophet bench --workload resnet50 --strategies prophet,dear-planned,mine.json \
--workers 4 --servers 2

Example: byteprophet bench --grid default --phase base
"""


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("bench", help=_HELP)(bench)


def bench(
    context: typer.Context,
    workload: Annotated[
        str | None, typer.Option(help="A built-in workload, random:SEED, or a workload file.")
    ] = None,
    schedulers_: Annotated[
        str | None,
        typer.Option(
            "--schedulers",
            help=f"Separated by commas; default: {_DEFAULT_SCHEDULERS}; with --grid: all.",
        ),
    ] = None,
    bandwidth: Annotated[
        str, typer.Option(help="Rates of the workers' links, separated by commas.")
    ] = "1gbit",
    runtime: Annotated[
        str,
        typer.Option(
            help=f"Runtimes that reduce gradients, separated by commas: {', '.join(RUNTIMES)}."
            " Schedulers and servers belong to byteps."
        ),
    ] = BYTEPS,
    strategies: Annotated[
        str | None,
        typer.Option(
            help="In place of --schedulers and --runtime: schedulers, runtimes and strategy files,"
            " separated by commas."
        ),
    ] = None,
    step: Annotated[
        list[str] | None,
        typer.Option(
            metavar="RATE@WHEN",
            help="Change the rate of the workers' links at an update (3gbit@8i, counted from 0 with"
            " warm-up) or at a time after the start (3gbit@20s); repeatable.",
        ),
    ] = None,
    workers: Annotated[int, typer.Option(help="Number of workers.")] = 2,
    servers: Annotated[int, typer.Option(help="Number of servers.")] = 1,
    iterations: Annotated[int, typer.Option(help="Measured iterations, after warm-up.")] = 12,
    rounds: Annotated[
        int,
        typer.Option(help="Jobs that share the iterations; with --grid: jobs per policy."),
    ] = 2,
    partition_bytes: Annotated[
        int | None, typer.Option(help="Partition size of all schedulers; default: their own.")
    ] = None,
    compute_ns: Annotated[
        int | None, typer.Option(help="Rescale forward and backward to this total.")
    ] = None,
    worker_bandwidth: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WORKER=RATE",
            help="Rate of one worker's link instead, e.g. 1=100mbit; repeatable.",
        ),
    ] = None,
    server_bandwidth: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SERVER=RATE",
            help="Rate of one server's link, which is not limited otherwise; repeatable.",
        ),
    ] = None,
    owners: Annotated[
        list[str] | None,
        typer.Option(metavar="WEIGHTS", help=f"{OWNERS_HELP}, the default; repeatable."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A setting; needs a single scheduler."),
    ] = None,
    controller: Annotated[
        bool, typer.Option("--controller", help="Start a controller if the scheduler uses plans.")
    ] = False,
    record: Annotated[
        bool,
        typer.Option("--record", help="Save transfers and spans in the run directories' events/."),
    ] = False,
    grid: Annotated[
        str | None, typer.Option(metavar="NAME|FILE", help="A built-in grid, or a grid file.")
    ] = None,
    slowed: Annotated[
        int,
        typer.Option(
            metavar="TIMES",
            help="With --grid: slow compute and links down by this factor. Use it if the cores are"
            " the limit; it keeps the ratios between policies.",
        ),
    ] = 1,
    phase: Annotated[
        str, typer.Option(help=f"With --grid: {', '.join(PHASES)} (explained in docs/formats.md).")
    ] = "base",
    out: Annotated[
        Path | None,
        typer.Option(help="With --grid: where to keep its results; default: runs/grid-NAME."),
    ] = None,
    report: Annotated[
        bool, typer.Option("--report", help="With --grid: run nothing, only report.")
    ] = False,
    tune: Annotated[
        int,
        typer.Option(
            metavar="ITERATIONS",
            help="Let schedulers tune all settings that are not given with --set. Tuning takes this"
            " many iterations of each job, 100 or more, before the measured ones.",
        ),
    ] = 0,
    runs: Annotated[Path, typer.Option(help="Where run directories are made.")] = Path("runs"),
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Save the results here.")
    ] = None,
) -> int:
    """See _HELP."""
    read = [grid, workload, *(split(strategies, "--strategies") if strategies else ())]
    files_read = [Path(name) for name in read if name is not None and Path(name).is_file()]
    check_targets({"--json": json_file}, files_read)
    if grid is not None:
        refuse_given(context, _OF_A_WORKLOAD, "cannot be combined with --grid")
        names = None if schedulers_ is None else split(schedulers_, "--schedulers")
        from byteprophet.cli.grid import bench_grid  # it imports matplotlib: a second

        return bench_grid(grid, slowed, phase, names, rounds, out, report, json_file)
    refuse_given(context, _OF_A_GRID, "needs --grid")
    if workload is None:
        raise UserError("give --workload or --grid, e.g. --workload resnet50")
    files: list[Path] = []
    if strategies is not None:
        refuse_given(context, ("schedulers_", "runtime"), "is what --strategies says")
        named = split(strategies, "--strategies")
        schedulers_ = ",".join(name for name in named if name in schedulers.names) or None
        runtimes = [name for name in named if name in RUNTIMES]
        files = [Path(name) for name in named if name not in (*schedulers.names, *RUNTIMES)]
        if BYTEPS in named:
            raise UserError(
                f"--strategies {BYTEPS}: name its schedulers instead, e.g. prophet,fifo "
                f"({', '.join(schedulers.names)})"
            )
        missing = next((each for each in files if not each.exists()), None)
        if missing is not None:
            raise UserError(
                f"--strategies {missing}: there is no such file, scheduler "
                f"({', '.join(schedulers.names)}) or runtime ({', '.join(RUNTIMES)})"
            )
        runtimes += [BYTEPS] * (schedulers_ is not None)
    else:
        runtimes = split(runtime, "--runtime")
    collective = [name for name in runtimes if runtime_of(name).collective]
    if BYTEPS in runtimes:
        names = split(schedulers_ or _DEFAULT_SCHEDULERS, "--schedulers")
    else:
        if not files:
            refuse_given(context, _OF_BYTEPS, f"belongs to --runtime {BYTEPS}")
        names = []
    check_counts(workers, servers)
    rates_bps = [parse_rate(text, "--bandwidth") for text in split(bandwidth, "--bandwidth")]
    steps = tuple(parse_step(text) for text in step or [])
    if settings and len(names) + len(collective) != 1:
        raise UserError(
            "--set: settings belong to one scheduler or runtime: name one with --schedulers,"
            " or one runtime without schedulers with --runtime"
        )
    worker_bandwidth_bps = parse_rates(worker_bandwidth or [])
    if tune and not set(names) & set(SPACES):
        raise UserError(f"--tune {tune}: only {' and '.join(SPACES)} can be tuned")
    chosen = parse_settings(settings or [])
    if owners and not set(collective) & set(OURS):
        raise UserError(f"--owners: only for {', '.join(OURS)}; name one with --runtime")
    cases: list[Case] = []
    for rate_bps in rates_bps:
        case = Case(
            workload=workload,
            scheduler=schedulers.DEFAULT,
            bandwidth_bps=rate_bps,
            workers=workers,
            servers=servers,
            compute_ns=compute_ns,
            partition_bytes=partition_bytes,
            settings=chosen,
            steps=steps,
            worker_bandwidth_bps=worker_bandwidth_bps,
            server_bandwidth_bps=parse_rates(server_bandwidth or [], "server"),
        )
        cases += [
            replace(case, scheduler=name, tune_iterations=tune if name in SPACES else 0)
            for name in names
        ]
        cases += [all_reduce_case(case, name, chosen) for name in collective if name not in OURS]
        owned = dict.fromkeys(parse_owners(text, case.rates_bps) for text in owners or [EQUAL])
        cases += [
            replace(all_reduce_case(case, name, chosen), owners=each)
            for name in collective
            if name in OURS
            for each in owned
        ]
        told = servers if is_given(context, "servers") else None
        under = [strategy_case(case, file, told) for file in files]
        served = next((each.strategy for each in under if each.servers), None)
        if partition_bytes is not None and served is not None:
            raise UserError(
                f"--partition-bytes {partition_bytes}: {served} says its own; leave the option out"
            )
        cases += under
    # Without a limit, hosts of their own are still the better likeness, but not a must.
    limited = any(steps) or any(
        case.slowest_bps is not None or case.server_bandwidth_bps for case in cases
    )
    namespaces = limited or why_not_permitted() is None
    plan = Plan(
        tuple(cases),
        iterations,
        rounds if is_given(context, "rounds") else min(rounds, iterations),
        warmup_of(cases),
        controller=controller,
        record=record,
    )
    results = run_bench(plan, runs, namespaces, progress_of("bench"))
    # First, so that they are not lost where they cannot be saved.
    table_console().print(bench_table(results))
    if json_file is not None:
        saved = {"schema": SCHEMA, "machine": describe_machine(), "results": results}
        write_whole(json_file, json.dumps(saved, indent=2) + "\n")
    return 0
