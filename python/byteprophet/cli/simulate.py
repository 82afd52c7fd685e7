"""``byteprophet simulate``: a training job on a cluster that is not there."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from byteprophet.cli.simulate_conditions import conditions_of, failures_line
from byteprophet.errors import UserError
from byteprophet.report.console import facts_table, progress_of, table_console
from byteprophet.simulate.clusters.description import cluster_names, find_cluster
from byteprophet.simulate.execute.failures import Failures
from byteprophet.simulate.execute.result import Simulated
from byteprophet.simulate.execute.search import Job, pareto, search
from byteprophet.simulate.execute.simulate import simulate as simulate_job
from byteprophet.simulate.models.catalogue import DESCRIPTION, MODELS
from byteprophet.simulate.models.dlrm import NAME as DLRM
from byteprophet.simulate.models.load import VISION, load_model
from byteprophet.simulate.tree.file import read_strategy
from byteprophet.simulate.tree.one_line import HELP, parse_strategy
from byteprophet.whole_files import write_whole

_HELP = f"""Predict the iteration time and the memory of a training job, without the cluster.

MODEL is one of {", ".join((*MODELS, *VISION, DLRM))};
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
_GIB = 1 << 30
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
    straggler: Annotated[
        list[str] | None,
        typer.Option(help="RANK=FACTOR: its kernels take so many times as long."),
    ] = None,
    jitter: Annotated[
        float, typer.Option(help="Spread of such a factor over all ranks, e.g. 0.02.")
    ] = 0.0,
    seed: Annotated[int, typer.Option(help="Of --jitter.")] = 0,
    gpu_mtbf: Annotated[
        float | None, typer.Option(help="Hours after which a GPU ends the job by a failure.")
    ] = None,
    checkpoint: Annotated[float, typer.Option(help="Seconds of a checkpoint.")] = 60.0,
    restart: Annotated[float, typer.Option(help="Seconds from a failure to a restart.")] = 600.0,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write the figures to this file.")
    ] = None,
) -> int:
    """See _HELP."""
    if not 1 <= gpus <= 1 << 20:
        raise UserError(f"--gpus {gpus}: must be from 1 to {1 << 20}")
    if sequence is not None and not 1 <= sequence <= 1 << 24:
        raise UserError(f"--sequence {sequence}: must be from 1 to {1 << 24}")
    conditions = conditions_of(straggler or [], jitter, seed)
    failures = None
    if gpu_mtbf is not None:
        failures = Failures.of_gpus(
            gpus, gpu_mtbf_hours=gpu_mtbf, checkpoint_s=checkpoint, restart_s=restart
        )
    if batch is not None:
        if strategy:
            raise UserError("--strategy cannot be combined with --batch, which searches for one")
        if straggler or jitter or failures:
            raise UserError("--straggler, --jitter and --gpu-mtbf need --strategy, not --batch")
        return _search(Job(model, cluster, gpus, batch, sequence), json_file)
    if strategy.endswith(".toml"):
        chosen = read_strategy(Path(strategy), gpus)
    else:
        chosen = parse_strategy(strategy, gpus)
    machines = find_cluster(cluster)
    loaded = load_model(model, chosen.samples, sequence)
    result = simulate_job(loaded, chosen, machines, conditions)
    if json_file is not None:
        write_whole(json_file, json.dumps(result.as_json(), indent=1) + "\n")
    console = table_console()
    size = f"{result.program.model.parameters() / 1e9:.3g} billion parameters"
    console.print(
        f"{result.program.model.name}, {size}, on {result.gpus} GPUs of {machines.name}\n"
    )
    console.print(_times(result))
    console.print()
    console.print(_memory(result))
    if failures:
        console.print()
        console.print(failures_line(result, failures), soft_wrap=True)
    if not result.fits:
        console.print(
            f"Out of memory: a GPU has {result.memory_limit_bytes / _GIB:.1f} GiB. Use more tp, pp "
            "or zero, recompute, or fewer samples per micro-batch."
        )
    return 0


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
        memory = f"{one.memory_bytes / _GIB:.1f} GiB"
        table.add_row(mark, _ms(one.iteration_ns), f"{one.mfu:.1%}", memory, one.strategy)
    console.print(table)
    console.print("\n* no other strategy is both as fast and as small")
    for reason, count in refused.most_common(1):
        console.print(f"Not simulated, {count} times: {reason}", soft_wrap=True)
    return 0


def _times(result: Simulated) -> Table:
    model, strategy = result.program.model, result.program.strategy
    samples = strategy.samples * strategy.micro_batches
    table = facts_table("An iteration")
    table.add_row("iteration time", _ms(result.iteration_ns), f"{samples} samples")
    items = "tokens" if model.tokens > 1 else "samples"
    table.add_row(f"{items} per second", f"{result.tokens_per_s:,.0f}", "")
    table.add_row("model FLOPs utilisation", f"{result.mfu:.1%}", "of the GPUs' peak")
    for use, time_ns in result.by_use.items():
        if time_ns:
            share = f"{time_ns / result.iteration_ns:.1%}"
            table.add_row(f"  {use.value}", _ms(time_ns), share)
    return table


def _memory(result: Simulated) -> Table:
    table = Table(title="Peak memory in GiB", title_justify="left", box=None, pad_edge=False)
    table.add_column("pipeline rank")
    names = ("parameters", "gradients", "optimizer_state", "activations", "transient", "reserved")
    for name in (*names, "total"):
        table.add_column(name.replace("_", " "), justify="right")
    ranks = list(enumerate(result.memory))
    largest = max(ranks, key=lambda item: item[1].total)
    shown = sorted({ranks[0], largest, ranks[-1]}, key=lambda item: item[0])
    for rank, memory in shown if len(ranks) > 8 else ranks:
        row = (getattr(memory, name) / _GIB for name in (*names, "total"))
        table.add_row(str(rank), *(f"{value:.2f}" for value in row))
    return table


def _ms(time_ns: int) -> str:
    return f"{time_ns / 1e6:,.1f} ms"
