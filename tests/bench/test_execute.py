"""Real jobs: every scheduler must end with the parameters that the stated gradients give."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from byteprophet import schedulers
from byteprophet.bench import Case, Plan, run_bench
from byteprophet.bench.result import read_results
from byteprophet.errors import UserError
from byteprophet.job.order_file import read_order
from byteprophet.network.namespaces import BURST_BYTES
from byteprophet.paced.check import expected_parameters, parameters_sha256
from byteprophet.workload import Tensor, Workload, to_toml
from byteprophet.workload.run_config import read_run_config

from ..namespaces import why_not_permitted
from ..thorough import by_default

RATE_BPS = None if why_not_permitted() else 400_000_000


def mixed_workload() -> Workload:
    """Large and tiny tensors, bursts and none, sizes that are no multiple of any partition."""
    sizes = (4, 700_004, 40, 3_000_000, 256, 4_100_000, 1_000, 64)
    bursts = (None, 1, 1, None, 2, 2, 2, None)
    return Workload(
        "mixed",
        4,
        tuple(
            Tensor(f"layer{number}.weight", size, 2_000_000, 4_000_000, burst)
            for number, (size, burst) in enumerate(zip(sizes, bursts, strict=True))
        ),
    )


def write(workload: Workload, directory: Path) -> str:
    path = directory / "workload.toml"
    path.write_text(to_toml(workload), encoding="utf-8")
    return str(path)


@pytest.mark.job
@pytest.mark.parametrize("scheduler", by_default(schedulers.names, ("stock", "prophet")))
def test_parameters_are_those_of_the_stated_gradients(scheduler: str, tmp_path: Path) -> None:
    workload = mixed_workload()
    case = Case(write(workload, tmp_path), scheduler, RATE_BPS)
    plan = Plan((case,), iterations=5, rounds=1, idle_s=0.0)
    (row,) = run_bench(plan, tmp_path / "runs", RATE_BPS is not None, print)
    assert row["settings"]["updates"] == plan.updates
    expected = parameters_sha256(expected_parameters(workload, 2, plan.updates))
    assert row["parameters_sha256"] == expected
    assert (row["scheduled_partitions"] > 0) == (scheduler != "stock")
    assert row["iteration_ns"]["median"] >= row["bound_ns"]


@pytest.mark.job
def test_several_servers_and_three_workers_of_which_one_is_slow(tmp_path: Path) -> None:
    workload = mixed_workload()
    case = Case(write(workload, tmp_path), "prophet", RATE_BPS, workers=3, servers=2)
    if RATE_BPS is not None:
        case = replace(
            case,
            worker_bandwidth_bps={1: RATE_BPS // 4},
            server_bandwidth_bps={0: RATE_BPS, 1: RATE_BPS * 2},
        )
    plan = Plan((case,), iterations=3, rounds=1, idle_s=0.0)
    (row,) = run_bench(plan, tmp_path / "runs", RATE_BPS is not None, print)
    if RATE_BPS is not None:
        config = read_run_config(Path(row["run"]))
        assert config["server_bandwidth_bps"] == row["server_bandwidth_bps"]
        assert row["worker_bandwidth_bps"] == {"1": RATE_BPS // 4}
        # The one link alone takes this long for all bytes.
        assert row["bound_ns"] > workload.size_bytes * 8e9 / (RATE_BPS // 4)
        # What its limiter lets pass at once after a pause, in every iteration, is not in the bound.
        burst_ns = BURST_BYTES * 8e9 / (RATE_BPS // 4)
        assert row["iteration_ns"]["median"] >= row["bound_ns"] - burst_ns
    expected = parameters_sha256(expected_parameters(workload, 3, plan.updates))
    assert row["parameters_sha256"] == expected


@pytest.mark.job
def test_tuned_in_mid_run(tmp_path: Path) -> None:
    """With one setting given, and the slices tuned; other schedulers' jobs are as ever."""
    small = Workload("small", 4, (Tensor("a.weight", 400_004, 300_000, 300_000),))
    case = Case(
        write(small, tmp_path),
        "p3",
        None,
        settings={"outstanding_messages": 3},
        tune_iterations=100,
    )
    plan = Plan((case,), iterations=4, rounds=1, idle_s=0.0)
    (row,) = run_bench(plan, tmp_path / "runs", False, print)
    updates = plan.updates + 100
    assert row["settings"]["updates"] == updates
    expected = parameters_sha256(expected_parameters(small, 2, updates))
    assert row["parameters_sha256"] == expected
    (chosen,) = row["tuned"]["settings"]
    assert list(chosen) == ["partition_bytes"]
    assert row["tuned"]["iterations"] == 100
    json.dumps(row)
    (worker, _) = read_results(Path(row["run"]), 2)
    assert len(worker.tuning_ns) == 100
    assert len(worker.iteration_ns) == 4


