"""Clocks of their own for the roles of real jobs, and how far off they are found.

    python experiments/alignment.py [RUN ...]

Without runs, records jobs of 3 workers and 2 servers, each on a host of its own made of network
namespaces, and keeps them in ``runs/recorded``. Their roles stamped events with one kernel's clock,
so the truth is known. For every seed each role is then given a machine of its own, whose clock is
up to 50 ms off and gains or loses up to 50 ppm, and its events are written as that machine would
have (``own_clocks.py``). They are aligned as ``byteprophet timeline`` and ``replay`` do it.

Printed per role: the error against the reference's clock at the recording's begin, middle and end,
and of the worst event; whether the truth is in the interval that was stated. Per recording and
seed: the error of the iteration time that is replayed, by wall clocks as they are, and aligned.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from own_clocks import Clock, by_wall_clocks, clocks_for, rewrite
from recorded import PROGRESS, add_places, keep, label_of, limited, write_rows
from rich.table import Table
from script import run_script, scheduler_names

from byteprophet.bench import Case, Plan
from byteprophet.cli.lists import split
from byteprophet.errors import UserError
from byteprophet.measure.run import Run
from byteprophet.measure.servers import measure_run
from byteprophet.replay.predict import predict
from byteprophet.replay.what_if import Changes
from byteprophet.report.console import table_console
from byteprophet.timeline.aligned import Aligned, align_events
from byteprophet.timeline.events import Events
from byteprophet.timeline.read_events import load_run

ASKED_NS = 200_000
WORKERS, SERVERS = 3, 2
RESULTS = "alignment.json"


def main(arguments: Sequence[str]) -> None:
    """Record, shift, align, print."""
    parser = argparse.ArgumentParser(description="Give roles clocks of their own and align them.")
    parser.add_argument("recorded", nargs="*", type=Path, metavar="RUN", help="default: record")
    parser.add_argument("--seeds", type=int, default=3, help="sets of clocks per recording")
    parser.add_argument("--workload", default="resnet18")
    parser.add_argument("--schedulers", default="fifo,p3,prophet")
    parser.add_argument("--bandwidths", default="500mbit,2gbit", help="of each worker's link")
    parser.add_argument("--iterations", type=int, default=20)
    add_places(parser)
    options = parser.parse_args(arguments)
    if options.seeds < 1:
        raise UserError(f"--seeds {options.seeds}: must be at least 1")
    rows = []
    for run in options.recorded or record(options):
        PROGRESS.print(f"aligning {run.name}")
        recorded_error = replay_error(run)
        rows += [measure(run, seed, recorded_error) for seed in range(options.seeds)]
    del options.recorded
    write_rows(options.out / RESULTS, options, rows)
    console = table_console(140)
    console.print(clocks_table(rows))
    console.print(replay_table(rows))
    console.print(summary(rows))


def record(options: argparse.Namespace) -> list[Path]:
    """The run directories of one job per bandwidth and scheduler, run where they are missing."""
    runs = []
    for bandwidth in split(options.bandwidths, "--bandwidths"):
        for scheduler in scheduler_names(options.schedulers):
            rate_bps = limited(bandwidth)
            case = Case(options.workload, scheduler, rate_bps, workers=WORKERS, servers=SERVERS)
            plan = Plan((case,), options.iterations, rounds=1, record=True, idle_s=0.0)
            label = f"{label_of(options.workload)}-{scheduler}-{bandwidth}-{options.iterations}"
            kept = options.runs.absolute() / "recorded" / f"{WORKERS}+{SERVERS}-{label}"
            if not kept.exists():
                keep(case, plan, kept, options.runs)
            runs.append(kept)
    return runs


def measure(run: Path, seed: int, recorded_error: float) -> dict[str, Any]:
    """The row of a recording whose roles have the clocks of ``seed``."""
    recorded = load_run(run)
    begin_ns, end_ns = ends_of(recorded)
    roles = sorted({events.origin.role for events in recorded})
    clocks = clocks_for(roles, (begin_ns + end_ns) // 2, seed)
    with tempfile.TemporaryDirectory() as directory:
        apart = rewrite(run, Path(directory) / "apart", clocks)
        walls = rewrite(run, Path(directory) / "walls", by_wall_clocks(clocks))
        aligned = align_events(load_run(apart))
        errors = {
            "recorded": recorded_error,
            "wall clocks": replay_error_if_any(walls),
            "aligned": replay_error(apart),
        }
    return {
        "run": run.name,
        "seed": seed,
        "seconds": (end_ns - begin_ns) / 1e9,
        "clocks": [found_of(role, clocks, recorded, aligned) for role in roles],
        "replay_error": errors,
    }


def replay_error(run: Path) -> float:
    """Of ``byteprophet replay RUN``: the iteration time over the measured one, less 1."""
    return predict(measure_run(Run(run)), Changes()).replay_error


def replay_error_if_any(run: Path) -> float | None:
    """The same; None where it refuses, as times are so wrong that nothing can be measured."""
    try:
        return replay_error(run)
    except UserError:
        return None


def found_of(
    role: str, clocks: Mapping[str, Clock], recorded: Sequence[Events], aligned: Aligned
) -> dict[str, Any]:
    """What was found of one role's clock against the reference's, whose own error stays unknown.

    ``error_ns`` is aligned less true, at the recording's begin, middle and end.
    """
    alignment = aligned.alignment
    assert alignment is not None
    clock = clocks[role]
    home = next(each for each in clocks.values() if each.machine == alignment.reference)
    begin_ns, end_ns = ends_of(recorded)
    at_ns = np.array([begin_ns, (begin_ns + end_ns) // 2, end_ns])
    shown_ns = clock.shows(at_ns)
    error_ns = alignment.to_reference(clock.machine, shown_ns) - home.shows(at_ns)
    low_ns, high_ns = alignment.interval_at(clock.machine, shown_ns)
    return {
        "role": role,
        "reference": clock is home,
        "offset_ns": clock.offset_ns - home.offset_ns,
        "drift_ppm": (clock.drift_ppb - home.drift_ppb) / 1000,
        "error_ns": error_ns.tolist(),
        "interval_ns": [
            [float(low), float(high)] for low, high in zip(low_ns, high_ns, strict=True)
        ],
        "inside": bool(np.all((low_ns <= -error_ns) & (-error_ns <= high_ns))),
        "contradictions": len(alignment.contradictions),
        "worst_event_ns": _worst_ns(role, home, recorded, aligned.events),
    }


def _worst_ns(role: str, home: Clock, recorded: Sequence[Events], aligned: Sequence[Events]) -> int:
    """The largest error of any time of the role's events."""
    worst_ns = 0
    for was, now in zip(recorded, aligned, strict=True):
        for name in was.table.times if was.origin.role == role else ():
            known = was.rows[name] != 0
            error_ns = now.rows[name][known] - home.shows(was.rows[name][known])
            worst_ns = max(worst_ns, int(np.abs(error_ns).max(initial=0)))
    return worst_ns


