from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from byteprophet.bench import Case, Plan
from byteprophet.bench.result import bound_ns, read_results, summarize
from byteprophet.errors import JobFailed
from byteprophet.network.namespaces import BURST_BYTES
from byteprophet.paced.worker_config import WorkerResult
from byteprophet.tune.journal import Journal
from byteprophet.workload import Tensor, Workload

WORKLOAD = Workload(
    "two", 8, (Tensor("a", 4_000_000, 10_000_000, 20_000_000), Tensor("b", 400, 0, 0))
)
CASE = Case("two.toml", "p3", 10**9)
PLAN = Plan((CASE,), iterations=3, rounds=1, warmup_iterations=2)
RESULT = WorkerResult(
    rank=0,
    size=2,
    iteration_ns=(10, 30, 50),
    cpu_fraction=0.25,
    idle_cpu_fraction=0.5,
    parameters_sha256="ab",
    updates=5,
    scheduled_partitions=7,
    first_monotonic_ns=0,
    last_monotonic_ns=90,
)


def test_the_slowest_worker_counts_in_every_iteration() -> None:
    other = replace(RESULT, rank=1, iteration_ns=(20, 20, 60), scheduled_partitions=6)
    row = summarize(CASE, PLAN, WORKLOAD, [(Path("run"), [RESULT, other])])
    assert row["iteration_ns"]["median"] == 30
    assert row["iteration_ns"]["p90"] == pytest.approx(54)
    assert row["samples_per_s"] == pytest.approx(8 / 30e-9, rel=1e-6)
    assert row["bound_ratio"] == pytest.approx(30 / row["bound_ns"], abs=1e-4)
    assert row["scheduled_partitions"] == 6
    assert row["settings"]["updates"] == 5
    json.dumps(row)


def test_the_bound_is_of_the_payload_rate() -> None:
    payload_ns = WORKLOAD.size_bytes * 8 / (1e9 * 0.9564) * 1e9
    # Both tensors are ready at 20 ms, and all the forward time comes after the first of them. What
    # the limiter lets pass at once is not waited for.
    expected_ns = 20e6 + (4_000_000 * 8 / 0.9564 - BURST_BYTES * 8) + 10e6
    assert bound_ns(WORKLOAD, CASE) == pytest.approx(max(expected_ns, payload_ns), abs=20)
    assert bound_ns(WORKLOAD, replace(CASE, bandwidth_bps=None)) == 30_000_000


def test_different_parameters_are_a_failure() -> None:
    other = replace(RESULT, parameters_sha256="cd")
    with pytest.raises(JobFailed, match="different parameters"):
        summarize(CASE, PLAN, WORKLOAD, [(Path("1"), [RESULT]), (Path("2"), [other])])


def test_ranks_must_agree_and_all_must_report(tmp_path: Path) -> None:
    RESULT.write(tmp_path)
    with pytest.raises(JobFailed, match="worker-1"):
        read_results(tmp_path, 2)
    replace(RESULT, rank=1, parameters_sha256="cd").write(tmp_path)
    with pytest.raises(JobFailed, match="different parameters"):
        read_results(tmp_path, 2)
    (tmp_path / "results" / "worker-1.json").write_text('{"schema": 2}')
    with pytest.raises(JobFailed, match=r"results: schema is not 1"):
        read_results(tmp_path, 2)
    replace(RESULT, rank=1).write(tmp_path)
    assert [result.rank for result in read_results(tmp_path, 2)] == [0, 1]


def test_bytes_on_the_wire_are_of_one_iteration_and_the_worker_with_the_most() -> None:
    first, other = (
        replace(RESULT, rank=rank, wire_bytes=wire) for rank, wire in enumerate([(30, 60), (36, 9)])
    )
    row = summarize(CASE, PLAN, WORKLOAD, [(Path("run"), [first, other])])
    assert (row["sent_bytes"], row["received_bytes"]) == (12, 20)


def test_ranks_must_measure_alike(tmp_path: Path) -> None:
    RESULT.write(tmp_path)
    replace(RESULT, rank=1, iteration_ns=(20, 20)).write(tmp_path)
    with pytest.raises(JobFailed, match="unequal numbers of iterations"):
        read_results(tmp_path, 2)


def test_a_journal_without_costs_is_named(tmp_path: Path) -> None:
    case = replace(CASE, tune_iterations=100)
    Journal(tmp_path).write(trial=0, iteration=3)
    with pytest.raises(JobFailed, match=r"tuning.jsonl: an entry has no cost of its change"):
        summarize(case, PLAN, WORKLOAD, [(tmp_path, [RESULT])])
