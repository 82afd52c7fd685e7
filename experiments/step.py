"""A link that changes in mid-run: how soon the estimate and the iteration time follow.

    python experiments/step.py

Two workers and a server run paced ResNet-50 (0.2 s forward, 0.4 s backward). In mid-run the
workers' links step from 1 to 3 Gbit/s, in other jobs from 3 to 1, under fifo and prophet in turn.
Printed per job, the worst worker's:

- *estimate*: the network monitor's, against the payload rate of the new link, once 2 s of traffic
  have gone over it (busy time, as the monitor counts it);
- *iteration*: the median of iterations 5 to 9 after the step against the settled one, the median of
  all from the tenth on.

Writes ``step.json`` and ``step.png`` to experiments/results. Three minutes on two cores.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from recorded import add_places, need_namespaces
from results_file import write_results
from script import progress_of, run_script, scheduler_names

from byteprophet import schedulers
from byteprophet.bench import Case, Plan, describe_machine, run_bench
from byteprophet.bench.case import WARMUP_ITERATIONS
from byteprophet.bench.result import read_results
from byteprophet.cli.lists import split
from byteprophet.errors import JobFailed, UserError
from byteprophet.launcher.stepper import read_steps
from byteprophet.monitor.samples import read_network
from byteprophet.network import Step, format_rate, parse_rate, payload_bps
from byteprophet.report.plot import save, style_of
from byteprophet.session.monitoring import VARIABLE

SCHEMA = 1
TRAFFIC_NS = 2_000_000_000
FOLLOWED = 5  # iterations after which the new time is due
SETTLED = 10  # iterations after which it is taken as settled

Row = Mapping[str, Any]
_progress = progress_of("step")


def main(arguments: Sequence[str]) -> None:
    """Run, print, save."""
    options = _parse(arguments)
    names = scheduler_names(options.schedulers)
    if schedulers.STOCK in names:
        raise UserError("--schedulers: stock records nothing")
    low, high = (parse_rate(text, "--rates") for text in _pair(options.rates))
    if low is None or high is None:
        raise UserError("--rates: a step needs two rates, e.g. 1gbit,3gbit")
    if options.iterations <= SETTLED:
        raise UserError(f"--iterations {options.iterations}: must be more than {SETTLED}")
    need_namespaces()
    rows = []
    for before, after in ((low, high), (high, low)):
        for name in names:
            rows.append(_run(name, before, after, options))
            print(_line(rows[-1]), flush=True)
    content = {"schema": SCHEMA, "machine": describe_machine(), "results": rows}
    write_results(options.out / "step.json", content)
    save(draw(rows), options.out / "step.png")
    print(f"saved: {options.out / 'step.json'}, {options.out / 'step.png'}")


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Change the workers' links in mid-run and see what follows how soon.",
        epilog="example: python experiments/step.py --schedulers prophet --rates 500mbit,2gbit",
    )
    parser.add_argument("--schedulers", default="fifo,prophet")
    parser.add_argument("--rates", default="1gbit,3gbit", help="up in one job, down in another")
    parser.add_argument("--workload", default="resnet50")
    parser.add_argument("--compute-ns", type=int, default=600_000_000)
    parser.add_argument(
        "--iterations", type=int, default=20, help="before the step, and as many after it"
    )
    add_places(parser)
    return parser.parse_args(arguments)


def _pair(text: str) -> tuple[str, str]:
    rates = split(text, "--rates")
    if len(rates) != 2:
        raise UserError(f"--rates {text!r}: give two, e.g. 1gbit,3gbit")
    return rates[0], rates[1]


def _run(scheduler: str, before: int, after: int, options: argparse.Namespace) -> Row:
    step = Step(after, at_update=WARMUP_ITERATIONS + options.iterations)
    case = Case(
        options.workload,
        scheduler,
        before,
        compute_ns=options.compute_ns,
        steps=(step,),
        environment={VARIABLE: "1"},
    )
    _progress(f"{scheduler}, {format_rate(before)} to {format_rate(after)}")
    plan = Plan((case,), 2 * options.iterations, rounds=1)
    (row,) = run_bench(plan, options.runs, namespaces=True, progress=lambda _line: None)
    run_directory = Path(row["run"])
    (made,) = read_steps(run_directory)
    if made["done_ns"] is None:
        raise JobFailed(f"the step was not made: see {run_directory}/logs")
    workers = read_results(run_directory, case.workers)
    slowest_ns = np.max([worker.iteration_ns for worker in workers], axis=0)
    starts_ns = workers[0].first_monotonic_ns + np.concatenate(([0], np.cumsum(slowest_ns)[:-1]))
    later_ns = slowest_ns[options.iterations :]
    settled_ns = int(median(later_ns[SETTLED:]))
    return {
        "workload": row["workload"],
        "scheduler": scheduler,
        "before_bps": before,
        "after_bps": after,
        "step_took_ns": made["done_ns"] - made["began_ns"],
        "estimates": [
            [[time_ns - made["done_ns"], busy_ns, bps] for time_ns, busy_ns, bps in rows]
            for rows in (worker.history["push"] for worker in read_network(run_directory))
        ],
        "iterations": [
            [int(start - made["done_ns"]), int(took)]
            for start, took in zip(starts_ns, slowest_ns, strict=True)
        ],
        "settled_ns": settled_ns,
        "followed_ns": int(median(later_ns[FOLLOWED:SETTLED])),
        "run": run_directory.name,
    }


def estimate_error(row: Row) -> float | None:
    """The worst worker's, TRAFFIC_NS of traffic after the step; None: there was too little."""
    truth = payload_bps(row["after_bps"])
    errors: list[float] = []
    for rows in row["estimates"]:
        busy_at_step = max((busy for time_ns, busy, _ in rows if time_ns <= 0), default=0)
        due = (bps for _, busy, bps in rows if busy >= busy_at_step + TRAFFIC_NS)
        estimate = next(due, None)
        if estimate is None or truth is None:
            return None
        errors.append(estimate / truth - 1)
    return max(errors, key=abs)