def ends_of(recorded: Sequence[Events]) -> tuple[int, int]:
    """The earliest and the latest time of all events."""
    columns = [events.rows[name] for events in recorded for name in events.table.times]
    known = np.concatenate([column[column != 0] for column in columns])
    return int(known.min()), int(known.max())


def clocks_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """A line per clock but the reference's."""
    table = Table(box=None, pad_edge=False)
    for heading in ("recording", "seed", "clock of"):
        table.add_column(heading)
    for heading in ("ms ahead", "ppm fast", "error, us", "worst event", "interval, us", "inside"):
        table.add_column(heading, justify="right")
    for row in rows:
        for clock in row["clocks"]:
            if not clock["reference"]:
                lows_ns, highs_ns = zip(*clock["interval_ns"], strict=True)
                table.add_row(
                    row["run"],
                    str(row["seed"]),
                    clock["role"],
                    f"{clock['offset_ns'] / 1e6:.3f}",
                    f"{clock['drift_ppm']:.2f}",
                    " ".join(f"{error / 1e3:+.0f}" for error in clock["error_ns"]),
                    f"{clock['worst_event_ns'] / 1e3:.0f}",
                    f"{min(lows_ns) / 1e3:+.0f} to {max(highs_ns) / 1e3:+.0f}",
                    "yes" if clock["inside"] else "NO",
                )
    return table


def replay_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """A line per recording and seed: errors of replayed iteration times."""
    table = Table(box=None, pad_edge=False)
    names = list(rows[0]["replay_error"])
    for heading in ("recording", "seed", *(f"replay's error, {name}" for name in names)):
        table.add_column(heading, justify="right" if "error" in heading else "left")
    for row in rows:
        errors = (row["replay_error"][name] for name in names)
        shown = ("refused" if error is None else f"{error:+.2%}" for error in errors)
        table.add_row(row["run"], str(row["seed"]), *shown)
    return table


def summary(rows: Sequence[Mapping[str, Any]]) -> str:
    """The line at the end: the worst of the clocks, and what that does to replayed times."""
    clocks = [clock for row in rows for clock in row["clocks"] if not clock["reference"]]
    worst_ns = max(max(map(abs, clock["error_ns"])) for clock in clocks)
    inside = sum(clock["inside"] for clock in clocks) / len(clocks)
    said = "within" if worst_ns <= ASKED_NS else "NOT within"
    errors = [row["replay_error"] for row in rows]
    moved = {
        name: max(
            (abs(e[name] - e["recorded"]) for e in errors if e[name] is not None), default=0.0
        )
        for name in ("wall clocks", "aligned")
    }
    refused = sum(each["wall clocks"] is None for each in errors)
    return (
        f"{len(clocks)} clocks: worst error {worst_ns / 1e3:.0f} us ({said} the {ASKED_NS / 1e3:g} "
        f"us asked for), truth inside the stated interval: {inside:.0%}; the error of replayed "
        f"iteration times, up to {max(abs(each['recorded']) for each in errors):.1%} as recorded, "
        f"is moved by up to {100 * moved['wall clocks']:.1f} points by wall clocks ({refused} of "
        f"{len(rows)} refused), {100 * moved['aligned']:.1f} aligned"
    )


if __name__ == "__main__":
    run_script(main)
