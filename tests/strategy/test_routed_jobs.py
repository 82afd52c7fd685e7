"""Real jobs of two transports: made from a record of one, run, recorded, and replayed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from byteprophet.bench import Case, Plan, run_bench
from byteprophet.bench.case import all_reduce_case, strategy_case, warmup_of
from byteprophet.cli.main import run_cli
from byteprophet.job.routes import MESH, SERVERS, bytes_of
from byteprophet.job.strategy_file import read_strategy_file
from byteprophet.measure.run import Run
from byteprophet.measure.servers import measure_run
from byteprophet.network import why_not_permitted
from byteprophet.strategy.explanation import explain
from byteprophet.strategy.routed import routable

from ..bench.test_execute import mixed_workload, write

RATE_BPS = 300_000_000
WORKERS = 3
_REASON = why_not_permitted()
pytestmark = [
    pytest.mark.job,
    pytest.mark.timeout(400),
    pytest.mark.skipif(_REASON is not None, reason=str(_REASON)),
]


def run_recorded(case: Case, folder: Path) -> Path:
    plan = Plan((case,), 8, 1, warmup_of([case]), record=True, idle_s=0.0)
    (row,) = run_bench(plan, folder / "runs", True, print)
    return Path(row["run"])


def case_of(folder: Path) -> Case:
    workload = mixed_workload()
    alone = tuple(replace(tensor, burst=None) for tensor in workload.tensors)
    return Case(
        write(replace(workload, tensors=alone), folder),  # every gradient has a span of its own
        "prophet",
        RATE_BPS,
        workers=WORKERS,
        server_bandwidth_bps={0: RATE_BPS},
    )


def explained(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> Any:
    capsys.readouterr()
    assert run_cli(["strategy", "explain", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("routed")


@pytest.fixture(scope="module")
def served(folder: Path) -> Path:
    """Recorded with a server."""
    return run_recorded(case_of(folder), folder)


@pytest.fixture(scope="module")
def meshed(folder: Path) -> Path:
    """The same job, recorded without servers."""
    return run_recorded(all_reduce_case(case_of(folder), "dear-planned", {}), folder)


def test_from_a_record_of_servers_to_a_mixed_job_and_its_replay(
    folder: Path, served: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mixed.json"
    capsys.readouterr()
    assert run_cli(["strategy", "make", "mixed", str(served), "--out", str(path)]) == 0
    assert "messages cost over the mesh was not recorded" in " ".join(
        capsys.readouterr().out.split()
    )
    used = read_strategy_file(path)
    predicted = used.predicted
    assert predicted is not None
    assert predicted.bound_ns <= predicted.iteration_ns
    low_ns, high_ns = predicted.interval_ns
    assert low_ns < predicted.iteration_ns < high_ns
    found = explained([str(path), str(served)], capsys)
    assert found["iteration_ns"] == predicted.iteration_ns
    assert found["assumed"] == "the mesh"

    run = run_recorded(strategy_case(case_of(folder), path), tmp_path)
    measured = measure_run(Run(run))
    strategy = measured.job.strategy
    assert (strategy.routes, strategy.buckets) == (used.strategy.routes, used.strategy.buckets)
    assert measured.job.model.names == used.model.names
    assert measured.job.iterations >= 3
    again = explain(measured, measured.job)
    to_servers, over_mesh = (
        sum(bytes_of(measured.job.model, strategy.routes, way)) for way in (SERVERS, MESH)
    )
    loads = {load.link: load.size_bytes for load in again.loads}
    expected = to_servers + over_mesh * 2 * (WORKERS - 1) / WORKERS
    for rank in range(WORKERS):
        assert loads[f"worker {rank} up"] == pytest.approx(expected, rel=1e-3)
    assert loads["server 0 down"] == WORKERS * to_servers
    assert not again.assumed
    assert explained([str(path), str(run)], capsys)["assumed"] is None
    for command in ("replay", "report"):
        assert run_cli([command, str(run)]) == 0, command
    assert run_cli(["strategy", "explain", str(path), str(run)]) == 0
    capsys.readouterr()
    assert run_cli(["optimize", str(run)]) == 2
    assert "a search cannot change routes" in capsys.readouterr().err


def test_from_a_record_of_the_mesh(
    meshed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mixed.json"
    make = ["strategy", "make", "mixed-paced", str(meshed), "--out", str(path)]
    assert run_cli(make) == 2
    assert "--servers" in capsys.readouterr().err
    assert run_cli([*make, "--servers", "1"]) == 0
    used = read_strategy_file(path)
    assert used.servers == 1
    assert used.strategy.mesh_bps > 0
    found = explained([str(path), str(meshed)], capsys)
    assert found["assumed"] == "servers"
    assert used.predicted is not None
    assert found["iteration_ns"] == used.predicted.iteration_ns


def test_records_of_both_transports_leave_nothing_to_assume(
    served: Path, meshed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mixed.json"
    make = ["strategy", "make", "mixed", "--out", str(path)]
    assert run_cli([*make, str(served), "--other", str(meshed)]) == 0
    there = explained([str(path), str(served), "--other", str(meshed)], capsys)
    assert there["assumed"] is None
    other = measure_run(Run(meshed)).job
    job = routable(Run(served), measure_run(Run(served)).job, None, other)
    assert job.cluster.mesh_costs == other.cluster.costs
    assert run_cli([*make, str(served), "--other", str(served)]) == 2
    assert "both runs were recorded with servers" in capsys.readouterr().err
    check = ["strategy", "check"]
    assert run_cli([*check, str(meshed), "--run", str(served)]) == 0  # parameter by parameter
    assert run_cli([*check, str(path), "--run", str(meshed)]) == 0
    assert run_cli(["strategy", "make", "ps", str(served), "--out", str(path)]) == 0
    assert run_cli([*check, str(path), "--run", str(meshed)]) == 2
    assert "--servers" in capsys.readouterr().err
    alone = ["strategy", "make", "ps", str(served), "--other", str(meshed)]
    assert run_cli([*alone, "--out", str(path)]) == 2
    assert "only a strategy of two transports needs it" in capsys.readouterr().err