@pytest.mark.job
@pytest.mark.parametrize(
    ("settings", "expected"),
    [({}, 1 << 21), ({"partition_max_bytes": 0}, 1 << 18), ({"partition_bytes": 1 << 19}, 1 << 19)],
)
def test_partitions_grow_on_a_fast_link_unless_they_were_given(
    settings: dict[str, int], expected: int, tmp_path: Path
) -> None:
    workload = mixed_workload()
    fast = {"bandwidth_bps": 8_000_000_000, **settings}
    case = Case(write(workload, tmp_path), "prophet", None, servers=2, settings=fast)
    plan = Plan((case,), iterations=4, rounds=1, idle_s=0.0)
    (row,) = run_bench(plan, tmp_path / "runs", False, print)
    assert row["partition_bytes"] == expected
    hashed = parameters_sha256(expected_parameters(workload, 2, plan.updates))
    assert row["parameters_sha256"] == hashed


@pytest.mark.job
@pytest.mark.parametrize("common", [0, 1])
def test_workers_agree_on_an_order_unless_they_must_not(common: int, tmp_path: Path) -> None:
    workload = mixed_workload()
    slow = {"bandwidth_bps": 400_000_000, "common_order": common}
    case = Case(write(workload, tmp_path), "prophet", None, workers=3, settings=slow)
    plan = Plan((case,), iterations=8, rounds=1, idle_s=0.0)
    (row,) = run_bench(plan, tmp_path / "runs", False, print)
    order = read_order(Path(row["run"]))
    if common:
        assert order is not None
        assert order.bandwidth_bps == 400_000_000
        assert 3 <= order.since <= plan.updates
        assert {"layer3.weight", "layer5.weight"} <= order.ready.keys()
    else:
        assert order is None
    hashed = parameters_sha256(expected_parameters(workload, 3, plan.updates))
    assert row["parameters_sha256"] == hashed


@pytest.mark.job
def test_one_worker(tmp_path: Path) -> None:
    workload = mixed_workload()
    case = Case(write(workload, tmp_path), "prophet", None, workers=1)
    plan = Plan((case,), iterations=2, rounds=1, idle_s=0.0)
    (row,) = run_bench(plan, tmp_path / "runs", False, print)
    expected = parameters_sha256(expected_parameters(workload, 1, plan.updates))
    assert row["parameters_sha256"] == expected


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"scheduler": "fastest"}, "fastest"),
        ({"workload": "resnet51"}, "resnet51"),
        ({"workers": 0}, "worker"),
        ({"servers": 0}, "--servers 0: BytePS needs at least one"),
        ({"settings": {"credit_bytes": 5}}, "credit_bytes"),
        ({"partition_bytes": -5}, "-5"),
        ({"tune_iterations": 250}, "'prophet' has nothing to tune"),
        ({"scheduler": "p3", "tune_iterations": 40}, "at least 100"),
    ],
)
def test_bad_cases_are_refused_before_anything_starts(
    change: dict[str, object], named: str, tmp_path: Path
) -> None:
    case = replace(Case("resnet50", "prophet", None), **change)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=named):
        run_bench(Plan((case,), 2, 1), tmp_path / "runs", False, print)
    assert not (tmp_path / "runs").exists()
