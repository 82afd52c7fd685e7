"""Real jobs with compressed gradients: they end as one process does, bit for bit."""

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
from compressed_worker import CASES, KEY, SAVED  # noqa: E402

WORKER = "compressed_worker.py"
Job = Callable[[str | None, int], list[dict[str, Any]]]


def results(folder: Path, ranks: int, **options: Any) -> list[dict[str, Any]]:
    """What each rank of a job has saved."""
    succeed(start(ranks, WORKER, out=str(folder), **options))
    return [torch.load(folder / f"rank-{rank}.pt") for rank in range(ranks)]


@pytest.fixture(scope="module")
def job(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Job:
    """What each rank has saved, by ``sync``; None: one process. A job runs once."""

    @functools.cache
    def run(sync: str | None, ranks: int) -> list[dict[str, Any]]:
        folder = tmp_path_factory.mktemp("compressed")
        cases = [each["case"] for each in asked(request, way=(sync, ranks))]
        return results(folder, ranks if sync else 1, sync=sync, cases=cases, as_ranks=ranks)

    return run


@pytest.mark.parametrize(
    ("case", "way"), pairs(tuple(CASES), (("allreduce", 3), ("dear", 2), ("dear-planned", 2)))
)
def test_equals_one_process(job: Job, way: tuple[str, int], case: str) -> None:
    sync, ranks = way
    found, (single,) = [each[case] for each in job(sync, ranks)], job(None, ranks)
    for rank in found:
        torch.testing.assert_close(rank, single[case], rtol=0, atol=0)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """The states of a job of three ranks, and where they are."""
    folder = tmp_path_factory.mktemp("saved")
    return folder, results(folder, 3, sync="dear", saves=True)


def test_saved_states_have_all_errors_or_this_ranks(
    saved: tuple[Path, list[dict[str, Any]]],
) -> None:
    _, ranks = saved
    for name in SAVED:
        whole = ranks[0][name]["whole"][KEY]
        assert whole["ranks"] == 3
        for number, rank in enumerate(ranks):
            for parameter, kept in rank[name]["whole"][KEY]["parameters"].items():
                assert torch.equal(kept["errors"], whole["parameters"][parameter]["errors"])
            own = rank[name]["shards"][KEY]
            assert (own["rank"], own["ranks"]) == (number, 3)
            for parameter, kept in own["parameters"].items():
                everyones = whole["parameters"][parameter]["errors"]
                assert torch.equal(everyones[number], kept["error"])
                assert kept["error"].any()


def test_another_number_of_ranks_gets_the_mean_of_all_errors(
    saved: tuple[Path, list[dict[str, Any]]], tmp_path: Path
) -> None:
    folder, (first, *_) = saved
    for rank in results(tmp_path, 2, sync="allreduce", loads=str(folder)):
        for name in SAVED:
            before, after = first[name]["whole"][KEY], rank[name]["whole"]
            assert after["ranks"] == 2
            for parameter, kept in after["parameters"].items():
                was = before["parameters"][parameter]
                mean = was["errors"].mean(dim=0)
                for error in kept["errors"]:
                    torch.testing.assert_close(error, mean)
                assert kept["steps"] == was["steps"]
                torch.testing.assert_close(kept["common"], was["common"], rtol=0, atol=0)
            assert "it was saved by rank 0 of 3, and this is rank" in rank[name]["refused"]
            assert "use state_dict()" in rank[name]["refused"]


def test_what_cannot_be_right_is_refused_by_name(tmp_path: Path) -> None:
    for rank, found in enumerate(results(tmp_path, 2, sync="dear-planned", refusals=True)):
        path = tmp_path / f"refused-{rank}.json"
        expected = {
            "bias": "'vector.bias', but it is no matrix: powersgd needs two dimensions or more",
            "other size": "'other.weight', but it has 128 bytes in this model, not 64",
            "missing": "'there.weight', but this model has no such parameter",
            "sparse": "'table.weight', but its gradients are sparse",
            "float64": "'wide.weight', but it is of torch.float64, not of torch.float32",
        }
        for name, text in expected.items():
            assert found[name] == f"UserError: {path}: it compresses the gradient of {text}"
        assert f"{path}: it compresses gradients, and the script compresses" in found["fp16"]
        for call in ("state_dict", "sharded_state_dict"):
            assert f"{call}() between backward() and step(): the gradient of '" in found[call]
        assert "GradScaler cannot be used with a strategy that compresses" in found["scaler"]
        assert "an optimizer without the state of compressed gradients" in found["checkpoint"]
        assert "ranks load states of different steps" in found["steps"]
        assert "ValueError: load_state_dict(): the error of '" in found["shape"]


def test_collectives_compress_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BYTEPROPHET_TRANSPORT", "collectives")
    for said in map(fail, start(2, WORKER, out=str(tmp_path), sync="dear")):
        assert "the collectives of a process group send no compressed gradients" in said


def test_a_rank_that_dies_is_named(tmp_path: Path) -> None:
    first, second, third = start(3, WORKER, out=str(tmp_path), sync="allreduce", dies_at=3)
    assert "rank 1 is gone" in fail(first)
    assert "rank 1 is gone" in fail(third)
    second.wait()


def test_a_rank_that_saves_nothing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = start(2, WORKER, out=str(tmp_path), sync="allreduce", late=True)
    assert "rank 1" in fail(first)
    second.wait()
