"""``byteprophet simulate``: a training job on a cluster that is not there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from byteprophet.cli.given import refuse_given
from byteprophet.cli.simulate_conditions import conditions_of, failures_as_json, failures_line
from byteprophet.cli.simulate_places import check_places, files_among
from byteprophet.cli.simulate_search import search_strategies
from byteprophet.cli.simulate_tables import (
    GIB,
    calibration_table,
    memory_table,
    runs_table,
    times_table,
)
from byteprophet.errors import UserError
from byteprophet.report.console import table_console
from byteprophet.simulate.calibrate.fit import CONTRADICTED, calibrate
from byteprophet.simulate.calibrate.interval import interval
from byteprophet.simulate.calibrate.runs import read_runs
from byteprophet.simulate.clusters.description import Cluster, cluster_names
from byteprophet.simulate.clusters.write import write_cluster
from byteprophet.simulate.costs.sources import cluster_with_costs, measured_sources
from byteprophet.simulate.execute.failures import Failures
from byteprophet.simulate.execute.kept import Job
from byteprophet.simulate.execute.search import fixed_keys
from byteprophet.simulate.execute.simulate import simulate as simulate_job
from byteprophet.simulate.execute.workload import workload_of
from byteprophet.simulate.models.catalogue import DESCRIPTION, MODELS
from byteprophet.simulate.models.dlrm import NAME as DLRM
from byteprophet.simulate.models.load import VISION, load_model
from byteprophet.simulate.tree.file import given_strategy
from byteprophet.simulate.tree.one_line import HELP
from byteprophet.whole_files import write_whole
from byteprophet.workload import to_toml

_HELP = f"""Predict the iteration time and the memory of a training job, without the cluster.

MODEL is one of {", ".join((*MODELS, *VISION, DLRM))};
or one of these with other sizes, such as llama2-70b:lora=16; or a description like
{DESCRIPTION}; or the path of a Hugging Face config.json; or module:function, where the function
takes a batch size and returns a torch.nn.Module and its inputs.

--strategy is a line of KEY=VALUE, or the path of a TOML file (docs/simulator.md). Keys:
{"; ".join(f"{key}: {words}" for key, words in HELP.items())}.

Example: byteprophet simulate gpt3-175b --cluster dgx-a100 --gpus 1024 --strategy "tp=8 pp=16
micro_batches=192"

With --batch, the usual combinations of tp, pp, dp, ep (of models with experts), micro-batch,
schedule, zero and recompute are searched, on all cores. Shown are the fastest strategies that fit
into memory, and the Pareto front of time and memory. --strategy then gives other keys, which all of
them have.

Example: byteprophet simulate gpt3-175b --cluster dgx-a100 --gpus 1024 --batch 1536

Example: byteprophet simulate llama3-8b --cluster dgx-h100 --gpus 64 --batch 512 --strategy
"precision=fsdp2 copies=1"

With --out, a page that explains the result and a trace for https://ui.perfetto.dev are written, and
a search that was interrupted goes on where it was.

With --workload, a data-parallel job is also written as a workload, for byteprophet strategy search
and byteprophet bench.

--calibrate FILE sets the cluster's constants from measured runs: a CSV file whose first line is
model,strategy,gpus,seconds (docs/simulator.md).

