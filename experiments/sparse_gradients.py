"""Sparse gradients: bytes and time by rows, dense, and under DistributedDataParallel.

    python experiments/sparse_gradients.py

Four ranks, each on a host of its own behind a limited link, train two models with embeddings on
skewed draws (Zipf 1.05): one like NCF (tables of 138,493 and 26,744 rows of 64 numbers) and one
like the LM1B benchmark, with an eighth of its words (two tables of 99,184 rows of 512). A job each:
*rows*, our ``allreduce`` with ``sparse=True``; *dense*, the same with ``sparse=False``; and *ddp*,
DistributedDataParallel with ``sparse=True``, which all-gathers rows.

Printed per job: what a rank's interface sends per iteration; that over what the formula foretells
for the rows that the ranks have in fact touched (allreduce/rows.py); and the iteration time. Below:
what other ways would take (rows by owner and the union back, an all-gather of all rows, dense
gradients), and what any way takes at least.

Writes ``sparse.json`` to ``--out``, and goes on where it stopped. Three minutes on two cores.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from rank_results import rank_results
from recorded import add_places
from rich import box
from rich.console import Console
from rich.table import Table
from rows import Row, Rows
from script import run_script
from sparse_worker import MODELS

from byteprophet.cli.lists import split
from byteprophet.errors import UserError

VARIANTS = ("rows", "dense", "ddp")
_WORKER = Path(__file__).parent / "sparse_worker.py"


def main(arguments: Sequence[str]) -> None:
    """Run what is missing, print, save."""
    options = _parse(arguments)
    cells = [
        {"model": model, "variant": variant}
        for model in _known(options.models, "--models", MODELS)
        for variant in _known(options.variants, "--variants", VARIANTS)
    ]
    names = ("ranks", "batch", "iterations", "bandwidth")
    settings = {name: getattr(options, name) for name in names}
    rows = Rows(options.out / "sparse.json", settings, paced=False)

    def run(cell: Row) -> Row:
        return measure(cell, options)

    found = rows.complete(cells, lambda cell: f"{cell['model']}, {cell['variant']}", run)
    Console().print(table_of(found))
    for row in found:
        if row["variant"] == "rows":
            print(other_ways(row))


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Compare sparse gradients by rows with dense ones and DistributedDataParallel.",
        epilog="example: python experiments/sparse_gradients.py --models ncf --bandwidth 500mbit",
    )
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--variants", default=",".join(VARIANTS))
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--batch", type=int, default=4096, help="rows that a rank draws per table")
    parser.add_argument("--iterations", type=int, default=5, help="measured ones of each job")
    parser.add_argument("--bandwidth", default="1gbit", help="of each rank's link")
    add_places(parser)
    return parser.parse_args(arguments)


def _known(text: str, option: str, known: Any) -> list[str]:
    names = split(text, option)
    for name in names:
        if name not in known:
            raise UserError(f"{option}: there is no {name!r}; have {', '.join(known)}")
    return names


def measure(cell: Row, options: argparse.Namespace) -> dict[str, Any]:
    """Run one job; the means of its ranks."""
    numbers = map(str, (options.batch, options.iterations))
    command = (sys.executable, str(_WORKER), cell["model"], cell["variant"], *numbers)
    label = f"sparse-{cell['model']}-{cell['variant']}"
    ranks = rank_results(command, options, label, "sparse-*.json")
    return {name: fmean(rank[name] for rank in ranks) for name in ranks[0]}


def foretold_bytes(row: Row) -> float:
    """What a rank is to send per iteration."""
    ways = {"rows": "rows", "dense": "dense", "ddp": "gathered"}
    return float(row["other_bytes"] + row[ways[row["variant"]]])


def table_of(rows: Sequence[Row]) -> Table:
    """A line per job."""
    table = Table("model", "", "MB sent", "of foretold", "ms", "of rows", box=box.SIMPLE)
    for row in rows:
        mine = next((r for r in rows if r["model"] == row["model"] and r["variant"] == "rows"), row)
        table.add_row(
            row["model"],
            row["variant"],
            f"{row['sent_bytes'] / 1e6:.2f}",
            f"{row['sent_bytes'] / foretold_bytes(row):.3f}",
            f"{row['iteration_ns'] / 1e6:.0f}",
            f"{row['sent_bytes'] / mine['sent_bytes']:.2f}",
        )
    return table


def other_ways(row: Row) -> str:
    """What other ways would send, over ours; with what is dense in the model in each."""
    other = row["other_bytes"]
    ours = other + row["rows"]
    times = {way: (other + row[way]) / ours for way in ("by_owner", "gathered", "dense", "least")}
    return (
        f"{row['model']}: by formula, rows by owner would send {times['by_owner']:.3f} times as "
        f"much, an all-gather {times['gathered']:.3f} times, and dense gradients "
        f"{times['dense']:.1f} times; no way sends less than {times['least']:.3f} times"
    )


if __name__ == "__main__":
    run_script(main)
