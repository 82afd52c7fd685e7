"""Replays profiles of training jobs, and compares with the iterations in the profiles.

    python experiments/traces.py FOLDER
    python experiments/traces.py FOLDER --out runs/traces --json traces.json

FOLDER holds traces of torch.profiler, which are not part of this repository; a folder in it is one
job of several ranks. Further traces are made here, by training on the CPU (traces_worker.py), in
--out or in a temporary folder. Printed for each:

recorded       the mean time of an iteration in the trace
replayed       that in the replay, its error, and the worst error of an iteration
dPRO's way     the error without waits between threads and streams: tasks need the previous one on
               their thread or stream, their launch, and the other ranks of a collective
other steps    the mean error of an iteration, without its own times: each task takes the median of
               the same task in the other iterations; beside it, the error if an iteration took as
               long as the median of the others
left out       the time in which streams waited for an unknown reason, of all streams together,
               over the time of the iterations

Takes a minute. Traces that cannot be replayed are listed with the reason.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

from rich.table import Table
from script import run_script

from byteprophet.errors import UserError
from byteprophet.report.console import ms_text, table_console
from byteprophet.traces.load import load_traces
from byteprophet.traces.result import TraceReplay, replay_traces
from byteprophet.traces.work import RankTrace, Task
from byteprophet.whole_files import write_whole

WORKER = Path(__file__).with_name("traces_worker.py")
KINDS = ("plain", "fork", "queue", "ddp")
SUFFIXES = (".json", ".json.gz", ".et")


def main(arguments: Sequence[str]) -> None:
    """Print a row for each trace."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="traces")
    parser.add_argument("--out", type=Path, help="keep the traces that are made here")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args(arguments)
    if not options.folder.is_dir():
        raise UserError(f"{options.folder}: there are no traces; they are not in the repository")
    found = sorted(
        path for path in options.folder.iterdir() if path.is_dir() or path.name.endswith(SUFFIXES)
    )
    rows: list[dict[str, Any]] = []
    refused: list[str] = []
    with tempfile.TemporaryDirectory() as temporary:
        made = make_traces(options.out or Path(temporary))
        for path in (*found, *made):
            row = _row_or_reason(path)
            if isinstance(row, str):
                refused.append(row)
            else:
                rows.append(row)
    console = table_console(150)
    console.print(_table(rows))
    console.print()
    for text in refused:
        console.print(f"refused: {text}", soft_wrap=True)
    errors = [abs(row["error"]) for row in rows]
    console.print(f"{len(rows)} traces: error mean {mean(errors):.2%}, worst {max(errors):.2%}")
    if options.json is not None:
        write_whole(options.json, json.dumps(rows, indent=1) + "\n")


def make_traces(folder: Path) -> list[Path]:
    """Trains and profiles. Returns a trace or a folder of them for each kind of job."""
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for kind in KINDS:
        if kind == "ddp":
            path = folder / "ddp"
            path.mkdir(exist_ok=True)
            with tempfile.TemporaryDirectory() as store:
                ranks = [
                    _start(kind, path / f"rank{rank}.json", str(rank), f"{store}/store")
                    for rank in range(2)
                ]
                statuses = [rank.wait(timeout=300) for rank in ranks]
        else:
            path = folder / f"{kind}.json"
            statuses = [_start(kind, path).wait(timeout=300)]
        if any(statuses):
            raise UserError(f"{WORKER.name} {kind}: ended with status {max(statuses)}")
        made.append(path)
    return made


def _start(kind: str, path: Path, *more: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, str(WORKER), kind, str(path), *more],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _row_or_reason(path: Path) -> dict[str, Any] | str:
    try:
        return row_of(path)
    except UserError as error:
        return str(error)


def row_of(path: Path) -> dict[str, Any]:
    """The figures of one job. Raises ``UserError`` if its traces cannot be replayed."""
    traces = load_traces([path])
    result = replay_traces(traces)
    if result.error is None:
        raise UserError(f"{path}: has no times to compare with")
    without = replay_traces(traces, with_waits=False)
    others, naive = _from_other_steps(traces, result)
    left_out_ns = sum(trace.unexplained_ns for trace in traces) / len(traces)
    return {
        "trace": path.name,
        "ranks": len(traces),
        "iterations": len(result.iterations),
        "measured_ns": result.measured_ns,
        "replayed_ns": result.replayed_ns,
        "error": result.error,
        "worst": max(abs(one.error) for one in result.iterations),
        "without_waits": without.error,
        "other_steps": others,
        "naive": naive,
        "left_out": left_out_ns / sum(one.measured_ns for one in result.iterations),
    }


def _from_other_steps(
    traces: Sequence[RankTrace], result: TraceReplay
) -> tuple[float | None, float | None]:
    """The mean error of iterations predicted from the others, and of the others' median."""
    if len(result.iterations) < 3:
        return None, None
    same = _same_tasks(traces)
    errors, naive = [], []
    for one in result.iterations:
        taken: dict[int, int] = {}
        for by_step in same:
            elsewhere = [task.duration_ns for step, task in by_step.items() if step != one.number]
            if one.number in by_step and elsewhere:
                taken[id(by_step[one.number])] = round(median(elsewhere))

        def durations(task: Task, duration_ns: int, taken: dict[int, int] = taken) -> int:
            return taken.get(id(task), duration_ns)

        changed = {it.number: it for it in replay_traces(traces, durations).iterations}
        errors.append(abs(changed[one.number].replayed_ns / one.measured_ns - 1))
        rest = [other.measured_ns for other in result.iterations if other is not one]
        naive.append(abs(median(rest) / one.measured_ns - 1))
    return mean(errors), mean(naive)


def _same_tasks(traces: Sequence[RankTrace]) -> list[dict[int, Task]]:
    """The tasks of each step that have the same name and position on their lane, by step."""
    found: dict[tuple[object, ...], dict[int, Task]] = {}
    for index, trace in enumerate(traces):
        counts = Counter[tuple[object, ...]]()
        for task in trace.tasks:
            kind = index, task.lane, task.name
            if task.step >= 0:
                key = *kind, counts[task.step, kind]
                counts[task.step, kind] += 1
                found.setdefault(key, {})[task.step] = task
    return list(found.values())


def _table(rows: Sequence[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("trace", overflow="fold")
    for name in (
        *("ranks", "iterations", "recorded", "replayed", "error", "worst", "dPRO's way"),
        *("other steps", "their median", "left out"),
    ):
        table.add_column(name, justify="right")
    for row in rows:
        others, naive = row["other_steps"], row["naive"]
        table.add_row(
            row["trace"],
            str(row["ranks"]),
            str(row["iterations"]),
            ms_text(row["measured_ns"]),
            ms_text(row["replayed_ns"]),
            f"{row['error']:+.2%}",
            f"{row['worst']:.2%}",
            f"{row['without_waits']:+.1%}",
            "" if others is None else f"{others:.1%}",
            "" if naive is None else f"{naive:.1%}",
            f"{row['left_out']:.1%}",
        )
    return table


if __name__ == "__main__":
    run_script(main)
