"""Real jobs without servers, by what they leave behind: parameters, state, groups."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from byteprophet.allreduce.groups import BUCKET_BYTES

from ..thorough import examples
from .shared_jobs import assert_alike, start, succeed, train

pytestmark = [pytest.mark.job, pytest.mark.timeout(900)]


@pytest.mark.parametrize("sync", ["allreduce", "dear", "dear-planned"])
def test_equals_ddp_before_and_after_the_plan(sync: str, tmp_path: Path) -> None:
    results = train(tmp_path / sync, 3, sync=sync, iterations=(0, 30), until_settled=True)
    assert_alike(results)
    (ddp, *_) = train(tmp_path / "ddp", 3, iterations=(0, results[0]["seen"]["iterations"]))
    for what in ("parameters", "state"):
        torch.testing.assert_close(results[0][what], ddp[what], rtol=2e-4, atol=1e-5)
    assert all(result["seen"]["settled"] for result in results)
    groups = [result["seen"]["groups"] for result in results]
    assert groups[0] == groups[1] == groups[2]
    whole = {whole for _, whole in groups[0]}
    assert whole == {"allreduce": {True}, "dear": {False}}.get(sync, whole)
    elements = sum(value.numel() for value in ddp["parameters"].values())
    counters = len(ddp["parameters"])
    kept = sum(result["seen"]["kept"] for result in results)
    if sync == "allreduce":
        assert kept == 3 * (2 * elements + counters)
    if sync == "dear":
        assert kept == 2 * elements + 3 * counters


def test_a_plan_of_whole_and_shared_groups(tmp_path: Path) -> None:
    """State is narrowed where a plan shares it, and whole again when a parameter joins."""
    options: dict[str, Any] = {"iterations": (0, 12), "fusion": 4000, "adopt_at": 3}
    planned = train(tmp_path / "planned", 3, sync="dear-planned", **options)
    (ddp, *_) = train(tmp_path / "ddp", 3, iterations=(0, 12))
    thawed = train(tmp_path / "thawed", 2, sync="dear-planned", thaw_at=7, **options)
    (frozen, _) = train(tmp_path / "frozen", 2, iterations=(0, 12), thaw_at=7)
    for results, expected in ((planned, ddp), (thawed, frozen)):
        assert_alike(results)
        for what in ("parameters", "state"):
            torch.testing.assert_close(results[0][what], expected[what], rtol=2e-4, atol=1e-5)
    assert {whole for _, whole in planned[0]["seen"]["groups"]} == {True, False}
    for rank in planned:
        torch.testing.assert_close(rank["seen"]["reloaded"], rank["state"], rtol=0, atol=0)


def test_the_size_of_groups_is_searched_alike(tmp_path: Path) -> None:
    results = train(tmp_path / "tuned", 2, sync="dear", until_settled=True, fusion="tuned")
    assert_alike(results)
    chosen = [result["seen"]["bucket_bytes"] for result in results]
    assert chosen[0] == chosen[1]
    assert chosen[0] in BUCKET_BYTES
    assert all(result["seen"]["settled"] for result in results)


def test_every_optimizer_updates_shares() -> None:
    """One that looks at more than single elements updates whole parameters."""
    succeed(start(2, "front/optimizers_worker.py"))


def test_ranks_of_different_speed_agree() -> None:
    """However long each takes for what, they never wait for one another in vain."""
    succeed(start(3, "skewed_worker.py", seeds=examples(4, 8)))


def test_goes_on_from_two_ranks_with_four(tmp_path: Path) -> None:
    train(tmp_path / "two", 2, sync="dear", iterations=(0, 6), fusion=4000)
    saved = str(tmp_path / "two" / "rank-0.pt")
    four = train(tmp_path / "four", 4, sync="dear-planned", iterations=(6, 12), load=saved)
    assert_alike(four)
    (single,) = train(tmp_path / "one", 1, iterations=(0, 12))
    torch.testing.assert_close(four[0]["parameters"], single["parameters"], rtol=2e-4, atol=1e-5)


def test_autocast_equals_ddp(tmp_path: Path) -> None:
    results = train(tmp_path / "dear", 2, sync="dear", autocast=True, fusion="near-layer")
    assert_alike(results)
    groups = [names for names, _ in results[0]["seen"]["groups"]]
    # Of four layers each, as they become ready: the last two blocks with the scale and the head.
    assert [len(names) for names in groups] == [7, 8, 2]
    (ddp, _) = train(tmp_path / "ddp", 2, autocast=True)
    torch.testing.assert_close(results[0]["parameters"], ddp["parameters"], rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("transport", ["sockets", "collectives"])
def test_averages_of_large_gradients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, transport: str
) -> None:
    monkeypatch.setenv("BYTEPROPHET_TRANSPORT", transport)
    for average in train(tmp_path, 2, sync="dear", large=True):
        assert torch.equal(average, torch.full((5, 1), 40_000.0))


def test_ranks_may_differ_in_what_they_wait_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that waits after each step must not hold up what the ranks tell each other then."""
    monkeypatch.setenv("BYTEPROPHET_TRANSPORT", "collectives")
    assert_alike(train(tmp_path, 2, sync="dear", fusion="tuned", iterations=(0, 12), hook_on=1))
