"""Real jobs whose ranks own unequal shards: they end as jobs with equal ones do, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from ..thorough import THOROUGH
from .shared_jobs import assert_alike, fail, start, train

pytestmark = [pytest.mark.job, pytest.mark.timeout(900)]
OWNERS = [2, 0, 1]


def assert_equal(results: list[dict[str, Any]], others: list[dict[str, Any]]) -> None:
    assert_alike(results)
    for what in ("parameters", "state"):
        torch.testing.assert_close(results[0][what], others[0][what], rtol=0, atol=0)


@pytest.mark.parametrize("sync", ["allreduce", "dear"])
def test_equals_equal_owners_and_moves_what_they_own(sync: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"sync": sync, "iterations": (0, 12), "fusion": 4000}
    equal = train(tmp_path / "equal", 3, **options)
    unequal = train(tmp_path / "unequal", 3, owners=OWNERS, **options)
    assert_equal(unequal, equal)
    sent_bytes = [rank["seen"]["sent_bytes"] for rank in unequal]
    # A rank with the share s sends 1 + (3 - 2) s of each gradient: 5, 3 and 4 parts of 12 in all.
    for sent, parts in zip(sent_bytes, (5, 3, 4), strict=True):
        assert sent / sum(sent_bytes) == pytest.approx(parts / 12, rel=0.03)
    if sync == "dear":
        kept = [rank["seen"]["kept"] for rank in unequal]
        elements = sum(value.numel() for value in equal[0]["parameters"].values())
        counters = len(equal[0]["parameters"])
        assert sum(kept) == 2 * elements + 3 * counters
        assert kept[1] == counters


@pytest.mark.parametrize(
    ("owners", "others"),
    [
        pytest.param(OWNERS, [1, 2, 0], marks=THOROUGH),
        (None, OWNERS),
        ([0, 1, 0], None),
    ],
)
def test_shards_are_loaded_by_other_owners(
    owners: list[int] | None, others: list[int] | None, tmp_path: Path
) -> None:
    """Also of a plan with whole and sharded buckets, by an optimizer that has no plan yet."""
    options: dict[str, Any] = {"owners": owners, "other_owners": others, "fusion": 4000}
    jobs = [
        train(tmp_path / "dear", 3, sync="dear", reloads=True, iterations=(0, 4), **options),
        train(tmp_path / "plan", 3, sync="dear-planned", adopt_at=3, iterations=(0, 8), **options),
    ]
    for results in jobs:
        assert_alike(results)
        for rank in results:
            torch.testing.assert_close(rank["seen"]["reloaded"], rank["state"], rtol=0, atol=0)


def test_a_plan_is_made_for_unequal_owners(tmp_path: Path) -> None:
    options: dict[str, Any] = {"sync": "dear-planned", "iterations": (0, 20)}
    planned = train(tmp_path / "planned", 3, owners=OWNERS, until_settled=True, **options)
    assert all(rank["seen"]["settled"] for rank in planned)
    assert planned[0]["seen"]["groups"] == planned[1]["seen"]["groups"]
    options["iterations"] = (0, planned[0]["seen"]["iterations"])
    assert_equal(planned, train(tmp_path / "equal", 3, fusion=4000, **options))


def test_ranks_with_other_weights_are_refused(tmp_path: Path) -> None:
    for said in map(fail, start(3, out=str(tmp_path), sync="dear", owners=OWNERS, odd_owners_on=2)):
        assert "is owners='2,0,1' on rank 0, owners='1,0,2' on rank 2" in said


def test_weights_for_another_number_of_ranks_are_refused(tmp_path: Path) -> None:
    said = "owners 1,1: 2 weights for 3 ranks: give one for each rank"
    for heard in map(fail, start(3, out=str(tmp_path), sync="allreduce", owners=[1, 1])):
        assert said in heard.splitlines()[-1]


def test_collectives_refuse_unequal_owners(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BYTEPROPHET_TRANSPORT", "collectives")
    for heard in map(fail, start(2, out=str(tmp_path), sync="dear", owners=[2, 1])):
        assert "owners 2,1: the collectives of a process group move equal shards" in heard
