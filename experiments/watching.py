"""Measures the cost of the live view: nobody looks, somebody looks, and not even the possibility.

    python experiments/watching.py

Two workers and a server run paced ResNet-50 under prophet. Jobs of three kinds alternate, for
several rounds:

- *off*: with BYTEPROPHET_WATCH=0, nothing of the live view is in the workers;
- *alone*: as jobs usually run, and nobody looks;
- *watched*: a viewer looks every second, as ``byteprophet watch --metrics`` does.

There are two setups, those of ``recorder.py``. Prints the ratios to *off* of iteration times and of
the workers' processor time per iteration, with 95% intervals (bench/spread.py), and the processor
time of the viewer per second. Both run on the machine's own cores, so a watched job also gives up
what the viewer takes.

Finished jobs are kept in the results file. When the script is started again, it continues where it
stopped. Writes ``watching.json`` to experiments/results. Takes 20 minutes on two quiet cores; a
part of it, ``--setups limited --job-iterations 25``, takes 8 minutes.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from recorder import SETUPS, SKIPPED, measured, parse, verdict
from rows import Rows
from script import run_script

from byteprophet import schedulers
from byteprophet.bench import Case, Plan
from byteprophet.bench.execute import check_case, run_case
from byteprophet.bench.spread import Ratio, ratio
from byteprophet.observe.live import VARIABLE
from byteprophet.session.profiling import PROFILING
from byteprophet.watch.metrics import metrics_text
from byteprophet.watch.run_watch import RunWatch
from byteprophet.watch.sources import PERIOD_S

OFF, ALONE, WATCHED = "off", "alone", "watched"
SIDES = (OFF, ALONE, WATCHED)
AT_MOST = 1.005

Row = Mapping[str, Any]


class Viewer:
    """A context manager: a thread that watches the first run that is made in ``runs``."""

    def __init__(self, runs: Path) -> None:
        self._runs = runs
        self._known = set(runs.glob("*"))
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="viewer")
        self.cpu_s = self.wall_s = 0.0
        self.looks = 0

    def __enter__(self) -> Viewer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join(30.0)

    def _run(self) -> None:
        watch = None
        while not self._ending.wait(PERIOD_S):
            if watch is None:
                new = set(self._runs.glob("*")) - self._known
                watch = RunWatch(new.pop()) if new else None
                continue
            begin_s, cpu_s = time.monotonic(), time.thread_time()
            metrics_text(watch.look())
            self.cpu_s += time.thread_time() - cpu_s
            self.wall_s += PERIOD_S + time.monotonic() - begin_s
            self.looks += 1


def main(arguments: Sequence[str]) -> None:
    """Run missing jobs and print."""
    options, names = parse(arguments, "the live view", "watching.py")
    common = {"scheduler": schedulers.DEFAULT, "iterations": options.job_iterations}
    rows = Rows(options.out / "watching.json", common)
    cells: list[dict[str, Any]] = [
        {"setup": name, "round": number, "side": side}
        for name in names
        for number in range(1, options.rounds + 1)
        for side in SIDES
    ]
    chosen = rows.complete(cells, _label, lambda cell: _run(cell, options))
    for line in lines(chosen):
        print(line)
    print(f"saved: {options.out / 'watching.json'}")


def _label(cell: Row) -> str:
    return f"{cell['setup']}, round {cell['round']}, {cell['side']}"


def _run(cell: Row, options: argparse.Namespace) -> dict[str, Any]:
    setup = SETUPS[cell["setup"]]
    watch = {VARIABLE: "0"} if cell["side"] == OFF else {}
    case = Case(
        "resnet50",
        schedulers.DEFAULT,
        setup.bandwidth_bps,
        compute_ns=setup.compute_ns,
        partition_bytes=setup.partition_bytes,
        environment={PROFILING: "0", **watch},
    )
    plan = Plan((case,), options.job_iterations, rounds=1, warmup_iterations=0, idle_s=0.0)
    workload = check_case(case, plan, options.runs, namespaces=True)
    if cell["side"] != WATCHED:
        return measured(run_case(case, plan, workload, options.runs, namespaces=True))
    with Viewer(options.runs) as viewer:
        job = run_case(case, plan, workload, options.runs, namespaces=True)
    share = viewer.cpu_s / viewer.wall_s if viewer.wall_s else None
    return {**measured(job), "viewer_cpu_fraction": share, "looks": viewer.looks}


def ratios(rows: Sequence[Row]) -> dict[tuple[str, str], tuple[Ratio, Ratio]]:
    """By setup and side: iteration and processor times over those of *off* in the same round."""
    off = {(row["setup"], row["round"]): row for row in rows if row["side"] == OFF}
    pairs: dict[tuple[str, str], list[tuple[Row, Row]]] = {}
    for row in rows:
        base = off.get((row["setup"], row["round"]))
        if row["side"] != OFF and base is not None:
            pairs.setdefault((row["setup"], row["side"]), []).append((row, base))
    return {
        key: (
            ratio([(a["iteration_ns"][SKIPPED:], b["iteration_ns"][SKIPPED:]) for a, b in own]),
            ratio([([a["cpu_ns"]], [b["cpu_ns"]]) for a, b in own]),
        )
        for key, own in pairs.items()
    }


def lines(rows: Sequence[Row]) -> list[str]:
    """The printed lines."""
    said = []
    for (setup, side), (times, processors) in ratios(rows).items():
        low, high = times.interval
        said.append(
            f"{setup}, {side}: iteration time {times.value:.4f} of that with the view off, from "
            f"{low:.4f} to {high:.4f} ({verdict(times, AT_MOST)})"
        )
        low, high = processors.interval
        said.append(
            f"{setup}, {side}: a worker's processor time per iteration {processors.value:.4f} of "
            f"that with the view off, from {low:.4f} to {high:.4f}"
        )
    shares = [row["viewer_cpu_fraction"] for row in rows if row.get("viewer_cpu_fraction")]
    if shares:
        said.append(f"the viewer takes {float(np.median(shares)):.2%} of a core")
    return said


if __name__ == "__main__":
    run_script(main)
