"""Recorded jobs for the figures: run once, kept, and looked at by several scripts.

A job is kept in ``<runs>/recorded/<what it is>/``: its run directory, and ``counters.json``, what
the interface of worker 0 counted while it ran. Asked for again, the job is not run again; to have
it run again, remove the directory.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from counters import Counters
from results_file import write_results
from rich.console import Console

from byteprophet import schedulers
from byteprophet.bench import Case, Plan, describe_machine
from byteprophet.bench.execute import check_case, run_case
from byteprophet.bench.result import read_results
from byteprophet.cli.lists import split
from byteprophet.errors import UserError
from byteprophet.network import format_rate, parse_rate, why_not_permitted
from byteprophet.paced.busy import Interval, read_busy
from byteprophet.paced.worker_config import WorkerResult
from byteprophet.timeline.read_events import load_rank
from byteprophet.timeline.tables import TRANSFER, TRANSFERS, Transfers
from byteprophet.whole_files import write_whole
from byteprophet.workload import load, to_toml

RESULTS = Path(__file__).parent / "results"
RANK = 0  # the worker that is looked at
SCHEDULERS = "stock,fifo,p3,bytescheduler,prophet"
_SAMPLES = "counters.json"

PROGRESS = Console(stderr=True)


@dataclass(frozen=True)
class Recorded:
    """One job that is kept in ``directory``."""

    case: Case
    directory: Path

    @property
    def bandwidth_bps(self) -> int:
        """Of the worker's link."""
        assert self.case.bandwidth_bps is not None
        return self.case.bandwidth_bps

    def facts(self) -> dict[str, Any]:
        """What every row says of its job."""
        return {
            "workload": self.case.workload.rpartition("/")[2].removesuffix(".toml"),
            "scheduler": self.case.scheduler,
            "bandwidth_bps": self.bandwidth_bps,
            "workers": self.case.workers,
            "servers": self.case.servers,
            "iteration_ns": self.iteration_ns(),
        }

    def results(self) -> list[WorkerResult]:
        """What the workers measured, by rank."""
        return read_results(self.directory, self.case.workers)

    def measured(self) -> Interval:
        """From the begin of the first measured iteration to the end of the last."""
        worker = self.results()[RANK]
        return worker.first_monotonic_ns, worker.last_monotonic_ns

    def transfers(self) -> Transfers:
        """Those of all iterations; none under stock, which records nothing."""
        if self.case.scheduler == schedulers.STOCK:
            return np.zeros(0, TRANSFER)
        return load_rank(self.directory, TRANSFERS, RANK).rows

    def busy(self) -> list[Interval]:
        """When the device computed."""
        return read_busy(self.directory, RANK)

    def counters(self) -> npt.NDArray[np.int64]:
        """Rows of the monotonic clock in ns, bytes sent and received so far by the interface."""
        rows = json.loads((self.directory / _SAMPLES).read_text(encoding="utf-8"))
        return np.array(rows, np.int64).reshape(-1, 3)

    def iteration_ns(self) -> int:
        """Median of the slowest worker's."""
        return int(np.median(np.max([worker.iteration_ns for worker in self.results()], axis=0)))


def add_options(parser: argparse.ArgumentParser, names: str, workloads: str = "resnet50") -> None:
    """The options that say which jobs."""
    parser.add_argument("--workloads", default=workloads)
    parser.add_argument("--schedulers", default=names)
    parser.add_argument("--bandwidth", default="1gbit", help="of each worker's link")
    parser.add_argument("--compute-ns", type=int, help="default: the workload's own")
    parser.add_argument("--iterations", type=int, default=12, help="measured ones of each job")
    add_places(parser)


def add_places(parser: argparse.ArgumentParser) -> None:
    """The options that say where results and runs are kept."""
    parser.add_argument("--out", type=Path, default=RESULTS, help="directory for the results")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="for run directories")


def limited(text: str) -> int:
    """The rate that ``--bandwidth`` names; UserError where there is none or links have no limit."""
    rate_bps = parse_rate(text, "--bandwidth")
    if rate_bps is None:
        raise UserError("--bandwidth: an unlimited link has no utilisation")
    return rate_bps


def need_namespaces() -> None:
    """UserError where links cannot be limited."""
    reason = why_not_permitted()
    if reason is not None:
        raise UserError(f"limited links need network namespaces: {reason}")


def jobs(options: argparse.Namespace) -> Iterator[Recorded]:
    """The jobs that ``add_options`` asked for, workload by workload; run where they are missing."""
    rate_bps = limited(options.bandwidth)
    workloads = split(options.workloads, "--workloads")
    names = split(options.schedulers, "--schedulers")
    cases = [
        Case(workload, name, rate_bps, compute_ns=options.compute_ns)
        for workload in workloads
        for name in names
    ]
    for case in cases:
        yield _job(case, options)


def _job(case: Case, options: argparse.Namespace) -> Recorded:
    plan = Plan((case,), options.iterations, rounds=1, record=True, idle_s=0.0)
    compute = "" if case.compute_ns is None else f"-{case.compute_ns / 1e6:g}ms"
    label = (
        f"{label_of(case.workload)}-{case.scheduler}-{format_rate(case.bandwidth_bps)}{compute}"
        f"-{options.iterations}"
    )
    kept = options.runs.absolute() / "recorded" / label
    if not (kept / _SAMPLES).exists():
        keep(case, plan, kept, options.runs)
    return Recorded(case, kept)


def label_of(workload: str) -> str:
    """Its name, where it is a file with a digest of what is in it: names repeat."""
    if not workload.endswith(".toml"):
        return workload
    content = to_toml(load(workload)).encode()
    return f"{Path(workload).stem}-{hashlib.sha256(content).hexdigest()[:8]}"


def keep(case: Case, plan: Plan, kept: Path, runs: Path) -> None:
    """Run the job and keep it in ``kept``, which is there only when all of it is."""
    need_namespaces()
    workload = check_case(case, plan, runs, namespaces=True)
    PROGRESS.print(f"recording {kept.name}")
    making = kept.with_name(f"{kept.name}.making")
    shutil.rmtree(making, ignore_errors=True)
    with Counters(making) as counters:
        directory = run_case(case, plan, workload, making, namespaces=True).directory
    text = json.dumps(counters.samples) + "\n"
    write_whole(directory / _SAMPLES, text)
    shutil.rmtree(kept, ignore_errors=True)
    directory.rename(kept)
    making.rmdir()


def write_rows(path: Path, options: argparse.Namespace, rows: Sequence[Any]) -> None:
    """The results file: machine, settings, rows."""
    places = {"out", "runs"}
    settings = {name: value for name, value in vars(options).items() if name not in places}
    content = {
        "schema": 1,
        "paced": True,
        "machine": describe_machine(),
        "settings": settings,
        "results": rows,
    }
    write_results(path, content)
