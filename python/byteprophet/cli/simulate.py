"""``byteprophet simulate``: a training job on a cluster that is not there."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from byteprophet.cli.simulate_tables import (
    GIB,
    calibration_table,
    memory_table,
    ms_long,
    runs_table,
    times_table,
)
from byteprophet.errors import UserError
from byteprophet.report.console import progress_of, table_console
from byteprophet.report.page import Shown, write_simulation
from byteprophet.simulate.calibrate.fit import CONTRADICTED, calibrate
from byteprophet.simulate.calibrate.interval import Interval, interval
from byteprophet.simulate.calibrate.runs import read_runs
from byteprophet.simulate.clusters.description import Cluster, cluster_names
from byteprophet.simulate.clusters.write import write_cluster
from byteprophet.simulate.costs.sources import cluster_with_costs
from byteprophet.simulate.execute.result import Simulated
from byteprophet.simulate.execute.search import Job, pareto, search
from byteprophet.simulate.execute.simulate import simulate as simulate_job
from byteprophet.simulate.explain.critical_path import critical_path
from byteprophet.simulate.explain.lanes import lanes, last_part
from byteprophet.simulate.explain.operations import operations_of
from byteprophet.simulate.explain.plain import plain
from byteprophet.simulate.models.catalogue import DESCRIPTION, MODELS
from byteprophet.simulate.models.load import VISION, load_model
from byteprophet.simulate.tree.file import read_strategy
from byteprophet.simulate.tree.one_line import HELP, parse_strategy
from byteprophet.timeline.perfetto_lanes import write_lanes
from byteprophet.whole_files import make_directory, write_whole

_HELP = f"""Predict the iteration time and the memory of a training job, without the cluster.

MODEL is one of {", ".join((*MODELS, *VISION))};
or a description like {DESCRIPTION}; or the path of a Hugging Face config.json; or module:function,
where the function takes a batch size and returns a torch.nn.Module and its inputs.

--strategy is a line of KEY=VALUE, or the path of a TOML file (docs/simulator.md). Keys:
{"; ".join(f"{key}: {words}" for key, words in HELP.items())}.

Example: byteprophet simulate gpt3-175b --cluster dgx-a100 --gpus 1024 --strategy "tp=8 pp=16
micro_batches=192"

With --batch in place of --strategy, the usual combinations of tp, pp, dp, micro-batch, schedule,
zero and recompute are searched, on all cores. The fastest that fit into memory are shown, and all
than which no other is both as fast and as small.

Example: byteprophet simulate gpt3-175b --cluster dgx-a100 --gpus 1024 --batch 1536

