"""``byteprophet bench``: schedulers compared on a paced workload."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from byteprophet import schedulers
from byteprophet.bench import Case, Plan, describe_machine, run_bench
from byteprophet.cli.lists import split
from byteprophet.cli.run import parse_settings
from byteprophet.errors import UserError
from byteprophet.network import parse_rate, parse_step, why_not_permitted
from byteprophet.report.table import bench_table
from byteprophet.tune.space import SPACES

SCHEMA = 1

_HELP = f"""Compare schedulers on a paced workload: timed compute, real bytes through BytePS.

Every scheduler runs once per round, in turn; figures are medians over all rounds. The bound is a
true lower bound of the iteration time. Schedulers: {", ".join(schedulers.names)}.

Example: byteprophet bench --workload resnet50 --schedulers stock,prophet --bandwidth 1gbit
"""


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("bench", help=_HELP)(bench)


def bench(
    workload: Annotated[str, typer.Option(help="A built-in workload, or a workload file.")],
    schedulers_: Annotated[
        str, typer.Option("--schedulers", help="Separated by commas.")
    ] = "stock,fifo,p3,bytescheduler,prophet",
    bandwidth: Annotated[
        str, typer.Option(help="Rates of each worker's link, separated by commas.")
    ] = "1gbit",
    step: Annotated[
        list[str] | None,
        typer.Option(
            metavar="RATE@WHEN",
            help="A new rate of the workers' links, at an update (3gbit@8i, from 0, warm-up"
            " included) or so long after the start (3gbit@20s); repeatable.",
        ),
    ] = None,
    workers: Annotated[int, typer.Option(help="Number of workers.")] = 2,
    servers: Annotated[int, typer.Option(help="Number of servers.")] = 1,
    iterations: Annotated[int, typer.Option(help="Measured iterations, after warm-up.")] = 12,
    rounds: Annotated[int, typer.Option(help="Jobs that the iterations are split over.")] = 2,
    partition_bytes: Annotated[
        int | None, typer.Option(help="For all schedulers; default: each scheduler's own.")
    ] = None,
    compute_ns: Annotated[
        int | None, typer.Option(help="Rescale forward and backward to this total.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A setting, with one scheduler only."),
    ] = None,
    controller: Annotated[
        bool, typer.Option("--controller", help="With a controller where the scheduler uses plans.")
    ] = False,
    record: Annotated[
        bool, typer.Option("--record", help="Save every transfer in the run directories' events/.")
    ] = False,
    tune: Annotated[
        int,
        typer.Option(
            metavar="ITERATIONS",
            help="Let schedulers tune what they can and is not --set in so many iterations of each"
            " job, 100 or more, before those measured.",
        ),
    ] = 0,
    runs: Annotated[Path, typer.Option(help="Where run directories are made.")] = Path("runs"),
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Save the results here.")
    ] = None,
) -> int:
    """See _HELP."""
    names = split(schedulers_, "--schedulers")
    rates_bps = [parse_rate(text, "--bandwidth") for text in split(bandwidth, "--bandwidth")]
    steps = tuple(parse_step(text) for text in step or [])
    if settings and len(names) != 1:
        raise UserError("--set: settings belong to one scheduler, give exactly one in --schedulers")
    if json_file is not None and not json_file.absolute().parent.is_dir():
        raise UserError(f"--json {json_file}: there is no such directory")
    if tune and not set(names) & set(SPACES):
        raise UserError(f"--tune {tune}: only {' and '.join(SPACES)} can be tuned")
    cases = tuple(
        Case(
            workload=workload,
            scheduler=name,
            bandwidth_bps=rate_bps,
            workers=workers,
            servers=servers,
            compute_ns=compute_ns,
            partition_bytes=partition_bytes,
            settings=parse_settings(settings or []),
            steps=steps,
            tune_iterations=tune if name in SPACES else 0,
        )
        for rate_bps in rates_bps
        for name in names
    )
    # Without a limit, hosts of their own are still the better likeness, but not a must.
    namespaces = any((*rates_bps, *steps)) or why_not_permitted() is None
    progress = Console(stderr=True)
    plan = Plan(cases, iterations, min(rounds, iterations), controller=controller, record=record)
    results = run_bench(plan, runs, namespaces, lambda text: progress.print(f"bench: {text}"))
    report = {"schema": SCHEMA, "machine": describe_machine(), "results": results}
    if json_file is not None:
        json_file.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    console = Console(width=None if Console().is_terminal else 120)
    console.print(bench_table(results))
    return 0
