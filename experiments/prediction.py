"""How well the engine predicts: iteration times of real jobs beside those of simulated ones.

    byteprophet bench --workload resnet50 --bandwidth 1gbit --json measured.json
    python experiments/prediction.py measured.json

Reads files that ``byteprophet bench --json`` wrote, simulates every row's job with the default
costs, and prints both times and the error. Then one delay and one message cost are looked for that
fit all rows best (mean absolute error), to be compared with the defaults: at least two rows with
partitions of different sizes are needed to tell them apart. Errors are against medians; what other
load on the machine adds is in them. Rows of jobs whose links or settings changed in mid-run are
refused.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.table import Table
from script import run_script

from byteprophet import _core, schedulers
from byteprophet.bench.runtimes import BYTEPS
from byteprophet.engine import COSTS, paced_job, simulate
from byteprophet.errors import UserError
from byteprophet.input_files import read_json
from byteprophet.job import Costs
from byteprophet.network import format_rate
from byteprophet.report.console import table_console
from byteprophet.workload import load

_DELAYS_US = (50, 100, 200, 500, 1000, 2000, 4000)
_COSTS_US = (0, 5, 10, 20, 30, 50, 100, 200)
_FIELDS = {
    "bandwidth_bps",
    "iteration_ns",
    "paced",
    "partition_bytes",
    "runtime",
    "scheduler",
    "servers",
    "settings",
    "steps",
    "tuned",
    "worker_bandwidth_bps",
    "workers",
    "workload",
}


def main(arguments: Sequence[str]) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description="Compare bench results with simulated jobs.")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    rows = [row for path in options.files for row in _read(path)]
    costs, error = best_costs(rows)
    table = Table(box=None, pad_edge=False)
    for heading in ("link", "scheduler", "partition", "measured ms", "simulated ms", "error"):
        table.add_column(heading, justify="left" if heading == "scheduler" else "right")
    table.add_column("error, costs fitted", justify="right")
    for row in rows:
        measured_ns = row["iteration_ns"]["median"]
        simulated_ns = predict_ns(row, COSTS)
        table.add_row(
            format_rate(row["bandwidth_bps"]),
            row["scheduler"],
            str(row["partition_bytes"]),
            f"{measured_ns / 1e6:.1f}",
            f"{simulated_ns / 1e6:.1f}",
            f"{simulated_ns / measured_ns - 1:+.1%}",
            f"{predict_ns(row, costs) / measured_ns - 1:+.1%}",
        )
    console = table_console()
    console.print(table)
    console.print(
        f"mean absolute error: {mean_error(rows, COSTS):.1%}; at best {error:.1%}, "
        f"with a delay of {costs.delay_ns / 1e3:g} us and {costs.message_cost_ns / 1e3:g} us "
        "per message"
    )


def predict_ns(row: Mapping[str, Any], costs: Costs) -> int:
    """The simulated iteration of the job of a row of ``byteprophet bench --json``."""
    settings = row["settings"]
    known = {} if row["scheduler"] == schedulers.STOCK else _core.default_settings(row["scheduler"])
    # The row's own field has the size at the end, with which the job was measured.
    names = [name for name in known if name in settings and name != "partition_bytes"]
    job = paced_job(
        load(row["workload"]).scaled(settings["forward_ns"] + settings["backward_ns"]),
        row["scheduler"],
        {name: settings[name] for name in names},
        partition_bytes=row["partition_bytes"],
        workers=row["workers"],
        servers=row["servers"],
        bandwidth_bps=row["bandwidth_bps"],
        worker_bandwidth_bps={
            int(worker): rate_bps for worker, rate_bps in row["worker_bandwidth_bps"].items()
        },
        costs=costs,
    )
    return simulate(job).median_ns


def mean_error(rows: Sequence[Mapping[str, Any]], costs: Costs) -> float:
    """The mean absolute relative error of the predictions."""
    return fmean(abs(predict_ns(row, costs) / row["iteration_ns"]["median"] - 1) for row in rows)


def best_costs(rows: Sequence[Mapping[str, Any]]) -> tuple[Costs, float]:
    """The costs of the grid that fit best, and their mean error."""
    tried = [
        Costs(delay_ns=delay_us * 1000, message_cost_ns=cost_us * 1000)
        for delay_us, cost_us in itertools.product(_DELAYS_US, _COSTS_US)
    ]
    errors = [mean_error(rows, costs) for costs in tried]
    best = min(range(len(tried)), key=errors.__getitem__)
    return tried[best], errors[best]


def _read(path: Path) -> list[dict[str, Any]]:
    try:
        rows: list[dict[str, Any]] = read_json(path)["results"]
    except (UserError, KeyError, TypeError):
        raise UserError(f"{path}: is not a file of byteprophet bench --json") from None
    if not rows or not all(isinstance(row, dict) and row.keys() >= _FIELDS for row in rows):
        raise UserError(f"{path}: must have results, each with {', '.join(sorted(_FIELDS))}")
    for row in rows:
        if not row["paced"] or row["runtime"] != BYTEPS or row["steps"] or row["tuned"]:
            raise UserError(
                f"{path}: {row['scheduler'] or row['runtime']}: only paced jobs of BytePS whose "
                "links and settings stay as they are can be simulated"
            )
    return rows


if __name__ == "__main__":
    run_script(main)
