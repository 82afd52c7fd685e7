"""Theorem 1 in the flesh: real jobs whose chosen regions beat none at all and the whole model.

    python experiments/theorem_one.py --models llama,vgg,gpt

Compiling modules as one graph makes them faster, and makes their gradients complete together, at
the region's end. So what is saved by a large region is paid for by gradients that could have been
on the wire (dPRO's Theorem 1). Each model trains on links on which its bytes take ``--ratio`` of
its compute, recorded. The optimizer chooses regions and buckets, with leave to compile. Then its
choice runs in turn with the same buckets and no regions, and with the whole model as one region.

Printed are iterations in milliseconds, how much faster the choice is, and for each way how many
bytes were ready, on average over the backward pass: eager modules hand their gradients over early.
OUT/MODEL has a trace of a run of each way for https://ui.perfetto.dev. A model takes about five
minutes on two quiet cores; started again, with the same options and code, the script measures what
is missing.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from gains_cell import computed, run_once
from gains_cells import ALL_REDUCE, Cell, job_of
from measured_with import begin_with, check_measured_with
from rich import box
from rich.table import Table
from script import check_least, progress_of, run_script

from byteprophet.cli.lists import split
from byteprophet.cli.main import run_cli
from byteprophet.errors import JobFailed, UserError
from byteprophet.input_files import read_json
from byteprophet.job import Job
from byteprophet.job.region_costs import read_region_costs
from byteprophet.job.strategy import Region
from byteprophet.job.strategy_file import Used, read_strategy_file, write_strategy
from byteprophet.launcher.given_strategy import with_strategy
from byteprophet.measure.run import Run
from byteprophet.measure.servers import Measured, measure_run
from byteprophet.network import why_not_permitted
from byteprophet.replay.predict import warmup_of
from byteprophet.report.console import table_console

EAGER, CHOSEN, WHOLE = "no regions", "chosen regions", "the whole model"
_PASSES = "compile,tensor-fusion"


def main(arguments: Sequence[str]) -> None:
    """Run, print."""
    options = _parse(arguments)
    check_least(options, ranks=2, ratio=0.01, rounds=1, iterations=1, budget_s=1)
    cells = [
        Cell(model, ALL_REDUCE, options.ranks, options.ratio)
        for model in split(options.models, "--models")
    ]
    reason = why_not_permitted()
    if reason is not None:
        raise UserError(f"limited links need network namespaces: {reason}")
    for cell in cells:
        check_measured_with(options.out / cell.name, _effort(options))
    table = Table("model", "regions", "way", "ms", "over the choice", "bytes ready", box=box.SIMPLE)
    for cell in cells:
        for row in rows_of(cell, options):
            table.add_row(*row)
    console = table_console(110)
    console.print(table)
    console.print(
        "over the choice: how many times as long as the chosen regions take. bytes ready: the mean "
        "share of a backward pass after which a byte is ready; 1 means at its end."
    )


def rows_of(cell: Cell, options: argparse.Namespace) -> list[list[str]]:
    """A row for each way in which the cell's job ran. Raises JobFailed if one fails."""
    say = progress_of(cell.name)
    directory = options.out / cell.name
    begin_with(directory, _effort(options))
    runs = directory / "runs"
    size_bytes, compute_ns = computed(cell, options.out, options.iterations, say)
    bandwidth_bps = cell.bandwidth_bps(size_bytes, compute_ns)
    base = job_of(cell, bandwidth_bps, options.iterations, runs)
    say("as recorded")
    recorded = run_once(base, directory / "recorded")
    result, optimized = directory / "result.json", directory / "optimized"
    if not result.exists():
        say("optimize")
        given = ["--allow", "compile", "--pass", _PASSES, "--budget-s", f"{options.budget_s:g}"]
        saved = ["--out", str(optimized), "--json", str(result)]
        if run_cli(["optimize", str(recorded), *given, *saved]) != 0:
            raise JobFailed(f"byteprophet optimize {recorded} has failed")
    found = read_json(result)
    used = None if found["strategy"] is None else read_strategy_file(Path(found["strategy"]))
    if used is None or not any(region.compiled for region in used.strategy.regions):
        return [[cell.model, "none pays", "", "", "", ""]]
    (whole,) = read_region_costs(optimized / "regions" / "region-costs.json").chains[0]
    ran: dict[str, list[Measured]] = {EAGER: [], CHOSEN: [], WHOLE: []}
    for number in range(1, options.rounds + 1):
        for way, changed in _ways(used, whole).items():
            path = directory / f"{way.replace(' ', '-')}.json"
            write_strategy(path, changed)
            say(f"round {number} of {options.rounds}: {way}")
            kept = directory / f"{path.stem}-{number}"
            run = Run(run_once(with_strategy(base, changed, path), kept))
            ran[way].append(measure_run(run))
            if number == 1:
                trace = directory / f"{path.stem}.trace.json.gz"
                run_cli(
                    ["timeline", str(run.directory), "--format", "perfetto", "--out", str(trace)]
                )
    times_ns = {way: _median_ns(each) for way, each in ran.items()}
    regions = len(used.strategy.regions)
    return [
        [
            cell.model,
            str(regions),
            way,
            f"{times_ns[way] / 1e6:.1f}",
            f"{times_ns[way] / times_ns[CHOSEN]:.3f}",
            f"{np.mean([ready_share(each.job) for each in measured]):.2f}",
        ]
        for way, measured in ran.items()
    ]


def _effort(options: argparse.Namespace) -> dict[str, float]:
    """With what runs of a cell are measured; its model, ranks and ratio are in its name."""
    return {"iterations": options.iterations, "budget_s": options.budget_s}


def ready_share(job: Job) -> float:
    """The mean over all bytes of when each is ready, as a share of the backward pass."""
    sizes = np.array(job.model.sizes_bytes)
    shares = job.times.ready_ns / np.maximum(1, job.times.ready_ns.max(axis=2, keepdims=True))
    return float((shares * sizes).sum(axis=2).mean() / sizes.sum())


def _ways(used: Used, whole: tuple[str, ...]) -> dict[str, Used]:
    """The strategy with each choice of regions."""
    regions = {EAGER: (), CHOSEN: used.strategy.regions, WHOLE: (Region(whole, compiled=True),)}
    return {
        way: replace(used, strategy=replace(used.strategy, regions=each))
        for way, each in regions.items()
    }


def _median_ns(ran: Sequence[Measured]) -> float:
    counted = [each.iteration_ns[warmup_of(each) :] for each in ran]
    return float(np.median(np.concatenate(counted)))


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Compare chosen regions with no regions and with the whole model as one.",
        epilog="example: python experiments/theorem_one.py --models llama --rounds 1",
    )
    parser.add_argument("--models", default="llama,vgg,gpt", help="of models/, by commas")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--ratio", type=float, default=1.0, help="communication over compute")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each way")
    parser.add_argument("--iterations", type=int, default=30, help="of each job")
    parser.add_argument("--budget-s", type=float, default=300.0, help="of each search")
    parser.add_argument("--out", type=Path, default=Path("runs/theorem_one"), help="of the runs")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    run_script(main)
