"""Real jobs of two workers: what we make of a script equals what BytePS as shipped makes of it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from byteprophet import _core
from byteprophet.launcher import JobSpec, run_job

pytestmark = pytest.mark.job
WORKER = Path(__file__).with_name("job_worker.py")
NOTHING: Mapping[str, str] = {}
Run = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Run a case once per way of running it; gives what each worker wrote."""
    known: dict[tuple[Any, ...], list[dict[str, Any]]] = {}

    def run_case(
        front: str,
        case: str,
        scheduler: str = "stock",
        environment: Mapping[str, str] = NOTHING,
    ) -> list[dict[str, Any]]:
        key = (front, case, scheduler, tuple(sorted(environment.items())))
        if key not in known:
            folder = tmp_path_factory.mktemp(f"{front}-{case}-{scheduler}")
            spec = JobSpec(
                command=(sys.executable, str(WORKER), front, case),
                run_directory=folder / "run",
                directory=folder,
                scheduler=scheduler,
                environment={"BYTEPROPHET_TIMEOUT_S": "60", **environment},
                timeout_s=120.0,
            )
            result = run_job(spec, None)
            assert result.failed is None
            results = sorted((folder / "run" / "results").glob("worker-*.json"))
            known[key] = [json.loads(path.read_text()) for path in results]
        return known[key]

    return run_case


def assert_as_shipped(run: Run, case: str, results: list[dict[str, Any]]) -> None:
    shipped = run("stock", case)
    assert len(results) == len(shipped) == 2
    assert {result["digest"] for result in results} == {shipped[0]["digest"]}
    assert shipped[1]["digest"] == shipped[0]["digest"]


@pytest.mark.parametrize("scheduler", _core.policy_names())
def test_unchanged_script_under_every_policy(run: Run, scheduler: str) -> None:
    results = run("auto", "sgd", scheduler)
    assert_as_shipped(run, "sgd", results)
    assert all(result["scheduled"] > 0 for result in results)


def test_without_the_plugin(run: Run) -> None:
    results = run("ours", "adamw")
    assert_as_shipped(run, "adamw", results)
    assert all(result["scheduled"] == 0 for result in results)


def test_clipping(run: Run) -> None:
    assert_as_shipped(run, "clipped", run("auto", "clipped", "prophet"))


def test_overlap_switched_off(run: Run) -> None:
    results = run("ours", "sgd", "p3", {"BYTEPROPHET_OVERLAP": "0"})
    assert_as_shipped(run, "sgd", results)


def test_cross_barrier(run: Run) -> None:
    assert_as_shipped(run, "sgd", run("auto", "crossed_sgd", "p3"))


def test_a_fault_in_one_worker_ends_the_job(tmp_path: Path) -> None:
    """It used to hang: BytePS waits at exit for the others, who wait for this one's gradients."""
    spec = JobSpec(
        command=(sys.executable, str(WORKER), "auto", "failing"),
        run_directory=tmp_path / "run",
        directory=tmp_path,
        scheduler="p3",
        timeout_s=100.0,
    )
    result = run_job(spec, None)
    assert result.exit_status == 1
    assert result.failed is not None
    assert result.failed.startswith("worker-1 ended with status 1")
    assert "a fault of this script" in result.failed


@pytest.mark.parametrize("scheduler", ["stock", "p3"])
def test_operations(run: Run, scheduler: str) -> None:
    """The worker checks the values; here, that both ranks end with one state."""
    results = run("ours", "operations", scheduler)
    assert results[0]["digest"] == results[1]["digest"]
