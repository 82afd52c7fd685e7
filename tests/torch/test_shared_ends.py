"""How jobs without servers end: ranks that die, differ, or leave children."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from .shared_jobs import LIMIT_S, fail, start, succeed

pytestmark = [pytest.mark.job, pytest.mark.timeout(900)]
ENDS_WITHIN_S = 30.0  # after another rank has; what waits for its timeout waits 200 s


@pytest.mark.parametrize(
    ("transport", "said"),
    [("sockets", "rank 1 is gone"), ("collectives", "other ranks cannot be reached")],
)
def test_the_others_end_when_a_rank_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, transport: str, said: str
) -> None:
    """Also where the dead one leaves a child; gloo cannot tell then."""
    monkeypatch.setenv("BYTEPROPHET_TRANSPORT", transport)
    options = {"dies_at": 5, "leaves_child": transport == "sockets"}
    ranks = start(3, out=str(tmp_path), sync="dear", iterations=(0, 1000000), **options)
    assert ranks[1].wait(timeout=LIMIT_S) == 3
    died_s = time.monotonic()
    try:
        for number in (0, 2):
            errors = [line for line in fail(ranks[number]).splitlines() if "PeerLost: " in line]
            assert said in errors[-1]
        assert time.monotonic() - died_s < ENDS_WITHIN_S
    finally:
        (tmp_path / "over").touch()


def test_the_others_end_when_rank_0_has_left_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with one batch less. It decides what is sent next, and will say nothing any more."""
    monkeypatch.setenv("BYTEPROPHET_TRANSPORT", "collectives")
    first, second = start(2, out=str(tmp_path), sync="dear", iterations=(0, 8), leaves_at=5)
    succeed([first])
    left_s = time.monotonic()
    assert "rank 0 has left the job" in fail(second)
    assert time.monotonic() - left_s < ENDS_WITHIN_S


def test_processes_by_fork(tmp_path: Path) -> None:
    """Ranks forked by multiprocessing send what others need; children of ranks have all updates."""
    succeed(start(2, "forked_worker.py", out=str(tmp_path)))


def test_a_death_between_two_optimizers_is_seen(tmp_path: Path) -> None:
    ranks = start(3, out=str(tmp_path), sync="dear", dies_between=True)
    for number in (0, 2):
        assert "rank 1 is gone" in fail(ranks[number])


def test_different_networks_are_refused(tmp_path: Path) -> None:
    """By all ranks, also those that are like rank 0; they name the first difference."""
    ranks = start(3, out=str(tmp_path), sync="dear", wide_on=2)
    for said in map(fail, ranks):
        assert "ranks differ: parameter 2 is 'first.weight' of (32, 3, 3, 3) float32" in said
        assert "on rank 0, 'first.weight' of (40, 3, 3, 3) float32" in said


def test_what_is_frozen_on_one_rank_only_is_refused(tmp_path: Path) -> None:
    for said in map(fail, start(2, out=str(tmp_path), sync="dear", frozen_on=1)):
        assert "'scale' of () float32 on rank 0, 'scale' of () float32, frozen on rank 1" in said
