"""Real jobs with awkward traffic: what the ranks do differs, the sums are exact."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from byteprophet import schedulers
from byteprophet.launcher import JobSpec, run_job

from ..thorough import by_default

pytestmark = pytest.mark.job
WORKER = Path(__file__).with_name("traffic_worker.py")
PHASES = ("divergent", "overtaking", "skipping", "spread", "in_a_row", "twice", "early_end")
# Sums that each rank checks in all phases: 40 x 8, 12 x 8, late, 12 x 3, 30 + 3, 3, last; and those
# of `skipping`, which its seed decides.
FIXED_SUMS = 320 + 96 + 1 + 36 + 33 + 3 + 1


def run(tmp_path: Path, scheduler: str, workers: int, servers: int, seed: int) -> None:
    spec = JobSpec(
        command=(sys.executable, str(WORKER), str(seed), *PHASES),
        run_directory=tmp_path / "run",
        directory=tmp_path,
        scheduler=scheduler,
        workers=workers,
        servers=servers,
        partition_bytes=1 << 16,
        environment={"BYTEPROPHET_TIMEOUT_S": "60"},
        timeout_s=150.0,
    )
    said: list[str] = []
    result = run_job(spec, lambda _, line: said.append(line))
    assert result.failed is None
    counts = [int(line.split()[2]) for line in said if line.endswith(" right sums")]
    assert len(counts) == workers
    assert len(set(counts)) == 1
    assert FIXED_SUMS + 20 < counts[0] < FIXED_SUMS + 80


@pytest.mark.parametrize(
    "scheduler",
    # tests/torch/test_cases.py has all, and the next test has prophet.
    by_default(schedulers.names, ("stock", "p3")),
)
def test_two_workers_and_three_servers(tmp_path: Path, scheduler: str) -> None:
    run(tmp_path, scheduler, workers=2, servers=3, seed=1)


def test_four_workers_and_two_servers(tmp_path: Path) -> None:
    run(tmp_path, "prophet", workers=4, servers=2, seed=2)
