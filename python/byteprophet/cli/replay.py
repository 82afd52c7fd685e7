"""``byteprophet replay``: a recorded job once more, as it was, or as it would have been."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from byteprophet.bench import Case
from byteprophet.bench.case import all_reduce_case
from byteprophet.cli.given import refuse_given
from byteprophet.cli.lists import split
from byteprophet.cli.runs import RUN_HELP, run_meant
from byteprophet.cli.validate import POLICIES, validate
from byteprophet.errors import UserError
from byteprophet.measure.processor_file import measure_on_cores
from byteprophet.measure.run import Run
from byteprophet.network import parse_rate
from byteprophet.replay.predict import Prediction, predict
from byteprophet.replay.what_if import RANGES, Changes
from byteprophet.report.console import facts_table, ms_text, table_console
from byteprophet.schedulers import DEFAULT
from byteprophet.workload import load

_HELP = """Replay a recorded job and predict the length of its iterations.

The run must have been recorded (--record). Its layers, gradients, partitions, sums and answers
become a graph, which is replayed under the job's own policy. Without options, the prediction is
shown beside the measurement. Options change the job before it is replayed. The interval holds nine
in ten replayed iterations, and is widened by the replay's error for the unchanged job.

Example: byteprophet replay runs/20261121T224844Z-prophet --bandwidth 3gbit

Example: byteprophet replay runs/20261121T224844Z-prophet --policy fifo --workers 4 --json

Example: byteprophet replay runs/20261125T201807Z-dear --runtime dear-planned --bandwidth 1gbit

With --validate there is no RUN. Instead, a paced job described by these options is recorded. Other
jobs are predicted from it, then run, and compared: half and twice the bandwidth, other policies,
another partition size, one more worker and one more server; with --runtime, a job without servers,
other runtimes and another bucket size. The command continues where it was stopped. If the cores are
too slow for a link, slow both down: --compute-scale 3 with a third of the bandwidth.

Example: byteprophet replay --validate --workload resnet18 --bandwidth 500mbit

