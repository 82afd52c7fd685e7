"""Wait and transfer of each gradient, in forward order: the paper's Figure 11.

    python experiments/per_gradient.py

Records the jobs of ``utilisation.py`` under each policy and keeps them (``recorded.py``). Shows
medians over the measured iterations of worker 0, per gradient:

- *wait*: from when the gradient is ready to when its first partition is sent;
- *transfer*: from then until the sum of its last partition has been pulled.

Both depend on model, link and cluster. The paper's averages are shown for comparison of the ratios
between policies. The paper's MXNet corresponds to fifo here; stock records nothing. Writes
``per_gradient.json`` and, per workload, ``per_gradient-<workload>.png`` to experiments/results.
Takes two minutes on two cores if the jobs are not there yet.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from recorded import Recorded, add_options, jobs, write_rows
from rich import box
from rich.table import Table
from script import run_script

from byteprophet import schedulers
from byteprophet.bench.case import WARMUP_ITERATIONS
from byteprophet.cli.lists import split
from byteprophet.errors import UserError
from byteprophet.network import format_rate
from byteprophet.report.console import table_console
from byteprophet.report.plot import save, style_of
from byteprophet.timeline.tables import Transfers, tensor_of

GRADIENT = 30  # the paper's example, in forward order
# ResNet-50 there, in ms: averages over gradients, then the example's. None: not reported.
PAPER_MS: Mapping[str, tuple[float | None, float, float, float]] = {
    "fifo": (None, 446, 0.787, 440.065),
    "bytescheduler": (67, 135, 10.359, 56.357),
    "prophet": (26, 125, 3.207, 22.710),
}

Row = Mapping[str, Any]


def main(arguments: Sequence[str]) -> None:
    """Run missing jobs, print and draw."""
    parser = argparse.ArgumentParser(
        description="Record jobs and show how long each gradient waited and travelled.",
        epilog="example: python experiments/per_gradient.py --schedulers fifo,prophet",
    )
    add_options(parser, "fifo,p3,bytescheduler,prophet")
    options = parser.parse_args(arguments)
    if schedulers.STOCK in split(options.schedulers, "--schedulers"):
        raise UserError("--schedulers: stock records nothing")
    rows = [row_of(job) for job in jobs(options)]
    saved = [options.out / "per_gradient.json"]
    write_rows(saved[0], options, rows)
    for workload in dict.fromkeys(row["workload"] for row in rows):
        chosen = [row for row in rows if row["workload"] == workload]
        table_console(140).print(_table(chosen))
        saved.append(options.out / f"per_gradient-{workload}.png")
        save(draw(chosen), saved[-1])
    print(f"saved: {', '.join(map(str, saved))}")


def row_of(job: Recorded) -> dict[str, Any]:
    """Medians and averages of one job."""
    transfers = job.transfers()
    gradients = per_gradient(transfers[transfers["iteration"] > WARMUP_ITERATIONS])
    return {
        **job.facts(),
        "mean_wait_ns": int(np.mean([gradient["wait_ns"] for gradient in gradients])),
        "mean_transfer_ns": int(np.mean([gradient["transfer_ns"] for gradient in gradients])),
        "gradients": gradients,
        "run": job.directory.name,
    }


def per_gradient(transfers: Transfers) -> list[dict[str, int]]:
    """Per gradient in forward order, medians over iterations.

    ``ready_ns`` counts from the iteration's first ready gradient. If a gradient was not sent in
    some iterations, its medians are over the others. Gradients without a place in forward order are
    left out, and so are those that never came back.
    """
    known = np.all([transfers[name] > 0 for name in ("ready_ns", "sent_ns", "pulled_ns")], axis=0)
    ranked = transfers[known & (transfers["priority"] < 0)]
    iterations, at = np.unique(ranked["iteration"], return_inverse=True)
    begins_ns = np.full(len(iterations), np.iinfo(np.int64).max)
    np.minimum.at(begins_ns, at, ranked["ready_ns"])
    found = []
    for tensor in np.unique(tensor_of(ranked)):
        rows = []
        mine = tensor_of(ranked) == tensor
        for number in np.unique(at[mine]):
            parts = ranked[mine & (at == number)]
            ready_ns, sent_ns = parts["ready_ns"].min(), parts["sent_ns"].min()
            pulled_ns = parts["pulled_ns"].max()
            rows.append((ready_ns - begins_ns[number], sent_ns - ready_ns, pulled_ns - sent_ns))
        ready, wait, transfer = np.median(rows, axis=0)
        last = ranked[mine][-1]
        found.append(
            {
                "order": -1 - int(last["priority"]),
                "size_bytes": int(parts["size_bytes"].sum()),
                "ready_ns": int(ready),
                "wait_ns": int(wait),
                "transfer_ns": int(transfer),
            }
        )
    return sorted(found, key=lambda gradient: gradient["order"])


def _table(rows: Sequence[Row]) -> Table:
    first = rows[0]
    table = Table(
        title=f"{first['workload']}, paced, {format_rate(first['bandwidth_bps'])}: ms, "
        f"{len(first['gradients'])} gradients (paper: ResNet50, its cluster)",
        box=box.SIMPLE_HEAD,
        title_justify="left",
    )
    table.add_column("scheduler")
    for name in ("mean wait", "mean transfer", "wait of 30", "transfer of 30"):
        table.add_column(name, justify="right")
        table.add_column("paper", justify="right")
    for row in rows:
        paper = PAPER_MS.get(row["scheduler"], (None,) * 4)
        example = next((g for g in row["gradients"] if g["order"] == GRADIENT), None)
        values = [row["mean_wait_ns"], row["mean_transfer_ns"]]
        values += [None, None] if example is None else [example["wait_ns"], example["transfer_ns"]]
        cells = [
            text
            for value, there in zip(values, paper, strict=True)
            for text in (
                "" if value is None else f"{value / 1e6:.1f}",
                "" if there is None else f"{there:g}",
            )
        ]
        table.add_row(row["scheduler"], *cells)
    return table


def draw(rows: Sequence[Row]) -> Figure:
    """One panel per policy: waits light, transfers dark, from the first ready gradient on."""
    figure = Figure(figsize=(1.0 + 3.4 * len(rows), 4.6), layout="constrained")
    panels = figure.subplots(1, len(rows), sharey=True, squeeze=False)[0]
    for row, axes in zip(rows, panels, strict=True):
        colour, _ = style_of(row["scheduler"])
        order = [gradient["order"] for gradient in row["gradients"]]
        ready, wait, transfer = (
            np.array([gradient[name] for gradient in row["gradients"]]) / 1e6
            for name in ("ready_ns", "wait_ns", "transfer_ns")
        )
        axes.vlines(order, ready, ready + wait, color="#bbbbbb", linewidth=1.2, label="wait")
        sent = ready + wait
        axes.vlines(order, sent, sent + transfer, color=colour, linewidth=1.2, label="transfer")
        axes.plot(order, ready, ".", color="#000000", markersize=2, label="ready")
        axes.set_title(
            f"{row['scheduler']}\nwait {row['mean_wait_ns'] / 1e6:.1f} ms, transfer "
            f"{row['mean_transfer_ns'] / 1e6:.1f} ms on average",
            loc="left",
            fontsize=9,
        )
        axes.set_xlabel("gradient, in forward order")
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].legend(frameon=False, fontsize=8, loc="lower left")
    panels[0].set_ylabel("ms after the first ready gradient")
    first = rows[0]
    figure.suptitle(
        f"{first['workload']}, paced, {first['workers']} workers, {first['servers']} server, "
        f"{format_rate(first['bandwidth_bps'])}; medians over iterations of worker 0",
        fontsize="medium",
    )
    return figure


if __name__ == "__main__":
    run_script(main)
