"""Real jobs with sparse gradients: they end as one process does, bit for bit."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ..thorough import asked, pairs
from .shared_jobs import fail, start, succeed

pytestmark = [pytest.mark.job, pytest.mark.timeout(600)]
sys.path.insert(0, str(Path(__file__).parent))
from rows_worker import CASES  # noqa: E402

RANKS = 3
WORKER = "rows_worker.py"
Job = Callable[[str | None], list[dict[str, Any]]]


@pytest.fixture(scope="module")
def job(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Job:
    """What each rank has saved, by ``sync``; None: one process. A job runs once."""

    @functools.cache
    def run(sync: str | None) -> list[dict[str, Any]]:
        folder, ranks = tmp_path_factory.mktemp("sparse"), RANKS if sync else 1
        cases = [each["case"] for each in asked(request, sync=sync)] if sync else [*CASES]
        succeed(start(ranks, WORKER, out=str(folder), cases=cases, sync=sync, as_ranks=RANKS))
        return [torch.load(folder / f"rank-{rank}.pt") for rank in range(ranks)]

    return run


@pytest.mark.parametrize(
    ("case", "sync"), pairs(tuple(CASES), ("allreduce", "dear", "dear-planned"))
)
def test_equals_one_process(job: Job, sync: str, case: str) -> None:
    ranks, (single,) = [each[case] for each in job(sync)], [each[case] for each in job(None)]
    for rank in ranks:
        # Norms of shards are added up, which rounds at other places (docs/allreduce.md).
        exact = sync == "allreduce" or case != "clipped"
        tolerance = {"rtol": 0, "atol": 0} if exact else {"rtol": 1e-5, "atol": 1e-6}
        torch.testing.assert_close(rank, single, **tolerance)
        torch.testing.assert_close(rank, ranks[0], rtol=0, atol=0)


def test_tables_may_be_declared_by_hand(job: Job, tmp_path: Path) -> None:
    options: dict[str, Any] = {"out": str(tmp_path), "cases": ["sgd"], "sync": "allreduce"}
    succeed(start(RANKS, WORKER, without_model=True, declares=True, **options))
    found, (single,) = torch.load(tmp_path / "rank-1.pt"), job(None)
    torch.testing.assert_close(found["sgd"], single["sgd"], rtol=0, atol=0)


def test_what_nobody_has_declared_is_named(tmp_path: Path) -> None:
    jobs = start(2, WORKER, out=str(tmp_path), cases=["sgd"], sync="allreduce", without_model=True)
    for said in map(fail, jobs):
        assert "is sparse and cannot be exchanged: give DistributedOptimizer model=" in said


def test_sparse_on_some_ranks_only_is_refused_at_the_start(tmp_path: Path) -> None:
    options: dict[str, Any] = {"out": str(tmp_path), "cases": ["sgd"], "sync": "dear"}
    for said in map(fail, start(2, WORKER, declares=True, dense_on=1, undeclared_on=1, **options)):
        assert "is sparse=['users.weight', 'words.weight', 'never.weight'] on rank 0" in said
        assert "on rank 1" in said


def test_a_dense_gradient_among_sparse_ones_is_named(tmp_path: Path) -> None:
    options: dict[str, Any] = {"out": str(tmp_path), "cases": ["sgd"], "sync": "allreduce"}
    for said in map(fail, start(2, WORKER, declares=True, dense_on=1, **options)):
        assert "it is dense on rank 1 and sparse on rank 0" in said
        assert "users.weight" in said or "words.weight" in said


def test_collectives_refuse_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BYTEPROPHET_TRANSPORT", "collectives")
    for said in map(fail, start(2, WORKER, out=str(tmp_path), cases=["sgd"], sync="dear")):
        assert "the gradients of parameter 'users.weight' are sparse" in said
        assert "the transport 'sockets'" in said


def test_a_rank_that_dies_is_named(tmp_path: Path) -> None:
    options: dict[str, Any] = {"out": str(tmp_path), "cases": ["adagrad"], "sync": "allreduce"}
    first, second, third = start(3, WORKER, dies_at=3, **options)
    assert "rank 1 is gone" in fail(first)
    assert "rank 1 is gone" in fail(third)
    second.wait()