Example: byteprophet simulate llama3-8b --cluster dgx-h100 --gpus 8 --strategy "zero=3
precision=fsdp2 recompute=full"
"""


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("simulate", help=_HELP)(simulate)


def simulate(
    context: typer.Context,
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
    straggler: Annotated[
        list[str] | None,
        typer.Option(help="RANK=FACTOR: its kernels take so many times as long."),
    ] = None,
    jitter: Annotated[
        float, typer.Option(help="Spread of such a factor over all ranks, e.g. 0.02.")
    ] = 0.0,
    seed: Annotated[int, typer.Option(help="Seed of the random draws of --jitter.")] = 0,
    gpu_mtbf: Annotated[
        float | None, typer.Option(help="Hours after which a GPU ends the job by a failure.")
    ] = None,
    checkpoint: Annotated[float, typer.Option(help="Seconds of a checkpoint.")] = 60.0,
    restart: Annotated[float, typer.Option(help="Seconds from a failure to a restart.")] = 600.0,
    out: Annotated[
        Path | None, typer.Option(help="Write a page and a trace for Perfetto to this directory.")
    ] = None,
    workload: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the parameters with their times as a workload."),
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
    conditions = conditions_of(straggler or [], jitter, seed)
    if not jitter:
        refuse_given(context, ("seed",), "needs --jitter")
    if workload is not None:
        refuse_given(
            context, ("straggler", "jitter"), "has no effect on --workload: ranks of one are alike"
        )
    failures = None
    if gpu_mtbf is None:
        refuse_given(context, ("checkpoint", "restart"), "needs --gpu-mtbf")
    else:
        failures = Failures.of_gpus(
            gpus, gpu_mtbf_hours=gpu_mtbf, checkpoint_s=checkpoint, restart_s=restart
        )
    if batch is not None:
        if calibrate_file is not None:
            raise UserError("--calibrate cannot be combined with --batch: use --save-cluster first")
        if straggler or jitter or failures or workload:
            raise UserError(
                "--straggler, --jitter, --gpu-mtbf and --workload need --strategy, not --batch"
            )
        job = Job(model, cluster, gpus, batch, sequence, costs, fixed_keys(strategy))
        return search_strategies(job, out, json_file)
    chosen = given_strategy(strategy, gpus)
    console = table_console()
    machines = cluster_with_costs(cluster, costs)
    targets = {"--json": json_file, "--workload": workload, "--save-cluster": save_cluster}
    sources = files_among(model, cluster, strategy, costs)
    check_places(out, targets, [*sources, *([] if calibrate_file is None else [calibrate_file])])
    if calibrate_file is not None:
        machines = _calibrated(calibrate_file, machines, save_cluster, console)
    loaded = load_model(model, chosen.samples, sequence)
    result = simulate_job(loaded, chosen, machines, conditions)
    found = interval(result, machines, conditions)
    if workload is not None:
        write_whole(workload, to_toml(workload_of(result.program, result.costs)))
    if json_file is not None:
        figures = {
            **result.as_json(),
            **found.as_json(),
            "cluster": cluster,
            "strategy": strategy,
            "costs": measured_sources(machines),
            "failures": failures and failures_as_json(result, failures),
        }
        write_whole(json_file, json.dumps(figures, indent=1) + "\n")
    size = f"{_rounded(loaded.parameters())} parameters"
    if loaded.tokens > 1:
        size += f", {loaded.tokens:,} tokens per sample"
    of_cluster = machines.name if cluster == machines.name else f"{machines.name} ({cluster})"
    console.print(
        f"{loaded.name}, {size}, on {result.gpus} GPUs of {of_cluster}\n",
        soft_wrap=True,
    )
    for source in measured_sources(machines):
        console.print(f"Costs: {source}\n", soft_wrap=True)
    console.print(times_table(result, found))
    console.print()
    console.print(memory_table(result))
    if failures:
        console.print()
        console.print(failures_line(result, failures), soft_wrap=True)
    if not result.fits:
        console.print(
            f"Out of memory: a GPU has {result.memory_limit_bytes / GIB:.1f} GiB. Use more tp, pp "
            "or zero, recompute, or fewer samples per micro-batch."
        )
    if workload is not None:
        console.print(f"workload: {workload}", soft_wrap=True)
    if out is not None:
        from byteprophet.cli.simulate_page import write_out  # the page takes a moment to load

        for what, file in zip(
            ("page", "trace"), write_out(out, result, machines.name, found), strict=True
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
    console.print(
        f"The runs determine about {found.learnt:.1f} constants. "
        "Constants that are not listed stay as they were.\n",
        soft_wrap=True,
    )
    if found.wider > CONTRADICTED:
        console.print(
            f"They contradict the cluster's description: its constants are off {found.wider:.1f} "
            "times as much as their stated uncertainties. Check GPUs, precision and strategy.\n"
        )
    if save_as is not None:
        write_cluster(save_as, found.cluster)
        console.print(f"cluster: {save_as}\n", soft_wrap=True)
    return found.cluster


def _rounded(count: int) -> str:
    """57,297, or three digits: 1.97 million, 175 billion."""
    for unit, word in ((10**9, "billion"), (10**6, "million")):
        if count >= unit:
            return f"{float(f'{count / unit:.3g}'):,g} {word}"
    return f"{count:,}"
