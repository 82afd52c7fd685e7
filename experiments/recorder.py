"""Measures the cost of recording: iteration time, processor time, and the size of its files.

    python experiments/recorder.py

Two workers and a server run paced ResNet-50 under prophet. Jobs with and without the recorder
alternate, for several rounds:

- *limited*: links of 1 Gbit/s, default compute and partitions: the job waits for the network;
- *many messages*: no limit, hardly any compute, partitions of 64 KiB: 1,600 messages each way per
  iteration, as fast as the processors allow.

Prints the ratios (with over without the recorder) of iteration times and of the workers' processor
time per iteration, with 95% intervals (bench/spread.py). Also prints the medians and the spread
(1.4826 times the median absolute deviation) of both sides. Then prints, for each table, the size of
a file with a million made-up events, whose times scatter, and the time to load it.

Finished jobs are kept in the results file. When the script is started again, it continues where it
stopped. Writes ``recorder.json`` to experiments/results. Takes a quarter of an hour on two quiet
cores.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from recorded import add_places
from rows import Rows
from script import run_script

from byteprophet import schedulers
from byteprophet.bench import Case, Plan
from byteprophet.bench.execute import Measured, check_case, run_case
from byteprophet.bench.spread import Ratio, ratio
from byteprophet.errors import UserError
from byteprophet.session.profiling import PROFILING
from byteprophet.timeline.events import EventWriter, Origin
from byteprophet.timeline.read_events import load_events
from byteprophet.timeline.tables import TABLES, TableKind
from byteprophet.timeline.tables import Rows as EventRows

SKIPPED = 2  # iterations: the first creates keys; in the second, forward order is not agreed yet
AT_MOST = 1.01
EVENTS = 1_000_000
LARGEST_MB, LONGEST_S = 40.0, 2.0
_BATCH = 2048  # rows written at once

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Setup:
    """A job for which the cost of recording is measured."""

    bandwidth_bps: int | None
    compute_ns: int | None = None
    partition_bytes: int | None = None


SETUPS = {
    "limited": Setup(1_000_000_000),
    "many messages": Setup(None, compute_ns=30_000_000, partition_bytes=65_536),
}


def parse(arguments: Sequence[str], what: str, script: str) -> tuple[argparse.Namespace, list[str]]:
    """The options of a script that measures what something costs, and the names of the setups.

    ``what`` and ``script`` are for its help. Raises UserError.
    """
    parser = argparse.ArgumentParser(
        description=f"Measure what {what} costs.",
        epilog=f"example: python experiments/{script} --rounds 5",
    )
    add_places(parser)
    parser.add_argument("--setups", default=",".join(SETUPS), help="some of " + ", ".join(SETUPS))
    parser.add_argument("--job-iterations", type=int, default=40, help="iterations of each job")
    parser.add_argument("--rounds", type=int, default=5, help="jobs per side")
    options = parser.parse_args(arguments)
    names = options.setups.split(",")
    if unknown := [name for name in names if name not in SETUPS]:
        raise UserError(f"--setups {unknown[0]}: must be of {', '.join(SETUPS)}")
    if options.job_iterations <= SKIPPED or options.rounds < 1:
        raise UserError(f"--job-iterations must be more than {SKIPPED}, --rounds at least 1")
    return options, names


def main(arguments: Sequence[str]) -> None:
    """Run missing jobs and print."""
    options, names = parse(arguments, "recording", "recorder.py")
    common = {"scheduler": schedulers.DEFAULT, "iterations": options.job_iterations}
    rows = Rows(options.out / "recorder.json", common)
    cells: list[dict[str, Any]] = [
        {"setup": name, "round": number, "record": record}
        for name in names
        for number in range(1, options.rounds + 1)
        for record in (False, True)
    ]
    chosen = rows.complete(cells, _label, lambda cell: _run(cell, options))
    for line in lines(chosen):
        print(line)
    for table in TABLES.values():
        print(file_line(table, *file_figures(table, EVENTS)))
    print(f"saved: {options.out / 'recorder.json'}")


def _label(cell: Row) -> str:
    side = "on" if cell["record"] else "off"
    return f"{cell['setup']}, round {cell['round']}, recorder {side}"


def _run(cell: Row, options: argparse.Namespace) -> dict[str, Any]:
    setup = SETUPS[cell["setup"]]
    case = Case(
        "resnet50",
        schedulers.DEFAULT,
        setup.bandwidth_bps,
        compute_ns=setup.compute_ns,
        partition_bytes=setup.partition_bytes,
        environment={PROFILING: "0"},
    )
    plan = Plan(
        (case,),
        options.job_iterations,
        rounds=1,
        warmup_iterations=0,
        record=cell["record"],
        idle_s=0.0,
    )
    workload = check_case(case, plan, options.runs, namespaces=True)
    return measured(run_case(case, plan, workload, options.runs, namespaces=True))


def measured(job: Measured) -> dict[str, Any]:
    """Iterations of the slowest worker, and a worker's processor time per iteration."""
    slowest_ns = np.max([worker.iteration_ns for worker in job.workers], axis=0)
    length_ns = [int(np.sum(worker.iteration_ns)) for worker in job.workers]
    used_ns = [
        worker.cpu_fraction * of_worker_ns
        for worker, of_worker_ns in zip(job.workers, length_ns, strict=True)
    ]
    return {
        "iteration_ns": slowest_ns.tolist(),
        "cpu_ns": round(float(np.mean(used_ns)) / len(slowest_ns)),
        "run": job.directory.name,
    }


