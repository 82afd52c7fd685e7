"""P3's rate over slice sizes, ByteScheduler's while it tunes itself: the paper's Figure 3.

    python experiments/slices.py

Two workers and a server run paced ResNet-50 (0.3 s forward, 0.6 s backward) on links of 1 Gbit/s.

- *p3* with slices from 64 KiB to 4 MiB; slices take turns, round after round.
- *bytescheduler* once, tuning partition and credit in mid-run: the rate of each iteration, and of
  each trial its spread. The noise is the coefficient of variation (standard deviation over mean) of
  the iterations while it tunes, and of those after it.

Finished jobs are kept in the results file: started again, the script goes on where it stopped.
Writes ``slices.json`` and ``slices.png`` to experiments/results. A quarter of an hour on two cores.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from recorded import add_places, limited
from rows import Rows
from script import run_script

from byteprophet.bench import Case, Plan, run_bench
from byteprophet.bench.result import read_results
from byteprophet.cli.lists import split
from byteprophet.errors import UserError
from byteprophet.report.plot import save, style_of
from byteprophet.tune.journal import read_journal

PAPER_RATES = (44, 56)  # ByteScheduler tuning, ResNet-50: lowest and highest, samples/s
PAPER_CREDIT_MB = (3, 13)  # that it tried meanwhile

Row = Mapping[str, Any]


def main(arguments: Sequence[str]) -> None:
    """Run what is missing, print, draw."""
    options = _parse(arguments)
    sizes = _sizes(options.slices)
    if options.rounds < 1:
        raise UserError("--rounds must be at least 1")
    rate_bps = limited(options.bandwidth)
    common = {
        "workload": options.workload,
        "bandwidth_bps": rate_bps,
        "compute_ns": options.compute_ns,
        "iterations": options.iterations,
    }
    rows = Rows(options.out / "slices.json", common)
    cells: list[dict[str, Any]] = [
        {"scheduler": "p3", "slice_bytes": size, "round": number}
        for number in range(1, options.rounds + 1)
        for size in sizes
    ]
    cells.append({"scheduler": "bytescheduler", "tune_iterations": options.tune, "round": 1})

    def run(cell: Row) -> Row:
        case = Case(
            options.workload,
            cell["scheduler"],
            rate_bps,
            compute_ns=options.compute_ns,
            partition_bytes=cell.get("slice_bytes"),
            tune_iterations=cell.get("tune_iterations", 0),
        )
        plan = Plan((case,), options.iterations, rounds=1, idle_s=0.0)
        (row,) = run_bench(plan, options.runs, namespaces=True, progress=lambda _line: None)
        return _measured(row, case)

    chosen = rows.complete(cells, _label, run)
    for line in lines(chosen):
        print(line)
    picture = options.out / "slices.png"
    save(draw(chosen, f"{Path(options.workload).stem}, paced, {options.bandwidth}"), picture)
    print(f"saved: {options.out / 'slices.json'}, {picture}")


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Measure P3 over slice sizes, and ByteScheduler while it tunes itself.",
        epilog="example: python experiments/slices.py --bandwidth 2gbit --rounds 3",
    )
    parser.add_argument("--workload", default="resnet50")
    parser.add_argument("--bandwidth", default="1gbit")
    parser.add_argument("--compute-ns", type=int, default=900_000_000)
    parser.add_argument("--slices", default="64,128,256,512,1024,2048,4096", help="in KiB")
    parser.add_argument("--iterations", type=int, default=10, help="measured ones of each job")
    parser.add_argument("--tune", type=int, default=250, help="iterations of tuning, from 100")
    parser.add_argument("--rounds", type=int, default=2, help="jobs per slice size")
    add_places(parser)
    return parser.parse_args(arguments)


def _sizes(text: str) -> list[int]:
    kibibytes = split(text, "--slices")
    if not all(size.isdecimal() and int(size) for size in kibibytes):
        raise UserError(f"--slices {text!r}: must be whole numbers of KiB, e.g. 64,1024")
    return [int(size) * 1024 for size in kibibytes]


def _label(cell: Row) -> str:
    if cell["scheduler"] == "p3":
        return f"round {cell['round']}, p3, {cell['slice_bytes'] // 1024} KiB"
    return f"bytescheduler, tuning in {cell['tune_iterations']} iterations"


def _measured(row: Row, case: Case) -> dict[str, Any]:
    """What is kept of a job: every iteration of the slowest worker, and the trials."""
    run = Path(row["run"])
    workers = read_results(run, case.workers)
    kept = {
        "samples": round(row["samples_per_s"] * row["iteration_ns"]["median"] / 1e9),
        "bound_ns": row["bound_ns"],
        "iteration_ns": np.max([w.iteration_ns for w in workers], axis=0).tolist(),
        "run": run.name,
    }
    if case.tune_iterations:
        kept["tuning_ns"] = np.max([w.tuning_ns for w in workers], axis=0).tolist()
        kept["trials"] = [
            {"settings": entry["settings"], "iteration_ns": entry["iteration_ns"]}
            for entry in read_journal(run)
            if "settings" in entry
        ]
        kept["chosen"] = row["tuned"]["settings"][0]
    return kept


def slice_rates(rows: Sequence[Row]) -> dict[int, list[float]]:
    """Samples per second of p3, per slice size and round."""
    found: dict[int, list[float]] = {}
    for row in rows:
        if row["scheduler"] == "p3":
            rate = row["samples"] * 1e9 / median(row["iteration_ns"])
            found.setdefault(row["slice_bytes"], []).append(rate)
    return dict(sorted(found.items()))


def noise(times_ns: Sequence[int]) -> float:
    """The coefficient of variation of the rates of iterations."""
    rates = 1 / np.asarray(times_ns, np.float64)
    return float(rates.std() / rates.mean())


def lines(rows: Sequence[Row]) -> list[str]:
    """What is printed."""
    told = []
    rates = slice_rates(rows)
    if rates:
        best = max(median(each) for each in rates.values())
        for size, each in rates.items():
            told.append(
                f"p3, slices of {size // 1024} KiB: {median(each):.2f} samples/s, "
                f"{median(each) / best:.3f} of the best"
            )
    for row in rows:
        if row["scheduler"] != "bytescheduler":
            continue
        trials = [row["samples"] * 1e9 / trial["iteration_ns"] for trial in row["trials"]]
        credits_mb = [trial["settings"]["credit_bytes"] / 1e6 for trial in row["trials"]]
        low, high = min(trials), max(trials)
        told.append(
            f"bytescheduler while it tunes: trials from {low:.2f} to {high:.2f} samples/s, "
            f"{high / low:.2f} to 1 (paper {PAPER_RATES[0]} to {PAPER_RATES[1]}, "
            f"{PAPER_RATES[1] / PAPER_RATES[0]:.2f} to 1), credits from {min(credits_mb):.2g} to "
            f"{max(credits_mb):.2g} MB (paper {PAPER_CREDIT_MB[0]} to {PAPER_CREDIT_MB[1]})"
        )
        told.append(
            f"its noise: {noise(row['tuning_ns']):.1%} while it tunes, "
            f"{noise(row['iteration_ns']):.1%} after; mean rate "
            f"{np.mean(row['iteration_ns']) / np.mean(row['tuning_ns']):.3f} of that after; "
            f"chosen: {row['chosen']}"
        )
    return told


def draw(rows: Sequence[Row], title: str) -> Figure:
    """P3 to the left, ByteScheduler to the right."""
    figure = Figure(figsize=(11.0, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(2, 3))
    colour, marker = style_of("p3")
    rates = slice_rates(rows)
    at = [size / 1024 for size in rates]
    left.plot(at, [median(each) for each in rates.values()], color=colour, marker=marker)
    for place, each in zip(at, rates.values(), strict=True):
        left.plot([place] * len(each), each, ".", color="#555555", markersize=4)
    left.set_xscale("log", base=2)
    left.set_xticks(at, [f"{place:g}" for place in at])
    left.set_xlabel("slice in KiB")
    left.set_ylabel("samples/s per worker")
    left.set_title("p3: medians, and each job", loc="left", fontsize="medium")
    left.set_ylim(bottom=0)
    colour, _ = style_of("bytescheduler")
    for row in (row for row in rows if row["scheduler"] == "bytescheduler"):
        times_ns = np.array(row["tuning_ns"] + row["iteration_ns"])
        ends_s = np.cumsum(times_ns) / 1e9
        right.plot(ends_s, row["samples"] * 1e9 / times_ns, color=colour, linewidth=1.0)
        tuned_s = sum(row["tuning_ns"]) / 1e9
        right.axvline(tuned_s, color="#000000", linewidth=0.8, linestyle=":", label="tuned")
        right.legend(frameon=False, fontsize="small")
    right.set_xlabel("seconds since warm-up")
    right.set_title("bytescheduler while it tunes itself", loc="left", fontsize="medium")
    right.set_ylim(bottom=0)
    for axes in (left, right):
        axes.grid(color="#dddddd", linewidth=0.7)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title, fontsize="medium")
    return figure


if __name__ == "__main__":
    run_script(main)