Example: byteprophet simulate llama3-8b --cluster dgx-h100 --gpus 8 --strategy "zero=3
precision=fsdp2 recompute=full"
"""
PAGE, TRACE = "simulation.html", "trace.json.gz"
"""Files that --out writes."""
_MOST_IN_PAGE = 40_000
_MOST_IN_TRACE = 400_000
_BEST = 5
"""Strategies that are shown besides the Pareto front."""


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("simulate", help=_HELP)(simulate)


def simulate(
    model: Annotated[str, typer.Argument(help="A name, a description, a file or a function.")],
    cluster: Annotated[
        str, typer.Option(help=f"{', '.join(cluster_names())}, or the path of a description.")
    ],
    gpus: Annotated[int, typer.Option(help="The number of GPUs.")],
    strategy: Annotated[str, typer.Option(help="A line of KEY=VALUE, or a file.")] = "",
    sequence: Annotated[int | None, typer.Option(help="Tokens per sample.")] = None,
    batch: Annotated[
        int | None,
        typer.Option(help="Search for strategies with so many samples per iteration."),
    ] = None,
    costs: Annotated[
        str, typer.Option(help="Measured costs: aiconfigurator, or the path of a table.")
    ] = "",
    calibrate_file: Annotated[
        Path | None,
        typer.Option(
            "--calibrate", metavar="FILE", help="Set the cluster's constants from measured runs."
        ),
    ] = None,
    save_cluster: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="With --calibrate: write the cluster to this file."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write a page and a trace for Perfetto to this directory.")
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write the figures to this file.")
    ] = None,
) -> int:
    """See _HELP."""
    if not 1 <= gpus <= 1 << 20:
        raise UserError(f"--gpus {gpus}: must be from 1 to {1 << 20}")
    if sequence is not None and not 1 <= sequence <= 1 << 24:
        raise UserError(f"--sequence {sequence}: must be from 1 to {1 << 24}")
    if save_cluster is not None and calibrate_file is None:
        raise UserError("--save-cluster: goes with --calibrate FILE, which has measured runs")
    if batch is not None:
        if calibrate_file is not None:
            raise UserError("--calibrate cannot be combined with --batch: use --save-cluster first")
        if strategy:
            raise UserError("--strategy cannot be combined with --batch, which searches for one")
        return _search(Job(model, cluster, gpus, batch, sequence, costs), json_file)
    if strategy.endswith(".toml"):
        chosen = read_strategy(Path(strategy), gpus)
    else:
        chosen = parse_strategy(strategy, gpus)
    console = table_console()
    machines = cluster_with_costs(cluster, costs)
    if calibrate_file is not None:
        machines = _calibrated(calibrate_file, machines, save_cluster, console)
    result = simulate_job(load_model(model, chosen.samples, sequence), chosen, machines)
    found = interval(result, machines)
    if json_file is not None:
        write_whole(json_file, json.dumps(result.as_json() | found.as_json(), indent=1) + "\n")
    size = f"{result.program.model.parameters() / 1e9:.3g} billion parameters"
    console.print(
        f"{result.program.model.name}, {size}, on {result.gpus} GPUs of {machines.name}\n"
    )
    console.print(times_table(result, found))
    console.print()
    console.print(memory_table(result))
    if not result.fits:
        console.print(
            f"Out of memory: a GPU has {result.memory_limit_bytes / GIB:.1f} GiB. Use more tp, pp "
            "or zero, recompute, or fewer samples per micro-batch."
        )
    if out is not None:
        for what, file in zip(
            ("page", "trace"), _write_out(out, result, machines.name, found), strict=True
        ):
            console.print(f"{what}: {file}", soft_wrap=True)
    return 0


def _calibrated(
    runs_file: Path, cluster: Cluster, save_as: Path | None, console: Console
) -> Cluster:
    """The cluster with constants from measured runs, of which tables are printed."""
    runs = read_runs(runs_file, cluster)
    found = calibrate(runs, cluster, f"calibrated on {len(runs)} run(s) of {runs_file.name}")
    console.print(runs_table(runs, found))
    console.print()
    console.print(calibration_table(found))
    console.print(f"The runs set {found.learnt:.1f} constants' worth; all others stay.\n")
    if found.wider > CONTRADICTED:
        console.print(
            f"They contradict the cluster's description: its constants are off {found.wider:.1f} "
            "times as much as their stated uncertainties. Check GPUs, precision and strategy.\n"
        )
    if save_as is not None:
        write_cluster(save_as, found.cluster)
        console.print(f"cluster: {save_as}\n", soft_wrap=True)
    return found.cluster


def _write_out(
    directory: Path, result: Simulated, cluster: str, found: Interval
) -> tuple[Path, Path]:
    """Write the page and the trace, and return their paths."""
    make_directory(directory)
    operations = operations_of(result)
    path = critical_path(result, operations)
    all_lanes = lanes(result, operations, path)
    page, trace = directory / PAGE, directory / TRACE
    _, kept = last_part(all_lanes, result.iteration_ns, _MOST_IN_TRACE)
    write_lanes(trace, kept)
    begin_ns, kept = last_part(all_lanes, result.iteration_ns, _MOST_IN_PAGE)
    data = {**plain(result, operations, path, cluster), **found.as_json(), "trace": TRACE}
    write_simulation(page, data, Shown(begin_ns, result.iteration_ns, kept))
    return page, trace


def _search(job: Job, json_file: Path | None) -> int:
    if not 1 <= job.batch <= 1 << 24:
        raise UserError(f"--batch {job.batch}: must be from 1 to {1 << 24}")
    found = search(job, progress_of("simulate"))
    front = pareto(found)
    fitting = [one for one in found if one.fits]
    if json_file is not None:
        write_whole(json_file, json.dumps([vars(one) for one in found], indent=1) + "\n")
    refused = Counter(one.refused for one in found if one.refused)
    simulated = len(found) - refused.total()
    console = table_console()
    console.print(
        f"{job.model} on {job.gpus} GPUs, {job.batch} samples per iteration: {simulated} of "
        f"{len(found)} strategies simulated, {len(fitting)} fit into memory\n"
    )
    table = Table(box=None, pad_edge=False)
    for name in ("", "iteration", "MFU", "memory"):
        table.add_column(name, justify="right")
    table.add_column("strategy", overflow="fold")
    for one in sorted({*fitting[:_BEST], *front}, key=lambda one: one.iteration_ns):
        mark = "*" if one in front else ""
        memory = f"{one.memory_bytes / GIB:.1f} GiB"
        table.add_row(mark, ms_long(one.iteration_ns), f"{one.mfu:.1%}", memory, one.strategy)
    console.print(table)
    console.print("\n* no other strategy is both as fast and as small")
    for reason, count in refused.most_common(1):
        console.print(f"Not simulated, {count} times: {reason}", soft_wrap=True)
    return 0
