"""Real jobs of ranks that own unequal shards, one of them on a slow link if that is possible."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from byteprophet.allreduce.levelled import levelled
from byteprophet.bench import Case, Plan, run_bench
from byteprophet.job.owners import Owners
from byteprophet.job.strategy_file import read_strategy

from .test_execute import RATE_BPS, mixed_workload, write

RANKS = 3
BUCKET_BYTES = 1_000_000
ITERATIONS = 3


@pytest.mark.job
def test_parameters_are_those_of_a_job_with_equal_owners(tmp_path: Path) -> None:
    workload = mixed_workload()
    settings = {"bucket_bytes": BUCKET_BYTES}
    equal = Case(
        write(workload, tmp_path),
        "prophet",
        RATE_BPS,
        workers=RANKS,
        servers=0,
        runtime="allreduce",
        settings=settings,
        worker_bandwidth_bps={} if RATE_BPS is None else {2: RATE_BPS // 2},
    )
    owners = levelled([2, 2, 1])
    cases = [
        equal,
        replace(equal, owners=owners),
        replace(equal, runtime="dear", owners=owners),
        replace(equal, runtime="dear-planned", owners=Owners.of([0, 3, 1], RANKS)),
    ]
    plan = Plan(tuple(cases), iterations=ITERATIONS, rounds=1, idle_s=0.0)
    rows = run_bench(plan, tmp_path / "runs", RATE_BPS is not None, print)
    assert len({row["parameters_sha256"] for row in rows}) == 1
    assert [row["owners"] for row in rows] == [None, [1, 1, 0], [1, 1, 0], [0, 3, 1]]
    for row, case in zip(rows, cases, strict=True):
        used = read_strategy(Path(row["run"]))
        assert used is not None
        assert used.strategy.owners == case.weights
    if RATE_BPS is not None:  # what burst a limiter lets pass is far less than an iteration here
        assert len({row["bound_ns"] for row in rows}) == 1
        # Two owners send, and receive, one and a half times the bytes; of three, four thirds.
        # The interfaces' counters are read while a buffer may still be under way, at either end.
        edges_bytes = 2 * BUCKET_BYTES / ITERATIONS
        expected_bytes = rows[0]["sent_bytes"] * 9 / 8
        assert rows[1]["sent_bytes"] == pytest.approx(expected_bytes, abs=edges_bytes)
        assert rows[1]["sent_bytes"] - edges_bytes > rows[0]["sent_bytes"]
