"""How often the simulator's interval holds the measured time, on public measurements.

    python experiments/groundtruth_intervals.py --data FOLDER

FOLDER is that of ``groundtruth.py``. For each set of rows, the table has the share that is in the
interval, which should be 90%, and how far the interval reaches below and above the prediction, in
the median. "As shipped" is with the constants that the simulator comes with. "Calibrated" is with
constants from other rows of the set, as ``byteprophet simulate --calibrate`` makes them: vTrain's
rows from the other half of them, for both halves in turn; MLPerf's from the run with the fewest
GPUs of the same round and model. MLPerf's runs use FP8, so the cluster has the peak of that; no
constant that is shipped holds for it. Takes three minutes.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import groundtruth_mlperf
import groundtruth_vtrain
import numpy as np
from groundtruth_scores import fitted_and_tested
from rich.table import Table
from script import run_script

from byteprophet.errors import UserError
from byteprophet.report.console import table_console
from byteprophet.simulate.calibrate.fit import Measured, calibrate
from byteprophet.simulate.calibrate.interval import interval
from byteprophet.simulate.clusters.description import Cluster, find_cluster
from byteprophet.simulate.execute.simulate import simulate_program

_RUNS = ("gpt3", "H100"), ("llama31_405b", "H100")
FP8_FLOPS = 1_979_000_000_000_000
"""The H100 data sheet's peak for FP8, without sparsity."""


@dataclass(frozen=True)
class Seen:
    """Of one row: whether the interval holds it, and its ends over the prediction, less 1."""

    holds: bool
    low: float
    high: float


def look(rows: Sequence[Measured], cluster: Cluster) -> list[Seen]:
    """The intervals of rows on a cluster."""
    found = []
    for row in rows:
        result = simulate_program(row.program, cluster)
        ends = interval(result, cluster)
        found.append(
            Seen(
                ends.low_ns <= row.measured_ns <= ends.high_ns,
                ends.low_ns / result.iteration_ns - 1,
                ends.high_ns / result.iteration_ns - 1,
            )
        )
    return found


def main(arguments: Sequence[str]) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="the measurements")
    folder = parser.parse_args(arguments).data
    if not folder.is_dir():
        raise UserError(f"{folder}: there are no measurements; they are not in the repository")
    table = Table(box=None, pad_edge=False)
    table.add_column("measurements")
    for name in ("constants", "rows", "in the interval", "from", "to"):
        table.add_column(name, justify="right")
    rows = groundtruth_vtrain.rows(folder)
    shipped = find_cluster(groundtruth_vtrain.CLUSTER)
    _add(table, "vTrain, 64 to 512 A100", "as shipped", look(rows, shipped))
    seen: list[Seen] = []
    for fitted, tested in fitted_and_tested(rows, None):
        seen += look(tested, calibrate(fitted, shipped, "vTrain").cluster)
    _add(table, "vTrain, 64 to 512 A100", "calibrated", seen)
    h100 = find_cluster("dgx-h100")
    h100 = replace(h100, gpu=replace(h100.gpu, flops_per_s=FP8_FLOPS))
    seen = []
    runs = [row for row in groundtruth_mlperf.rows(folder) if row.kind in _RUNS]
    for first, others in groundtruth_mlperf.pairs(runs, None, by_round=True):
        seen += look(others, calibrate([first], h100, "MLPerf").cluster)
    _add(table, "MLPerf, 768 to 10,752 H100", "calibrated", seen)
    table_console().print(table)


def _add(table: Table, name: str, constants: str, seen: Sequence[Seen]) -> None:
    low, high = (float(np.median([getattr(one, end) for one in seen])) for end in ("low", "high"))
    holds = sum(one.holds for one in seen) / len(seen)
    table.add_row(name, constants, str(len(seen)), f"{holds:.0%}", f"{low:+.0%}", f"{high:+.0%}")


if __name__ == "__main__":
    run_script(main)
