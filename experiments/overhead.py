"""What profiling, monitoring, recording and the controller cost: the paper's Figure 13.

    python experiments/overhead.py

Two workers and a server run paced ResNet-50 (0.3 s forward, 0.6 s backward) on links of 1 Gbit/s
under prophet, with nothing of all that, and with one of them at a time, in turn, round after round:

- *ratios* of iteration times to those with nothing, same round, same iterations, with the interval
  in which they lie in 95 of 100 cases (bench/spread.py). Of profiling: while it is on, and after;
- *time until the first profile*, from the first iteration's begin, beside the paper's;
- *waits* of new most urgent gradients (``byteprophet profile RUN --waits``), and compute in the
  first seconds of the job, of the jobs that ``utilisation.py`` records and keeps.

Finished jobs are kept in the results file: started again, the script goes on where it stopped.
Writes ``overhead.json``, ``waits.json`` and ``overhead.png`` to experiments/results. Fifteen
minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from recorded import Recorded, add_options, jobs, limited, write_rows
from rows import Rows
from script import run_script
from utilisation import running_total, shares

from byteprophet import schedulers
from byteprophet.bench import Case, Plan
from byteprophet.bench.execute import Measured, check_case, run_case
from byteprophet.bench.spread import Ratio, Round, ratio
from byteprophet.cli.lists import split
from byteprophet.errors import JobFailed, UserError
from byteprophet.profile.model import profile_path, read_profile
from byteprophet.report.plot import save, style_of
from byteprophet.session import monitoring
from byteprophet.session.profiling import PROFILING

SKIPPED = 2  # iterations: the first makes the keys, in the second forward order is not agreed yet
FIRST_S = 15  # of the job, drawn
PAPER_PROFILE_S = {"inception-v3": 7.0, "resnet50": 9.5, "resnet152": 24.7}

NOTHING = "nothing"
# Variant: environment, controller, record.
VARIANTS: Mapping[str, tuple[Mapping[str, str], bool, bool]] = {
    NOTHING: ({PROFILING: "0"}, False, False),
    "profiling": ({PROFILING: "1"}, False, False),
    "monitor": ({PROFILING: "0", monitoring.VARIABLE: "1"}, False, False),
    "record": ({PROFILING: "0"}, False, True),
    "all with controller": ({PROFILING: "1", monitoring.VARIABLE: "1"}, True, False),
}

Row = Mapping[str, Any]


def main(arguments: Sequence[str]) -> None:
    """Run what is missing, print, draw."""
    parser = argparse.ArgumentParser(
        description="Measure what profiling, monitoring, recording and the controller cost.",
        epilog="example: python experiments/overhead.py --rounds 5",
    )
    add_options(parser, "p3,bytescheduler,prophet")
    parser.add_argument("--job-iterations", type=int, default=40, help="of jobs compared")
    parser.add_argument("--rounds", type=int, default=3, help="jobs per variant")
    options = parser.parse_args(arguments)
    if options.job_iterations <= SKIPPED or options.rounds < 1:
        raise UserError(f"--job-iterations must be more than {SKIPPED}, --rounds at least 1")
    if schedulers.STOCK in split(options.schedulers, "--schedulers"):
        raise UserError("--schedulers: stock records nothing")
    common = {
        "scheduler": schedulers.DEFAULT,
        "bandwidth_bps": limited(options.bandwidth),
        "compute_ns": options.compute_ns,
        "iterations": options.job_iterations,
    }
    rows = Rows(options.out / "overhead.json", common)
    cells: list[dict[str, Any]] = [
        {"workload": workload, "variant": variant, "round": number}
        for workload in split(options.workloads, "--workloads")
        for number in range(1, options.rounds + 1)
        for variant in VARIANTS
    ]
    chosen = rows.complete(
        cells,
        lambda cell: f"round {cell['round']}, {cell['variant']}",
        lambda cell: _run(cell, options),
    )
    figures = ratios(chosen)
    for line in (*_ratio_lines(figures), *profile_lines(chosen)):
        print(line)
    kept = list(jobs(options))
    waits = [waits_of(job) for job in kept]
    for found in waits:
        print(_waits_line(found))
    write_rows(options.out / "waits.json", options, waits)
    picture = options.out / "overhead.png"
    save(_draw(figures, kept), picture)
    print(f"saved: {options.out / 'overhead.json'}, {picture}")


def _run(cell: Row, options: argparse.Namespace) -> dict[str, Any]:
    environment, controller, record = VARIANTS[cell["variant"]]
    case = Case(
        cell["workload"],
        schedulers.DEFAULT,
        limited(options.bandwidth),
        compute_ns=options.compute_ns,
        environment=environment,
    )
    # No warm-up: profiling begins with the job.
    plan = Plan(
        (case,),
        options.job_iterations,
        rounds=1,
        warmup_iterations=0,
        controller=controller,
        record=record,
        idle_s=0.0,
    )
    workload = check_case(case, plan, options.runs, namespaces=True)
    return _measured(run_case(case, plan, workload, options.runs, namespaces=True))


def _measured(job: Measured) -> dict[str, Any]:
    slowest_ns = np.max([worker.iteration_ns for worker in job.workers], axis=0)
    row = {"iteration_ns": slowest_ns.tolist(), "run": job.directory.name}
    path = profile_path(job.directory, 0)
    if path.is_file():
        profile = read_profile(path)
        # The file's time is of the wall clock.
        age_ns = time.time_ns() - path.stat().st_mtime_ns
        profiled_ns = time.monotonic_ns() - age_ns - job.workers[0].first_monotonic_ns
        row["profile"] = {
            "number": profile.number,
            "iterations": profile.iterations,
            # That of a later one, after drift, says nothing of the first.
            "first_ns": profiled_ns if profile.number == 1 else None,
        }
    return row


def begun(row: Row) -> int:
    """Iterations that had begun when the job's first profile was saved; 0 if that is not known."""
    first_ns = row.get("profile", {}).get("first_ns")
    if first_ns is None:
        return 0
    ends_ns = np.cumsum(row["iteration_ns"])
    return int(np.searchsorted(ends_ns, first_ns)) + 1