def ratios(rows: Sequence[Row]) -> dict[str, tuple[Ratio, Ratio]]:
    """By setup: ratios of iteration and processor times in the same rounds, on over off."""
    pairs: dict[str, list[tuple[Row, Row]]] = {}
    off = {(row["setup"], row["round"]): row for row in rows if not row["record"]}
    for row in rows:
        if row["record"] and (base := off.get((row["setup"], row["round"]))):
            pairs.setdefault(row["setup"], []).append((row, base))
    return {
        setup: (
            ratio(
                [(on["iteration_ns"][SKIPPED:], base["iteration_ns"][SKIPPED:]) for on, base in own]
            ),
            ratio([([on["cpu_ns"]], [base["cpu_ns"]]) for on, base in own]),
        )
        for setup, own in pairs.items()
    }


def verdict(found: Ratio, at_most: float) -> str:
    """Whether ``found`` is at most that, and whether its interval leaves that open."""
    low, high = found.interval
    held = "holds" if found.value <= at_most else "does not hold"
    is_open = low <= at_most < high
    return f"at most {at_most}: {held}{', but more rounds may say otherwise' * is_open}"


def lines(rows: Sequence[Row]) -> list[str]:
    """The printed lines about jobs."""
    said = []
    for setup, (times, processors) in ratios(rows).items():
        low, high = times.interval
        said.append(
            f"{setup}: iteration time {times.value:.4f} of that without, from {low:.4f} to "
            f"{high:.4f} ({verdict(times, AT_MOST)})"
        )
        low, high = processors.interval
        said.append(
            f"{setup}: a worker's processor time per iteration {processors.value:.4f} of that "
            f"without, from {low:.4f} to {high:.4f}"
        )
        for record in (False, True):
            own = [row for row in rows if (row["setup"], row["record"]) == (setup, record)]
            values = np.concatenate([row["iteration_ns"][SKIPPED:] for row in own]) / 1e6
            middle = float(np.median(values))
            spread = 1.4826 * float(np.median(np.abs(values - middle)))
            cpu_ms = float(np.median([row["cpu_ns"] for row in own])) / 1e6
            side = "on" if record else "off"
            said.append(
                f"{setup}: recorder {side}: {middle:.2f} ms (spread {spread:.2f}), processor "
                f"{cpu_ms:.2f} ms, {len(own)} jobs"
            )
    return said


def scattered(table: TableKind, count: int) -> EventRows:
    """Made-up rows: 161 tensors in up to 8 partitions; times scatter more than those of a job."""
    random = np.random.default_rng(0)
    rows = np.zeros(count, table.dtype)
    places = np.arange(count)
    time_ns = 10**15 + np.cumsum(random.integers(1, 30_000, count))
    for name in table.times:
        rows[name] = time_ns
        time_ns = time_ns + random.integers(0, 1 << 27, count)
    for name in set(table.columns) - set(table.times):
        rows[name] = {
            "key": (places % 161) << 16 | random.integers(0, 8, count),
            "size_bytes": 524_288,
            "iteration": places // 322,
            "round": 1 + places // 322,
            "priority": -1 - places % 161,
            "request": places // 2,
            "what": places % 4,
            "kind": 7 + places % 2,
        }.get(name, places % 2)
    if "name" in (rows.dtype.names or ()):
        rows["name"] = places % 161
    return rows


def file_figures(table: TableKind, count: int) -> tuple[float, float]:
    """Megabytes of a file with ``count`` events, and seconds to load it."""
    rows = scattered(table, count)
    names = {number: f"layer{number}.convolution.weight" for number in range(161)}
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "events.arrows"
        writer = EventWriter(path, table, Origin("worker-0", 0))
        for first in range(0, count, _BATCH):
            writer.write(rows[first : first + _BATCH], names)
        writer.close()
        size_mb = path.stat().st_size / 1e6
        begin_s = time.perf_counter()
        loaded = load_events(path)
        took_s = time.perf_counter() - begin_s
    if len(loaded.rows) != count:
        raise RuntimeError(f"{table.name}: {len(loaded.rows)} of {count} rows were read")
    return size_mb, took_s


def file_line(table: TableKind, size_mb: float, took_s: float) -> str:
    """The printed line about a table's file."""
    held = "holds" if size_mb < LARGEST_MB and took_s < LONGEST_S else "does not hold"
    return (
        f"{table.name}: a million events: {size_mb:.1f} MB, loaded in {took_s:.2f} s (under "
        f"{LARGEST_MB:.0f} MB and {LONGEST_S:.0f} s: {held})"
    )


if __name__ == "__main__":
    run_script(main)