Example: byteprophet replay --validate --runtime dear --workload resnet18 --bandwidth 500mbit
"""

_OF_VALIDATION = ("workload", "schedulers_", "cases", "iterations", "rounds", "out")
_OF_A_RUN = ("run", "link_latency", "bucket_bytes")
_OF_BYTEPS = ("policy", "schedulers_", "servers", "partition_bytes")


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("replay", help=_HELP)(replay)


def replay(
    context: typer.Context,
    run: Annotated[Path | None, typer.Argument(help=RUN_HELP)] = None,
    policy: Annotated[
        str | None, typer.Option(help="Another scheduler, with its default settings.")
    ] = None,
    bandwidth: Annotated[
        str | None, typer.Option(help="Another rate of each worker's link.")
    ] = None,
    partition_bytes: Annotated[int | None, typer.Option(help="Another partition size.")] = None,
    workers: Annotated[int | None, typer.Option(help="Another number of workers.")] = None,
    servers: Annotated[int | None, typer.Option(help="Another number of servers.")] = None,
    runtime: Annotated[
        str | None, typer.Option(help="Another all-reduce runtime, with buckets of its own.")
    ] = None,
    bucket_bytes: Annotated[
        int | None, typer.Option(help="Another bucket size (jobs without servers).")
    ] = None,
    compute_scale: Annotated[
        float | None, typer.Option(help="Multiply all compute times by this.")
    ] = None,
    link_latency: Annotated[
        float | None, typer.Option(metavar="MS", help="One-way delay, in milliseconds.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
    validation: Annotated[
        bool, typer.Option("--validate", help="Record, predict, run and compare.")
    ] = False,
    workload: Annotated[
        str, typer.Option(help="With --validate: built in, random:SEED, or a workload file.")
    ] = "resnet50",
    schedulers_: Annotated[
        str, typer.Option("--schedulers", help="With --validate: policies, separated by commas.")
    ] = ",".join(POLICIES),
    cases: Annotated[
        str | None, typer.Option(help="With --validate: only these cases, separated by commas.")
    ] = None,
    iterations: Annotated[
        int, typer.Option(help="With --validate: measured iterations of each job.")
    ] = 20,
    rounds: Annotated[int, typer.Option(help="With --validate: jobs of each case.")] = 1,
    out: Annotated[
        Path | None, typer.Option(help="With --validate: where jobs are kept; default: in runs/.")
    ] = None,
) -> int:
    """See _HELP."""
    if validation:
        refuse_given(context, _OF_A_RUN, "cannot be combined with --validate")
        if servers == 0:
            raise UserError("--servers 0: name a runtime without servers, e.g. --runtime ddp")
        if runtime is not None:
            refuse_given(context, _OF_BYTEPS, "belongs to jobs with servers")
        base = Case(
            workload=workload,
            compute_ns=None if compute_scale is None else _compute_ns(workload, compute_scale),
            scheduler=policy or DEFAULT,
            bandwidth_bps=parse_rate(bandwidth or "1gbit", "--bandwidth"),
            workers=2 if workers is None else workers,
            servers=1 if servers is None else servers,
            partition_bytes=partition_bytes,
        )
        if runtime is not None:
            base = all_reduce_case(base, runtime, {})
        names = None if cases is None else split(cases, "--cases")
        policies = split(schedulers_, "--schedulers")
        return validate(base, policies, names, iterations, rounds, out, as_json)
    refuse_given(context, _OF_VALIDATION, "needs --validate")
    if run is None:
        raise UserError("name a run directory, or use --validate")
    run = run_meant(run)
    recorded = Run(run)
    changes = Changes(
        bandwidth_bps=None if bandwidth is None else parse_rate(bandwidth, "--bandwidth") or 0,
        scheduler=policy,
        partition_bytes=partition_bytes,
        workers=workers,
        servers=servers,
        runtime=runtime,
        bucket_bytes=bucket_bytes,
        compute_scale=compute_scale,
        link_latency_ns=None if link_latency is None else _latency_ns(link_latency),
    )
    prediction = predict(measure_on_cores(recorded), changes)
    if as_json:
        typer.echo(json.dumps(prediction.as_json(), indent=1))
    else:
        table_console().print(_table(prediction))
    return 0


def _compute_ns(workload: str, scale: float) -> int:
    least, most = RANGES["compute_scale"]
    if not least <= scale <= most:
        raise UserError(f"--compute-scale {scale}: must be from {least:g} to {most:g}")
    loaded = load(workload)
    return round(scale * (loaded.forward_ns + loaded.backward_ns))


def _latency_ns(latency_ms: float) -> int:
    most_ms = RANGES["link_latency_ns"][1] / 1e6
    if not 0 <= latency_ms <= most_ms:
        raise UserError(f"--link-latency {latency_ms}: must be from 0 to {most_ms:g} milliseconds")
    return round(latency_ms * 1e6)


def _table(prediction: Prediction) -> Table:
    job = prediction.job
    table = facts_table(f"{job.title}: an iteration")
    within = f"{ms_text(prediction.low_ns)} to {ms_text(prediction.high_ns)} nine times in ten"
    table.add_row("replayed", ms_text(prediction.median_ns), within)
    of_whom = "this job" if prediction.measured_ns is not None else "the unchanged job"
    error = f"{of_whom}; its replay has an error of {prediction.replay_error:+.1%}"
    table.add_row("recorded", ms_text(prediction.recorded_ns), error)
    daydream = "a simpler prediction: each tensor alone on the link"
    table.add_row("Daydream", ms_text(prediction.daydream_ns), daydream)
    table.add_row("bound", ms_text(prediction.bound_ns), "no schedule is faster")
    if job.times.waits_for_all:
        table.add_row("waits", "", "before updates, for all averages: its script clips or scales")
    return table
