"""Compressed gradients: bytes beside those stated, and accuracy beside that without compression.

    python experiments/compressors.py

Ranks on hosts of their own, behind limited links, train the model of ``digits/`` under a strategy
per compressor: nothing compressed, top-k, random-k, one-bit, dithering and PowerSGD, each with
error feedback. All weights of convolutions and of the last layer are compressed. Parameters of
batch norm travel as they are.

Printed per compressor: what docs/compression.md states that a rank sends per iteration, what the
process counts over that, what the interface of its host counts over it (with the headers of TCP/IP
and Ethernet), and the accuracy on the test set, as means over ``--seeds``. Ranks that end with
different parameters are an error.

With ``--predict``, one more job is recorded, without compression, and what the replay makes of it
under each compressor is printed beside the measured time of an iteration.

Writes ``compressors.json`` to ``--out``, and goes on where it stopped. A job takes up to
three minutes on busy cores.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from compressors_worker import COMPRESSORS, LEAST_BYTES, NONE, WARM_UP
from rank_results import rank_results
from recorded import add_places
from rich import box
from rich.console import Console
from rich.table import Table
from rows import Row, Rows
from script import run_script

from byteprophet.cli.lists import split
from byteprophet.errors import UserError
from byteprophet.job.compression import PowerSgd
from byteprophet.job.compression_file import read_compressors
from byteprophet.job.strategy import with_compressed
from byteprophet.launcher import make_run_directory
from byteprophet.measure.run import Run
from byteprophet.measure.servers import measure_run
from byteprophet.optimize.compressing_costs import with_compressing_costs
from byteprophet.strategy.explanation import explain

_WORKER = Path(__file__).parent / "compressors_worker.py"


def main(arguments: Sequence[str]) -> None:
    """Run what is missing, print, save."""
    options = _parse(arguments)
    cells = [
        {"compressor": name, "seed": seed}
        for seed in range(1, options.seeds + 1)
        for name in _names(options.compressors)
    ]
    settings = {name: getattr(options, name) for name in ("ranks", "iterations", "bandwidth")}
    rows = Rows(options.out / "compressors.json", settings, paced=False)

    def run(cell: Row) -> Row:
        return measure(cell, options)

    found = rows.complete(cells, lambda cell: f"{cell['compressor']}, {cell['seed']}", run)
    predicted = predictions(options) if options.predict else {}
    Console().print(table_of(found, predicted))


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Measure bytes and accuracy of compressed gradients.",
        epilog="example: python experiments/compressors.py --compressors none,topk --seeds 1",
    )
    parser.add_argument("--compressors", default=",".join(COMPRESSORS))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=3, help="jobs per compressor")
    parser.add_argument("--iterations", type=int, default=132, help="updates of each job")
    parser.add_argument("--bandwidth", default="1gbit", help="of each rank's link")
    parser.add_argument("--predict", action="store_true", help="predict times, too")
    add_places(parser)
    options = parser.parse_args(arguments)
    if options.iterations <= WARM_UP:
        raise UserError(f"--iterations {options.iterations}: must be more than {WARM_UP}")
    return options


def _names(text: str) -> list[str]:
    names = split(text, "--compressors")
    for name in names:
        if name not in COMPRESSORS:
            raise UserError(f"--compressors: there is no {name!r}; have {', '.join(COMPRESSORS)}")
    return names


def measure(cell: Row, options: argparse.Namespace) -> dict[str, Any]:
    """Run one job; bytes are means of its ranks, the accuracy is rank 0's."""
    name, seed = cell["compressor"], cell["seed"]
    command = (sys.executable, str(_WORKER), name, str(seed), str(options.iterations))
    label = f"compressors-{name}-{seed}"
    ranks = rank_results(command, options, label, "compressors-*.json")
    means = {name: fmean(rank[name] for rank in ranks) for name in ranks[0]}
    return {**means, "accuracy": ranks[0]["accuracy"]}


def predictions(options: argparse.Namespace) -> dict[str, int]:
    """An iteration under each compressor, in ns, by the replay of a job without compression."""
    label = "compressors-recorded"
    directory = make_run_directory(options.runs, label)
    command = (sys.executable, str(_WORKER), NONE, "1", str(options.iterations))
    rank_results(command, options, label, "compressors-*.json", directory)
    measured = measure_run(Run(directory))
    found = {}
    for name in _names(options.compressors):
        rule = COMPRESSORS[name]
        if rule.get("type") == PowerSgd.type:
            continue  # what it sends depends on shapes, which a run does not have
        job = measured.job
        if rule:
            everything = {"parameters": ["*"], "min_bytes": LEAST_BYTES, **rule}
            compressors = read_compressors([everything], job.model)
            job = replace(job, strategy=with_compressed(job.strategy, compressors))
        found[name] = explain(measured, with_compressing_costs(job)).predicted.iteration_ns
    return found


def table_of(rows: Sequence[Row], predicted: Mapping[str, int]) -> Table:
    """A line per compressor; ``predicted``: times of an iteration in ns."""
    columns = (
        "", "stated MB", "measured", "interface", "fewer bytes", "accuracy", "points", "ms",
        "predicted",
    )  # fmt: skip
    table = Table(*columns, box=box.SIMPLE)
    by_name: dict[str, list[Row]] = {}
    for row in rows:
        by_name.setdefault(row["compressor"], []).append(row)
    plain = by_name.get(NONE)
    for name, own in by_name.items():
        stated = fmean(row["stated_bytes"] for row in own)
        accuracy = fmean(row["accuracy"] for row in own)
        table.add_row(
            name,
            f"{stated / 1e6:.3f}",
            f"{fmean(row['payload_bytes'] for row in own) / stated:.3f}",
            f"{fmean(row['interface_bytes'] for row in own) / stated:.3f}",
            f"{plain[0]['stated_bytes'] / stated:.1f}" if plain else "",
            f"{accuracy:.2%}",
            f"{100 * (accuracy - fmean(r['accuracy'] for r in plain)):+.2f}" if plain else "",
            f"{fmean(row['iteration_ns'] for row in own) / 1e6:.0f}",
            f"{predicted[name] / 1e6:.0f}" if name in predicted else "",
        )
    return table


if __name__ == "__main__":
    run_script(main)
