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

Writes ``compressors.json`` to ``--out``, and goes on where it stopped. A job takes up to
three minutes on busy cores.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from compressors_worker import COMPRESSORS, WARM_UP
from rank_results import rank_results
from recorded import add_places
from rich import box
from rich.console import Console
from rich.table import Table
from rows import Row, Rows
from script import run_script

from byteprophet.cli.lists import split
from byteprophet.errors import UserError

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
    Console().print(table_of(found))


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


def table_of(rows: Sequence[Row]) -> Table:
    """A line per compressor."""
    columns = ("", "stated MB", "measured", "interface", "fewer bytes", "accuracy", "points", "ms")
    table = Table(*columns, box=box.SIMPLE)
    by_name: dict[str, list[Row]] = {}
    for row in rows:
        by_name.setdefault(row["compressor"], []).append(row)
    plain = by_name.get("none")
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
        )
    return table


if __name__ == "__main__":
    run_script(main)
