"""Soak: a real job for a long time, and whether any of its roles grows.

    python experiments/soak.py --minutes 20 --workers 4 --servers 2

The workers train for that long, with random pauses on each, and check every parameter exactly
(``soak_worker.py``). Meanwhile memory, descriptors and threads of every role are sampled
(``role_samples.py``). Over the second half, each figure may change by 2 %: the mean of the fifth
right after half time is compared with that of the last fifth of that half. What a role needs to
get going is in the first half, and does not count.

Exit status 1 if anything grew or shrank by more, or the job failed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean

from recorded import RESULTS
from results_file import write_results
from rich import box
from rich.console import Console
from rich.table import Table
from role_samples import Sample, Sampler
from script import run_script

from byteprophet import schedulers
from byteprophet.bench import describe_machine
from byteprophet.errors import JobFailed, UserError
from byteprophet.launcher import JobSpec, make_run_directory, read_worker_results, run_job
from byteprophet.network import parse_rate

SCHEMA = 1
ALLOWED = 0.02  # change of any figure over the second half
_WORKER = Path(__file__).with_name("soak_worker.py")
_FEWEST_SAMPLES = 3  # in each window that is compared
# Not the proportional size: it changes with what else on the machine maps the same libraries.
_TITLES = {
    "own_bytes": "own MB",
    "rss_bytes": "RSS MB",
    "descriptors": "descriptors",
    "threads": "threads",
}


@dataclass(frozen=True)
class Change:
    """One figure of one role: means at half time and at the end, and their relative difference."""

    role: str
    field: str
    half: float
    end: float

    @property
    def fraction(self) -> float:
        """Of the value at half time."""
        return (self.end - self.half) / self.half

    @property
    def is_steady(self) -> bool:
        """Whether the change is allowed."""
        return abs(self.fraction) <= ALLOWED


_FAILURES = ("Error", "PeerLost", "TimedOut")


class Timekeeper:
    """When all workers have begun and the first has ended, from what they say."""

    def __init__(self) -> None:
        self._said: dict[str, list[float]] = {"soak: begin": [], "soak: end": []}

    def hear(self, role: str, line: str) -> None:
        """Called by the launcher with every line."""
        if line in self._said:
            self._said[line].append(time.monotonic())
        elif role.startswith("worker") and any(name in line for name in _FAILURES):
            print(f"[{role}] {line}", file=sys.stderr)

    def span_s(self) -> tuple[float, float]:
        """Begin and end on the monotonic clock."""
        begin, end = self._said.values()
        if not begin or not end:
            raise JobFailed("soak: the workers did not say when they began and ended")
        return max(begin), min(end)


def changes(samples: Sequence[Sample], begin_s: float, end_s: float) -> list[Change]:
    """Every figure of every role that lived from ``begin_s`` to ``end_s``."""
    half_s = (end_s - begin_s) / 2
    middle_s, window_s = begin_s + half_s, half_s / 5
    found = []
    for role in dict.fromkeys(sample.role for sample in samples):
        own = [sample for sample in samples if sample.role == role]
        windows = [
            [sample for sample in own if start <= sample.time_s <= start + window_s]
            for start in (middle_s, end_s - window_s)
        ]
        if min(map(len, windows)) < _FEWEST_SAMPLES:
            raise JobFailed(f"soak: too few samples of {role}; a longer run has more")
        for field in _TITLES:
            half, end = (mean(getattr(sample, field) for sample in window) for window in windows)
            found.append(Change(role, field, half, end))
    return found


def main(arguments: Sequence[str]) -> None:
    """Run the job, print the table; JobFailed if a role is not steady."""
    options = _parse(arguments)
    schedulers.resolve(options.scheduler, {})
    if options.minutes <= 0:
        raise UserError(f"--minutes {options.minutes:g}: must be positive")
    duration_s = 60 * options.minutes
    rate_bps = None if options.bandwidth is None else parse_rate(options.bandwidth, "--bandwidth")
    spec = JobSpec(
        command=(sys.executable, str(_WORKER), str(duration_s), str(options.seed)),
        run_directory=make_run_directory(options.runs, f"soak-{options.scheduler}"),
        workers=options.workers,
        servers=options.servers,
        scheduler=options.scheduler,
        bandwidth_bps=rate_bps,
        namespaces=options.bandwidth is not None,
        timeout_s=duration_s + 300,
    )
    timekeeper = Timekeeper()
    sampler = Sampler(spec.run_directory, period_s=min(1.0, duration_s / 100))
    try:
        run_job(spec, timekeeper.hear).check()
    finally:
        sampler.stop()
    results = read_worker_results(spec.run_directory)
    if len(results) != options.workers:
        raise JobFailed(f"soak: {len(results)} of {options.workers} workers wrote a result")
    begin_s, end_s = timekeeper.span_s()
    found = changes(sampler.samples, begin_s, end_s)
    iterations = results[0]["iterations"]
    Console(width=100).print(_table(found, f"{iterations} iterations in {end_s - begin_s:.0f} s"))
    print(f"parameters: exact on {len(results)} ranks after {iterations} iterations")
    if options.json:
        path = options.out / f"soak-{options.scheduler}.json"
        _save(path, options, results, found, sampler.samples, begin_s)
        print(f"saved: {path}")
    unsteady = [change for change in found if not change.is_steady]
    if unsteady:
        worst = max(unsteady, key=lambda change: abs(change.fraction))
        raise JobFailed(
            f"soak: {len(unsteady)} figures changed by more than {ALLOWED:.0%} over the second "
            f"half, most {worst.role}'s {worst.field} by {worst.fraction:+.1%}"
        )
    print(f"steady: all figures within {ALLOWED:.0%} over the second half")


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Run a job for a long time and see whether any of its roles grows.",
        epilog="example: python experiments/soak.py --minutes 20 --workers 4 --servers 2",
    )
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--scheduler", default=schedulers.DEFAULT)
    parser.add_argument("--bandwidth", help="rate of each worker's link; default: loopback")
    parser.add_argument("--seed", type=int, default=0, help="of gradients and pauses")
    parser.add_argument("--json", action="store_true", help="save the samples")
    parser.add_argument("--out", type=Path, default=RESULTS, help="directory for --json")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="for run directories")
    return parser.parse_args(arguments)


def _table(found: Sequence[Change], title: str) -> Table:
    table = Table(
        title=f"half time, end, change: {title}", box=box.SIMPLE_HEAD, title_justify="left"
    )
    table.add_column("role")
    for name in _TITLES.values():
        table.add_column(name, justify="right")
    for role in dict.fromkeys(change.role for change in found):
        cells = []
        for change in found:
            if change.role == role:
                scale = 1e6 if change.field.endswith("bytes") else 1.0
                digits = 1 if scale > 1 else 0
                half, end = (f"{value / scale:.{digits}f}" for value in (change.half, change.end))
                mark = "" if change.is_steady else " !"
                cells.append(f"{half} {end} {change.fraction:+.2%}{mark}")
        table.add_row(role, *cells)
    return table


def _save(
    path: Path,
    options: argparse.Namespace,
    results: Sequence[dict[str, object]],
    found: Sequence[Change],
    samples: Sequence[Sample],
    begin_s: float,
) -> None:
    content = {
        "schema": SCHEMA,
        "machine": describe_machine(),
        "minutes": options.minutes,
        "workers": options.workers,
        "servers": options.servers,
        "scheduler": options.scheduler,
        "bandwidth": options.bandwidth,
        "seed": options.seed,
        "results": list(results),
        "changes": [{**asdict(change), "fraction": change.fraction} for change in found],
        # Seconds from the first iteration.
        "samples": [
            {**asdict(sample), "time_s": round(sample.time_s - begin_s, 2)} for sample in samples
        ],
    }
    write_results(path, content)


if __name__ == "__main__":
    run_script(main)
