"""Compute and link utilisation of a worker over time: the paper's Figures 2, 9 and 10.

    python experiments/utilisation.py

Two workers and a server run paced ResNet-50 (0.3 s forward, 0.6 s backward) and ResNet-152 on links
of 1 Gbit/s under each scheduler once. Of worker 0 and the measured iterations:

- *compute*: the share of time in which a layer runs, as it is stated to take (the rest is waits,
  and what a layer's host adds);
- *push*, *pull*: the share in which the link carries payload. A transfer is taken to have the link
  for its bytes / the link's payload rate, ending when it was complete or the next had to begin;
- *counters*: bytes that the interface counted, headers and all, over the link's rate, each way. For
  stock, which records no transfers, there is only this.

Recorded jobs are kept and not run again (``recorded.py``). Writes ``utilisation.json`` and, per
workload, ``utilisation-<workload>.png`` to experiments/results. Eight minutes on two cores.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure
from recorded import SCHEDULERS, Recorded, add_options, jobs, write_rows
from rich import box
from rich.table import Table
from script import run_script

from byteprophet import schedulers
from byteprophet.network import format_rate, payload_bps
from byteprophet.report.console import table_console
from byteprophet.report.plot import save, style_of

BIN_NS = 25_000_000
_SHOWN_ITERATIONS = 4  # of the slowest scheduler; the same time for all
# ResNet-50 on the paper's cluster: GPU utilisation (Figure 9), MB/s of a worker (Figure 10).
PAPER_COMPUTE = {"bytescheduler": 0.6785, "prophet": 0.9115}
PAPER_MB_S = {"bytescheduler": 7.5, "prophet": 10.3}

Row = Mapping[str, Any]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def main(arguments: Sequence[str]) -> None:
    """Run what is missing, print, draw."""
    parser = argparse.ArgumentParser(
        description="Record jobs and show how much of the time compute and links are busy.",
        epilog="example: python experiments/utilisation.py --workloads resnet50 --bandwidth 2gbit",
    )
    add_options(parser, SCHEDULERS, workloads="resnet50,resnet152")
    options = parser.parse_args(arguments)
    rows = [row_of(job) for job in jobs(options)]
    print_rows(rows)
    write_rows(options.out / "utilisation.json", options, rows)
    saved = [options.out / "utilisation.json"]
    for workload in dict.fromkeys(row["workload"] for row in rows):
        saved.append(options.out / f"utilisation-{workload}.png")
        save(draw([row for row in rows if row["workload"] == workload]), saved[-1])
    print(f"saved: {', '.join(map(str, saved))}")


def row_of(job: Recorded) -> dict[str, Any]:
    """The averages over the measured iterations, and what is drawn in bins of BIN_NS."""
    begin_ns, end_ns = job.measured()
    whole = np.array([begin_ns, end_ns])
    bins = np.arange(begin_ns, end_ns, BIN_NS)
    transfers = job.transfers()
    size_bytes = transfers["size_bytes"].astype(np.int64)
    link_bps = payload_bps(job.bandwidth_bps)
    assert link_bps is not None
    busy = {
        "compute": np.array(job.busy(), np.int64).reshape(-1, 2),
        "push": occupied(transfers["acked_ns"], size_bytes, link_bps),
        "pull": occupied(transfers["pulled_ns"], size_bytes, link_bps),
    }
    if job.case.scheduler == schedulers.STOCK:
        del busy["push"], busy["pull"]
    counters = job.counters()
    counted = {
        f"{name}_counters": (counters[:, 0], counters[:, column] * 8 / job.bandwidth_bps * 1e9)
        for name, column in (("push", 1), ("pull", 2))
    }
    curves = {name: running_total(intervals) for name, intervals in busy.items()} | counted
    workers = job.results()
    return {
        **job.facts(),
        "iterations": len(workers[0].iteration_ns),
        "average": {name: float(shares(curve, whole)[0]) for name, curve in curves.items()},
        "bin_ns": BIN_NS,
        "bins": {name: shares(curve, bins).round(3).tolist() for name, curve in curves.items()},
        "run": job.directory.name,
    }


def occupied(done_ns: Ints, size_bytes: Ints, link_bps: int) -> Ints:
    """When transfers had the link, shape (n, 2): as late as their ends and the next's begin allow.

    ``done_ns``: when each was complete. Transfers do not share the link: while several are under
    way, they take turns, and the sum is the same.
    """
    order = np.argsort(done_ns, kind="stable")
    took_ns = (size_bytes[order] * 8e9 / link_bps).astype(np.int64)
    intervals = np.zeros((len(order), 2), np.int64)
    next_ns = np.iinfo(np.int64).max
    for at in range(len(order) - 1, -1, -1):
        end_ns = min(int(done_ns[order[at]]), next_ns)
        next_ns = end_ns - int(took_ns[at])
        intervals[at] = next_ns, end_ns
    return intervals


def running_total(intervals: Ints) -> tuple[Ints, Floats]:
    """Edges of ``intervals`` (in order, no overlap), and the time inside them up to each edge."""
    took = (intervals[:, 1] - intervals[:, 0]).astype(np.float64)
    before = np.cumsum(took) - took
    return intervals.reshape(-1), np.column_stack([before, before + took]).reshape(-1)


def shares(curve: tuple[Ints, Floats], edges_ns: Ints) -> Floats:
    """Growth of ``curve`` (times, values) per time in each bin between ``edges_ns``."""
    times_ns, values = curve
    if not len(times_ns):
        return np.full(len(edges_ns) - 1, np.nan)
    # From the first edge on: stamps are too large for floating point to tell nanoseconds.
    at = np.interp(edges_ns - edges_ns[0], times_ns - edges_ns[0], values)
    result: Floats = np.diff(at) / np.diff(edges_ns)
    return result


def print_rows(rows: Sequence[Row]) -> None:
    """A table per workload; beside what the paper has numbers for, those."""
    console = table_console(140)
    for workload in dict.fromkeys(row["workload"] for row in rows):
        chosen = [row for row in rows if row["workload"] == workload]
        link = format_rate(chosen[0]["bandwidth_bps"])
        title = f"{workload}, paced, {link}: averages over {chosen[0]['iterations']} iterations"
        table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")
        table.add_column("scheduler")
        for heading in ("iteration ms", "compute", "paper", "push", "pull", "counters: push"):
            table.add_column(heading, justify="right")
        for heading in ("pull", "MB/s pushed", "paper"):
            table.add_column(heading, justify="right")
        for row in chosen:
            average, name = row["average"], row["scheduler"]
            table.add_row(
                name,
                f"{row['iteration_ns'] / 1e6:.1f}",
                _percent(average["compute"]),
                _percent(PAPER_COMPUTE.get(name)),
                _percent(average.get("push")),
                _percent(average.get("pull")),
                _percent(average["push_counters"]),
                _percent(average["pull_counters"]),
                f"{megabytes_per_s(row):.1f}",
                f"{PAPER_MB_S[name]}" if name in PAPER_MB_S else "",
            )
        console.print(table)
        console.print(_comparison(chosen))


def megabytes_per_s(row: Row) -> float:
    """Sent by the worker, headers and all."""
    return float(row["average"]["push_counters"] * row["bandwidth_bps"] / 8e6)


def _comparison(rows: Sequence[Row]) -> str:
    known = {row["scheduler"]: row for row in rows}
    if not {"bytescheduler", "prophet"} <= set(known):
        return ""
    ours, theirs = known["prophet"], known["bytescheduler"]
    compute = ours["average"]["compute"] / theirs["average"]["compute"]
    sent = megabytes_per_s(ours) / megabytes_per_s(theirs)
    return (
        f"prophet / bytescheduler: compute {compute:.3f} (paper {_paper(PAPER_COMPUTE):.3f}), "
        f"bytes per second {sent:.3f} (paper {_paper(PAPER_MB_S):.3f}); the paper's are of ResNet50"
    )


def _paper(numbers: Mapping[str, float]) -> float:
    return numbers["prophet"] / numbers["bytescheduler"]


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.1%}"


def draw(rows: Sequence[Row]) -> Figure:
    """A line of panels per scheduler: compute to the left, both directions of the link right."""
    span_s = _SHOWN_ITERATIONS * max(row["iteration_ns"] for row in rows) / 1e9
    figure = Figure(figsize=(12.0, 1.0 + 1.7 * len(rows)), layout="constrained")
    panels = figure.subplots(len(rows), 2, sharex=True, sharey=True, squeeze=False)
    for row, (left, right) in zip(rows, panels, strict=True):
        bins, average = row["bins"], row["average"]
        times_s = np.arange(len(bins["compute"]) + 1) * row["bin_ns"] / 1e9
        colour, _ = style_of(row["scheduler"])
        left.stairs(bins["compute"], times_s, fill=True, color=colour)
        left.axhline(average["compute"], color="#000000", linewidth=0.8, linestyle=":")
        left.set_title(
            f"{row['scheduler']}: {average['compute']:.1%} on average", loc="left", fontsize=9
        )
        parts = []
        for name, shade, hue in (("push", 0.35, "#0072B2"), ("pull", 0.0, "#D55E00")):
            counted = f"{name}_counters"
            series = name if name in bins else counted
            parts.append(f"{name} {average[series]:.1%}")
            right.stairs(bins[series], times_s, color=hue, linewidth=1.2, label=name)
            right.stairs(bins[series], times_s, fill=True, color=hue, alpha=shade)
        source = "" if "push" in bins else " (interface counters)"
        right.set_title(f"{', '.join(parts)}{source}", loc="left", fontsize=9)
        for axes in (left, right):
            axes.set_ylim(0, 1.05)
            axes.set_xlim(0, span_s)
            axes.spines[["top", "right"]].set_visible(False)
        left.set_ylabel("busy share")
    for axes in panels[-1]:
        axes.set_xlabel(f"seconds, in bins of {BIN_NS / 1e6:g} ms")
    panels[0][1].legend(
        frameon=False, fontsize=8, ncols=2, loc="lower right", bbox_to_anchor=(1.0, 1.0)
    )
    first = rows[0]
    figure.suptitle(
        f"{first['workload']}, paced, {first['workers']} workers, {first['servers']} server, "
        f"{format_rate(first['bandwidth_bps'])}: compute (left) and link (right) of worker 0",
        fontsize="medium",
    )
    return figure


if __name__ == "__main__":
    run_script(main)
