"""Our all-reduce runtimes beside DistributedDataParallel, FSDP2 and merged-gradient WFBP.

    python experiments/allreduce.py

Paced models (the DeAR paper's) over gloo, on links on which the all-reduce of all gradients takes
0.7 to 1.4 times the compute, two and four ranks. The opponents are tuned first
(``allreduce_cells.py``); then in each cell all runtimes run in turn, round after round, in reverse
order in every second one, the best three sizes of each opponent among them. The best of those
counts.
Printed are iterations in seconds and over the bound, DeAR's over what Eq. 6 of its paper allows,
and what planning gains over DistributedDataParallel, with the project's targets.

Jobs are recorded as a grid's are, in ``--out``: started again, the script runs what is missing.
``--report`` runs nothing; ``--slowed 2`` makes compute and links half as fast, for slow cores.
Some 20 s a job on two quiet cores, ten minutes per model with one opponent and one round.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from allreduce_cells import (
    MODELS,
    RATIOS,
    RUNTIMES,
    add_cell_options,
    cells_of,
    compared,
    counted,
    run_warmed,
    tuned_in,
    tuning,
)
from allreduce_table import print_table
from script import print_code_notes, progress_of, run_script

from byteprophet.bench.grid import Grid
from byteprophet.bench.grid_phases import in_turn
from byteprophet.bench.grid_run import namespaces_for, prepare
from byteprophet.cli.lists import split
from byteprophet.errors import UserError

_STAGES = ("tune-1", "tune-2")
_TUNING_ITERATIONS = 4
COMPARED = "compare"


def main(arguments: Sequence[str]) -> None:
    """Run what is missing, print."""
    options = _parse(arguments)
    names = split(options.runtimes, "--runtimes")
    for name in names:
        if name not in RUNTIMES:
            raise UserError(f"--runtimes: {name!r}: choose from {', '.join(RUNTIMES)}")
    if options.rounds < 1:
        raise UserError(f"--rounds {options.rounds}: must be at least 1")
    grid = Grid("allreduce", cells_of(options), options.iterations).slowed(options.slowed)
    if not options.report:
        measure(grid, names, options.rounds, options.out)
    records = [each for each in counted(grid, options.out) if each["phase"] == COMPARED]
    print_table(grid, records)
    print_code_notes(records)


def measure(grid: Grid, names: Sequence[str], rounds: int, directory: Path) -> None:
    """Tune, then compare in every cell; what there is already is not run again."""
    namespaces = namespaces_for(grid)
    prepared = prepare(grid, directory)
    tuned = replace(grid, iterations=_TUNING_ITERATIONS)

    def run(grid: Grid, phase: str, rounds: int) -> None:
        records = counted(tuned, directory)
        variants = []
        for cell in grid.cells:
            place = tuned_in(cell, grid.cells)
            tried = [r for r in records if r["cell"] == place.name and r["phase"] in _STAGES]
            if phase == COMPARED:
                variants.append(compared(names, tried))
            elif cell == place:
                stage = _STAGES.index(phase)
                before = [record for record in tried if record["phase"] in _STAGES[:stage]]
                variants.append(tuning(names, stage, before))
            else:
                variants.append([])
        jobs = in_turn(phase, prepared, variants, rounds)
        run_warmed(grid, prepared, jobs, directory, namespaces, progress_of("allreduce"))

    for phase in _STAGES:
        run(tuned, phase, 1)
    run(grid, COMPARED, rounds)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Compare all-reduce runtimes on paced models behind limited links.",
        epilog="example: python experiments/allreduce.py --models resnet50 --ratios 1.0 --ranks 2",
    )
    add_cell_options(
        parser,
        models=",".join(MODELS),
        ratios=",".join(map(str, RATIOS)),
        ranks="2,4",
        out="runs/allreduce",
    )
    parser.add_argument("--runtimes", default=",".join(RUNTIMES))
    parser.add_argument("--rounds", type=int, default=3, help="jobs of each runtime in a cell")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    run_script(main)
