"""What ``allreduce.py`` measures: cells, and the settings that opponents are tuned over.

``fusion.py`` measures in the same cells, with the same options.

Opponents are tuned on one link per model and number of ranks, that whose all-reduce takes as long
as the compute (or the one nearest to it), in stages, one job per candidate. A stage changes some
settings of the best candidate before it: first what decides most, the size of buckets or units,
then the switches. On every link the best sizes, each with its best switches, are compared.

How long a job warms up depends on what has to be found out in it.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from script import add_record_options, numbers, ratios

from byteprophet.bench.grid import Cell, Grid
from byteprophet.bench.grid_jobs import Job, PreparedCell, Variant
from byteprophet.bench.grid_report import select
from byteprophet.bench.grid_run import Progress, run_jobs
from byteprophet.bench.grid_store import Record, read_records
from byteprophet.cli.lists import split
from byteprophet.paced.collective_settings import settles_after

MODELS = ("resnet50", "densenet201", "inception-v4", "bert-base")
RATIOS = (0.7, 0.9, 1.0, 1.2, 1.4)
RUNTIMES = ("ddp", "fsdp2", "wfbp", "allreduce", "dear", "dear-planned")
CONFIRMED = 3
"""So many of an opponent's sizes run in every round of the comparison."""

_WARMUP = 3  # where nothing is to be found out

_MIB = 1 << 20
_Overrides = Mapping[str, int]
_STAGES: Mapping[str, tuple[tuple[_Overrides, ...], ...]] = {
    "ddp": (
        tuple({"bucket_cap_mb": size} for size in (1, 2, 4, 8, 16, 25)),
        (
            {"static_graph": 0},
            {"gradient_as_bucket_view": 0},
            {"static_graph": 0, "gradient_as_bucket_view": 0},
        ),
    ),
    "fsdp2": (
        tuple({"unit_bytes": size * _MIB} for size in (1, 2, 4, 8, 16)),
        ({"all_to_all": 0},),
    ),
    # Merged by what the link and the model are; tried is only what a message is taken to cost.
    "wfbp": (tuple({"message_cost_ns": cost} for cost in (300_000, 1_000_000, 3_000_000)), ()),
}


@dataclass(frozen=True)
class Setting:
    """One cell: the all-reduce of all gradients takes ``ratio`` times the compute."""

    model: str
    ratio: float
    ranks: int


def cell_of(setting: Setting) -> Cell:
    """The grid's cell, whose link is stated by one-way communication of all bytes instead."""
    one_way = setting.ratio * setting.ranks / (2 * (setting.ranks - 1))
    name = f"{setting.model.rpartition('/')[2]}-r{setting.ratio:g}-{setting.ranks}p"
    return Cell(setting.model, one_way, workers=setting.ranks, name=name)


def add_cell_options(
    parser: argparse.ArgumentParser, *, models: str, ratios: str, ranks: str, out: str
) -> None:
    """Which cells, and how they are measured; the rest are defaults."""
    parser.add_argument("--models", default=models)
    parser.add_argument("--ratios", default=ratios, help="all-reduce time over compute time")
    parser.add_argument("--ranks", default=ranks)
    parser.add_argument("--iterations", type=int, default=6, help="measured ones of each job")
    add_record_options(parser, out)


def cells_of(options: argparse.Namespace) -> tuple[Cell, ...]:
    """Those that the options name; UserError for one that there cannot be."""
    return tuple(
        cell_of(Setting(model, ratio, ranks))
        for model in split(options.models, "--models")
        for ranks in numbers(options.ranks, "--ranks", int, 2, 100)
        for ratio in ratios(options.ratios)
    )


def tuned_in(cell: Cell, cells: Sequence[Cell]) -> Cell:
    """The one of ``cells`` in which the opponents of ``cell`` are tuned."""
    alike = [
        each for each in cells if (each.workload, each.workers) == (cell.workload, cell.workers)
    ]
    return min(alike, key=lambda each: abs(ratio_of(each) - 1))


def ratio_of(cell: Cell) -> float:
    """Of a cell by ``cell_of``: the time of the all-reduce over that of the compute."""
    assert not isinstance(cell.link, str)
    return cell.link * 2 * (cell.workers - 1) / cell.workers


def tuning(names: Sequence[str], stage: int, tried: Sequence[Record]) -> list[Variant]:
    """The candidates of ``stage``, from 0. ``tried``: a cell's records of the stages before."""
    variants = []
    for name in names:
        if name in _STAGES:
            before = best(name, tried)
            start = before[0].settings if before else {}
            variants += [
                Variant.of_runtime(name, {**start, **overrides})
                for overrides in _STAGES[name][stage]
            ]
    return variants


def compared(names: Sequence[str], tried: Sequence[Record]) -> list[Variant]:
    """What is measured beside one another in a cell: opponents at their best, ours as they are."""
    variants = []
    for name in names:
        variants += _best_sizes(name, tried) if name in _STAGES else [Variant.of_runtime(name, {})]
    return variants


def best(name: str, records: Sequence[Record]) -> list[Variant]:
    """The variants of runtime ``name`` that ``records`` are of, fastest first."""
    own = [record for record in records if record["runtime"] == name]
    times_ns: dict[str, list[int]] = {}
    for record in own:
        times_ns.setdefault(record["variant"], []).extend(record["iteration_ns"])
    variants = {record["variant"]: Variant.of_record(record) for record in own}
    return [variants[label] for label in sorted(times_ns, key=lambda each: median(times_ns[each]))]


def _best_sizes(name: str, tried: Sequence[Record]) -> list[Variant]:
    """Of an opponent: of its best sizes the best variant each."""
    (size,) = _STAGES[name][0][0]
    sized: dict[int, Variant] = {}
    for variant in best(name, tried):
        sized.setdefault(variant.settings[size], variant)
    return list(sized.values())[:CONFIRMED]


def warmup_of(variant: Variant) -> int:
    """Iterations until ``variant`` stays as it is."""
    return settles_after(variant.runtime, variant.settings) or _WARMUP


def run_warmed(
    grid: Grid,
    prepared: Sequence[PreparedCell],
    jobs: Sequence[Job],
    directory: Path,
    namespaces: bool,
    progress: Progress,
) -> None:
    """Runs what is missing of ``jobs`` in their order, each with its warm-up."""
    for warmup, alike in itertools.groupby(jobs, lambda job: warmup_of(job.variant)):
        warmed = replace(grid, warmup_iterations=warmup)
        run_jobs(warmed, prepared, list(alike), directory, namespaces, progress)


def counted(grid: Grid, directory: Path) -> list[Record]:
    """The records of ``grid`` in ``directory``, each with the warm-up that it should have."""
    records = read_records(directory)
    chosen: list[Record] = []
    for warmup in sorted({warmup_of(Variant.of_record(record)) for record in records}):
        alike = [record for record in records if warmup_of(Variant.of_record(record)) == warmup]
        chosen += select(replace(grid, warmup_iterations=warmup), alike)
    return chosen