def _line(row: Row) -> str:
    error = estimate_error(row)
    estimate = "not known: too little traffic" if error is None else f"{100 * error:+.1f}%"
    distance = row["followed_ns"] / row["settled_ns"] - 1
    return (
        f"{row['scheduler']}, {format_rate(row['before_bps'])} to {format_rate(row['after_bps'])}: "
        f"estimate {estimate} after {TRAFFIC_NS / 1e9:.0f} s of traffic (at most 10%); "
        f"iteration {100 * distance:+.1f}% from the settled {row['settled_ns'] / 1e6:.0f} ms "
        f"after {FOLLOWED} iterations (at most 5%)"
    )


def draw(rows: Sequence[Row]) -> Figure:
    """Estimate above, iteration time below; a column per direction of the step."""
    kinds = list(dict.fromkeys((row["before_bps"], row["after_bps"]) for row in rows))
    figure = Figure(figsize=(1.2 + 4.8 * len(kinds), 6.0), layout="constrained")
    panels = figure.subplots(2, len(kinds), sharex="col", squeeze=False)
    for (before, after), (upper, lower) in zip(kinds, panels.T, strict=True):
        chosen = [row for row in rows if (row["before_bps"], row["after_bps"]) == (before, after)]
        ends_s = [max(start for start, _ in row["iterations"]) / 1e9 for row in chosen]
        begins_s = [min(start for start, _ in row["iterations"]) / 1e9 for row in chosen]
        truth = [(payload_bps(rate) or 0) / 1e9 for rate in (before, before, after, after)]
        upper.plot(
            [min(begins_s), 0, 0, max(ends_s)],
            truth,
            color="#000000",
            linestyle=(0, (5, 3)),
            label="the link's payload rate",
        )
        for row in chosen:
            colour, marker = style_of(row["scheduler"])
            for number, estimates in enumerate(row["estimates"]):
                points = [(t / 1e9, bps / 1e9) for t, _, bps in estimates]
                points = [(t, bps) for t, bps in points if min(begins_s) <= t <= max(ends_s)]
                label = row["scheduler"] if number == 0 else None
                upper.plot(*zip(*points, strict=True), color=colour, label=label, linewidth=1.4)
            times = [(start / 1e9, took / 1e6) for start, took in row["iterations"]]
            lower.plot(*zip(*times, strict=True), color=colour, marker=marker, markersize=4)
        title = f"{chosen[0]['workload']}, {format_rate(before)} to {format_rate(after)}"
        upper.set_title(title, loc="left", fontsize="medium")
        lower.set_xlabel("seconds since the step")
        for axes in (upper, lower):
            axes.axvline(0, color="#999999", linewidth=0.8)
            axes.set_ylim(bottom=0)
            axes.grid(alpha=0.25)
    panels[0][0].set_ylabel("estimate of the link, Gbit/s\n(a line per worker)")
    panels[1][0].set_ylabel("iteration time, ms")
    panels[0][0].legend(frameon=False, fontsize="small")
    return figure


if __name__ == "__main__":
    run_script(main)