def ratios(rows: Sequence[Row]) -> dict[tuple[str, str], Ratio]:
    """By workload and what is on: its iteration times over those with nothing."""
    found: dict[tuple[str, str], list[Round]] = {}
    plain = {(r["workload"], r["round"]): r["iteration_ns"] for r in rows if _is_plain(r)}
    for row in rows:
        base_ns = plain.get((row["workload"], row["round"]))
        if _is_plain(row) or base_ns is None:
            continue
        parts = {row["variant"]: slice(SKIPPED, None)}
        if row["variant"] == "profiling":
            until = begun(row)
            parts |= {
                "while profiling": slice(SKIPPED, until),
                "after profiling": slice(until, None),
            }
        for name, part in parts.items():
            above, below = row["iteration_ns"][part], base_ns[part]
            if above and below:
                found.setdefault((row["workload"], name), []).append((above, below))
    return {key: ratio(rounds) for key, rounds in found.items()}


def _is_plain(row: Row) -> bool:
    return bool(row["variant"] == NOTHING)


def _ratio_lines(figures: Mapping[tuple[str, str], Ratio]) -> list[str]:
    return [
        f"{workload}: {name}: {figure.value:.4f} of the iteration time without, "
        f"from {figure.interval[0]:.4f} to {figure.interval[1]:.4f}"
        + (" (at most 1.01)" if name == "while profiling" else "")
        for (workload, name), figure in figures.items()
    ]


def profile_lines(rows: Sequence[Row]) -> list[str]:
    """Per workload the time until the first profile, over all jobs that profiled."""
    told = []
    for workload in dict.fromkeys(row["workload"] for row in rows):
        known = [row["profile"] for row in rows if row["workload"] == workload and begun(row)]
        if not known:
            told.append(f"{workload}: no job's first profile was left as it was")
            continue
        seconds = [profile["first_ns"] / 1e9 for profile in known]
        iterations = [profile["iterations"] for profile in known]
        paper = PAPER_PROFILE_S.get(workload)
        beside = "" if paper is None else f" (paper: {paper} s, 50 iterations)"
        told.append(
            f"{workload}: first profile after {np.median(seconds):.1f} s, of "
            f"{np.median(iterations):.0f} iterations, medians of {len(known)} jobs{beside}"
        )
    return told


def waits_of(job: Recorded) -> dict[str, Any]:
    """What ``byteprophet profile RUN --waits`` finds."""
    command = (sys.executable, "-m", "byteprophet", "profile", str(job.directory), "--waits")
    done = subprocess.run((*command, "--json"), capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        raise JobFailed(done.stderr.strip() or f"byteprophet profile {job.directory} failed")
    return {"workload": job.case.workload, **json.loads(done.stdout), "run": job.directory.name}


def _waits_line(found: Row) -> str:
    about = f"{found['workload']}, {found['scheduler']}"
    if not found["waits"]:
        return f"{about}: nothing urgent had to wait"
    allowed = "" if found["allowed_ns"] is None else f", allowed {found['allowed_ns'] / 1e6:.2f} ms"
    return (
        f"{about}: {found['waits']} new most urgent partitions waited "
        f"{found['median_ns'] / 1e6:.2f} ms (median), {found['p99_ns'] / 1e6:.2f} ms (99th "
        f"percentile{allowed})"
    )


def _draw(figures: Mapping[tuple[str, str], Ratio], kept: Sequence[Recorded]) -> Figure:
    """Ratios to the left, compute in the job's first seconds to the right."""
    figure = Figure(figsize=(12.0, 4.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    names = [f"{workload}: {name}" for workload, name in figures]
    for place, each in enumerate(figures.values()):
        low, high = each.interval
        left.plot([low, high], [place, place], color="#0072B2", linewidth=2)
        left.plot(each.value, place, "o", color="#0072B2")
    left.axvline(1.0, color="#000000", linewidth=0.8)
    left.set_yticks(range(len(names)), names, fontsize=8)
    left.invert_yaxis()
    left.set_xlabel("iteration time over that with nothing, 95% interval")
    _draw_first_seconds(right, kept)
    for axes in (left, right):
        axes.grid(color="#dddddd", linewidth=0.7)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle("prophet, paced: what it costs", fontsize="medium")
    return figure


def _draw_first_seconds(axes: Axes, kept: Sequence[Recorded]) -> None:
    for job in kept:
        if job.case.workload != kept[0].case.workload:
            continue
        busy = np.array(job.busy(), np.int64).reshape(-1, 2)
        edges_ns = np.arange(busy[0, 0], busy[-1, 1], 1_000_000_000)[: FIRST_S + 1]
        if len(edges_ns) < 2:
            continue
        colour, marker = style_of(job.case.scheduler)
        values = shares(running_total(busy), edges_ns)
        at = np.arange(len(values)) + 0.5
        axes.plot(at, values, color=colour, marker=marker, label=job.case.scheduler)
    axes.set_ylim(0, 1.05)
    axes.set_xlabel("seconds since the first forward")
    axes.set_ylabel("compute, busy share per second")
    if kept:
        axes.set_title(kept[0].case.workload, loc="left", fontsize="medium")
        axes.legend(frameon=False, fontsize=8, loc="lower right")


if __name__ == "__main__":
    run_script(main)
