"""Jobs of a grid that take as long as a test states: real ones take minutes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from byteprophet.bench import Case, Plan, grid_run
from byteprophet.bench.execute import Measured
from byteprophet.launcher import JobResult
from byteprophet.paced.worker_config import WorkerResult
from byteprophet.workload import Tensor, Workload, to_toml

MS = 1_000_000
Ran = list[tuple[Case, Plan]]


def small_cell(directory: Path) -> list[str]:
    """Options of one cell, and of its jobs and their place, in ``directory``."""
    tensors = tuple(Tensor(f"t{n}", 4_000_000, 30 * MS, 60 * MS) for n in range(4))
    (directory / "small").write_text(to_toml(Workload("small", 8, tensors)))
    cell = ["--models", str(directory / "small"), "--ratios", "1", "--ranks", "2"]
    return [*cell, "--rounds", "2", "--out", str(directory / "out")]


def state_jobs(monkeypatch: pytest.MonkeyPatch, iteration_ns: Callable[[Case], int]) -> Ran:
    """Instead of running them; every job is noted."""
    ran: Ran = []

    def run(case: Case, plan: Plan, _workload: Workload, runs: Path, _spaces: bool) -> Measured:
        ran.append((case, plan))
        times_ns = (iteration_ns(case),) * plan.iterations_per_job
        workers = [
            WorkerResult(
                *(rank, case.workers, times_ns, 0.1, 0.0, "ab", plan.updates, 0, 0, sum(times_ns)),
                wire_bytes=(17_000_000 * len(times_ns), 16_000_000 * len(times_ns)),
            )
            for rank in range(case.workers)
        ]
        return Measured(runs / "job", JobResult(0, (), None, 1.0), workers)

    monkeypatch.setattr(grid_run, "run_case", run)
    return ran
