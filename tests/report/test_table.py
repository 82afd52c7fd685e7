"""A bench's results on the terminal."""

from __future__ import annotations

from typing import Any

from byteprophet.report.table import bench_table

RESULT: dict[str, Any] = {
    "workload": "resnet50",
    "runtime": "ddp",
    "scheduler": None,
    "workers": 2,
    "servers": 0,
    "paced": True,
    "real_time": True,
    "bandwidth_bps": 10**9,
    "partition_bytes": 0,
    "iteration_ns": {"median": 1_000_000_000, "p10": 990_000_000, "p90": 1_010_000_000},
    "samples_per_s": 64.0,
    "bound_ratio": 1.1,
    "worker_cpu_fraction": 0.1,
    "idle_cpu_fraction": 0.0,
    "eq7_ns": 900_000_000,
    "eq8_ns": 950_000_000,
}


def test_dear_is_measured_by_its_paper() -> None:
    dear = {**RESULT, "runtime": "dear", "eq6_max_speedup": 1.75}
    assert str(bench_table([RESULT]).caption) == ""
    assert str(bench_table([RESULT, dear]).caption) == (
        "dear, 1gbit: 0.900 of the largest speedup by Eq. 6 of its paper, 1.75 over one worker"
    )


def test_strategies_of_one_file_name_are_told_apart() -> None:
    paths = ("a/x.json", "b/x.json", "b/y.json", "b/y.new", "dear.json")
    rows = [{**RESULT, "strategy": path} for path in paths]
    table = bench_table([*rows, {**RESULT, "runtime": "dear"}])
    names = list(table.columns[1].cells)
    assert names == ["a/x", "b/x", "y.json", "y.new", "dear.json", "dear"]


def test_a_strategy_of_fewer_servers_says_so() -> None:
    served = {**RESULT, "scheduler": "fifo", "servers": 2}
    rows = [served, {**served, "strategy": "own.json", "servers": 1}]
    rows += [{**served, "strategy": "same.json"}, {**RESULT, "strategy": "none.json"}]
    names = list(bench_table(rows).columns[1].cells)
    assert names == ["fifo", "own, 1 server(s)", "same", "none"]
