"""A batch size that is halved in mid-run: how soon profile and plan follow.

    python experiments/batch_change.py

Two workers, a server and a controller run paced ResNet-50 (0.3 s forward, 0.6 s backward) under
prophet on links of 2 Gbit/s. In mid-run the batch, and so the compute, halves. Printed per job, in
iterations from the first with the new batch:

- *profile*: until the controller has the last worker's profile of the new batch: one whose forward
  and backward are nearer to the new compute than to the old;
- *plan*: until the first plan made after that is in force on all workers.

Both are due within 20. Finished jobs are kept in the results file: started again, the script goes
on where it stopped. Writes ``batch_change.json`` and ``batch_change.png`` to experiments/results.
Five minutes on two cores.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from recorded import add_places, limited
from rows import Rows
from script import run_script

from byteprophet import schedulers
from byteprophet.bench.result import read_results
from byteprophet.control.log import NAME, read_events
from byteprophet.errors import UserError
from byteprophet.launcher import JobSpec, make_run_directory, run_job
from byteprophet.paced.worker_config import WorkerConfig
from byteprophet.report.plot import save, style_of
from byteprophet.whole_files import write_whole

DUE = 20
WORKERS = 2
_CONFIG = "worker.toml"
_SLOWEST_S = 20.0  # of an iteration, or the job is stuck

Row = Mapping[str, Any]
Event = Mapping[str, Any]


def main(arguments: Sequence[str]) -> None:
    """Run what is missing, print, draw."""
    options = _parse(arguments)
    if min(options.rounds, options.before, options.after) < 1:
        raise UserError("--rounds, --before and --after must be at least 1")
    rate_bps = limited(options.bandwidth)
    config = WorkerConfig(
        options.workload,
        schedulers.DEFAULT,
        warmup_iterations=0,
        iterations=options.before + options.after,
        compute_ns=options.compute_ns,
        idle_s=0.0,
        next_batch_at=options.before,
        next_batch_size=max(1, _batch_size(options) // 2),
    )
    common = {
        "workload": options.workload,
        "bandwidth_bps": rate_bps,
        "compute_ns": options.compute_ns,
        "iterations": config.iterations,
        "next_batch_at": config.next_batch_at,
        "next_batch_size": config.next_batch_size,
    }
    rows = Rows(options.out / "batch_change.json", common)
    cells: list[dict[str, Any]] = [{"round": number + 1} for number in range(options.rounds)]
    chosen = rows.complete(
        cells,
        lambda cell: f"round {cell['round']}",
        lambda _cell: _run(config, rate_bps, options),
    )
    for row in chosen:
        print(line(row))
    picture = options.out / "batch_change.png"
    save(draw(chosen), picture)
    print(f"saved: {options.out / 'batch_change.json'}, {picture}")


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Halve the batch in mid-run and see how soon profile and plan follow.",
        epilog="example: python experiments/batch_change.py --rounds 1 --after 30",
    )
    parser.add_argument("--workload", default="resnet50")
    parser.add_argument("--bandwidth", default="2gbit")
    parser.add_argument("--compute-ns", type=int, default=900_000_000, help="before the change")
    parser.add_argument(
        "--before", type=int, default=55, help="iterations; a first profile takes up to 50"
    )
    parser.add_argument("--after", type=int, default=35, help="iterations with the new batch")
    parser.add_argument("--rounds", type=int, default=3, help="jobs")
    add_places(parser)
    return parser.parse_args(arguments)


def _batch_size(options: argparse.Namespace) -> int:
    config = WorkerConfig(options.workload, schedulers.DEFAULT, 0, 1)
    return config.load_workload().batch_size


def _run(config: WorkerConfig, rate_bps: int, options: argparse.Namespace) -> dict[str, Any]:
    directory = make_run_directory(options.runs, "batch-change")
    path = (directory / _CONFIG).absolute()
    write_whole(path, config.to_toml())
    spec = JobSpec(
        command=(sys.executable, "-m", "byteprophet.paced.worker", str(path)),
        run_directory=directory,
        workers=WORKERS,
        scheduler=schedulers.DEFAULT,
        bandwidth_bps=rate_bps,
        namespaces=True,
        controller=True,
        timeout_s=_SLOWEST_S * config.updates,
    )
    run_job(spec).check()
    before, after = config.load_workload(), config.load_next_workload()
    workers = read_results(directory, WORKERS)
    row: dict[str, Any] = {
        "changed_at": config.next_batch_at,
        "compute_ns": [w.forward_ns + w.backward_ns for w in (before, after)],
        "batch_size": [before.batch_size, after.batch_size],
        "starts_ns": starts_ns([w.iteration_ns for w in workers], workers[0].first_monotonic_ns),
        "run": directory.name,
    }
    return {**row, **followed(read_events(directory / NAME), row)}


def starts_ns(iteration_ns: Sequence[Sequence[int]], first_ns: int) -> list[int]:
    """When each update began, and the last ended; of the slowest worker."""
    slowest_ns = np.max(iteration_ns, axis=0)
    return [first_ns, *(first_ns + np.cumsum(slowest_ns)).tolist()]


def followed(events: Sequence[Event], row: Row) -> dict[str, int | None]:
    """Iterations with the new batch until profile and plan had followed; None: they did not.

    ``profile_iterations`` counts those that had begun when the controller had the last worker's new
    profile; ``plan_iterations`` those before the first one that the plan was in force for.
    """
    begins_ns = row["starts_ns"]
    changed_ns = begins_ns[row["changed_at"]]
    first_ns: dict[str, int] = {}
    for event in events:
        if event["event"] == "profile" and event["monotonic_ns"] > changed_ns:
            computes_ns = event["forward_ns"] + event["backward_ns"]
            before, after = (abs(computes_ns - there) for there in row["compute_ns"])
            if after < before:
                first_ns.setdefault(event["worker"], event["monotonic_ns"])
    if len(first_ns) < WORKERS:
        return {"profile_iterations": None, "plan_iterations": None}
    known_ns = max(first_ns.values())
    begun = int(np.searchsorted(begins_ns, known_ns, side="right")) - row["changed_at"]
    # The plug-in counts iterations from 1, updates count from 0.
    plans = (
        plan["at_iteration"] - 1 - row["changed_at"]
        for plan in events
        if plan["event"] == "plan"
        and plan["monotonic_ns"] >= known_ns
        and _adopted_by(events, plan["number"]) == WORKERS
    )
    return {"profile_iterations": begun, "plan_iterations": next(plans, None)}


def _adopted_by(events: Sequence[Event], plan: int) -> int:
    return len({e["worker"] for e in events if e["event"] == "adopted" and e["plan"] == plan})


def line(row: Row) -> str:
    """What is printed of one job."""
    told = []
    for name in ("profile", "plan"):
        count = row[f"{name}_iterations"]
        told.append(f"{name} {'did not follow' if count is None else f'after {count} iterations'}")
    samples = " to ".join(str(size) for size in row["batch_size"])
    return (
        f"job {row['round']}: batch {samples} at update {row['changed_at']}: "
        f"{', '.join(told)} (at most {DUE})"
    )


def draw(rows: Sequence[Row]) -> Figure:
    """Iteration times over updates, a panel per job; lines where profile and plan had followed."""
    figure = Figure(figsize=(8.5, 0.8 + 2.4 * len(rows)), layout="constrained")
    panels = figure.subplots(len(rows), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    colour, _ = style_of(schedulers.DEFAULT)
    for row, axes in zip(rows, panels, strict=True):
        times_ms = np.diff(row["starts_ns"]) / 1e6
        changed = row["changed_at"]
        axes.plot(range(len(times_ms)), times_ms, color=colour, linewidth=1.2, label="iteration")
        parts = ((0, changed), (changed, len(times_ms)))
        for (begin, end), compute_ns in zip(parts, row["compute_ns"], strict=True):
            axes.plot([begin, end], [compute_ns / 1e6] * 2, color="#000000", linewidth=0.8)
        axes.axvline(changed, color="#999999", linewidth=0.8, label="batch halved")
        for name, hue in (("profile", "#E69F00"), ("plan", "#009E73")):
            count = row[f"{name}_iterations"]
            if count is not None:
                label = f"{name}: {count} iterations"
                axes.axvline(changed + count, color=hue, linestyle="--", label=label)
        axes.set_ylim(bottom=0)
        axes.set_ylabel("ms")
        axes.legend(frameon=False, fontsize=8, ncols=2, loc="lower left")
        axes.spines[["top", "right"]].set_visible(False)
    panels[-1].set_xlabel("update")
    panels[0].set_title(
        "prophet with a controller, paced; black: compute alone", loc="left", fontsize="medium"
    )
    return figure


if __name__ == "__main__":
    run_script(main)
