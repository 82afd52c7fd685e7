"""Real jobs without servers, by what they leave behind: parameters, state, groups, last words."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from byteprophet.allreduce.groups import BUFFER_BYTES

pytestmark = [pytest.mark.job, pytest.mark.timeout(900)]
FOLDER = Path(__file__).parent
WORKER = "shared_worker.py"
LIMIT_S = 280.0
ENDS_WITHIN_S = 30.0  # after another rank has; what waits for its timeout waits 200 s


def start(ranks: int, worker: str = WORKER, **options: Any) -> list[subprocess.Popen[str]]:
    """Start a job; nobody ends its other ranks when one has failed."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    places = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
    return [
        subprocess.Popen(
            [sys.executable, str(FOLDER / worker), json.dumps(options)],
            env={**os.environ, **places, "RANK": str(rank), "BYTEPROPHET_TIMEOUT_S": "200"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]


def train(folder: Path, ranks: int, **options: Any) -> list[dict[str, Any]]:
    """Run a job to its end; gives what each rank has saved."""
    succeed(start(ranks, out=str(folder), **options))
    return [torch.load(folder / f"rank-{rank}.pt") for rank in range(ranks)]


def succeed(ranks: list[subprocess.Popen[str]]) -> None:
    """Wait for the end of all; none is left behind."""
    try:
        for process in ranks:
            _, said = process.communicate(timeout=LIMIT_S)
            assert process.returncode == 0, said
    finally:
        for process in ranks:
            process.kill()


def fail(process: subprocess.Popen[str]) -> str:
    """Wait for its end; gives its last words."""
    try:
        _, said = process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
    assert process.returncode != 0
    return said


def assert_alike(results: list[dict[str, Any]]) -> None:
    """All ranks have the same parameters and state, bit for bit."""
    for other in results[1:]:
        torch.testing.assert_close(other["parameters"], results[0]["parameters"], rtol=0, atol=0)
        torch.testing.assert_close(other["state"], results[0]["state"], rtol=0, atol=0)


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


@pytest.mark.parametrize("by", ["norm", "value"])
def test_clipping_as_ddp_does(by: str, tmp_path: Path) -> None:
    """By what each rank has, of whole and of shared groups."""
    options = {"iterations": (0, 12), "clip": by, "read": True}
    results = train(tmp_path / "mixed", 3, sync="dear-planned", fusion=4096, adopt_at=3, **options)
    assert_alike(results)
    wholes = {whole for _, whole in results[0]["seen"]["groups"]}
    assert wholes == {True, False}
    for other in results[1:]:
        for what in ("norms", "gradients"):
            torch.testing.assert_close(other[what], results[0][what], rtol=0, atol=0)
    (ddp, *_) = train(tmp_path / "ddp", 3, **options)
    for what in ("parameters", "state", "norms", "gradients"):
        torch.testing.assert_close(results[0][what], ddp[what], rtol=2e-4, atol=1e-5)


def test_clipping_sends_no_gradients(tmp_path: Path) -> None:
    """Only a norm per rank and iteration, in a sum that has a place for each."""
    sent = {}
    for clip in (None, "norm"):
        options = {"sync": "dear", "fusion": 4096, "iterations": (0, 8), "clip": clip}
        results = train(tmp_path / str(clip), 3, **options)
        sent[clip] = [result["seen"]["sent_bytes"] for result in results]
    for plain, clipped in zip(sent[None], sent["norm"], strict=True):
        assert 0 < clipped - plain <= 8 * 2 * 3 * 8


def test_the_size_of_groups_is_searched_alike(tmp_path: Path) -> None:
    results = train(tmp_path / "tuned", 2, sync="dear", until_settled=True, fusion="tuned")
    assert_alike(results)
    chosen = [result["seen"]["buffer_bytes"] for result in results]
    assert chosen[0] == chosen[1]
    assert chosen[0] in BUFFER_BYTES
    assert all(result["seen"]["settled"] for result in results)


def test_every_optimizer_updates_shares() -> None:
    """One that looks at more than single elements updates whole parameters."""
    succeed(start(2, "optimizers_worker.py"))


def test_ranks_of_different_speed_agree() -> None:
    """However long each takes for what, they never wait for one another in vain."""
    succeed(start(3, "skewed_worker.py", seeds=8))


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
            errors = [line for line in fail(ranks[number]).splitlines() if "Error: " in line]
            assert said in errors[-1]
        assert time.monotonic() - died_s < ENDS_WITHIN_S
    finally:
        (tmp_path / "over").touch()


def test_processes_by_fork(tmp_path: Path) -> None:
    """Ranks forked by multiprocessing send what others need; children of ranks wait for nothing."""
    succeed(start(2, "forked_worker.py", out=str(tmp_path)))


def test_a_death_between_two_optimizers_is_seen(tmp_path: Path) -> None:
    ranks = start(3, out=str(tmp_path), sync="dear", dies_between=True)
    for number in (0, 2):
        assert "rank 1 is gone" in fail(ranks[number])


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


def test_different_networks_are_refused(tmp_path: Path) -> None:
    """By all ranks, also those that are like rank 0; they name the first difference."""
    ranks = start(3, out=str(tmp_path), sync="dear", wide_on=2)
    for said in map(fail, ranks):
        assert "ranks differ: parameter 2 is 'first.weight' of (32, 3, 3, 3) float32" in said
        assert "on rank 0, 'first.weight' of (40, 3, 3, 3) float32" in said


def test_what_is_frozen_on_one_rank_only_is_refused(tmp_path: Path) -> None:
    for said in map(fail, start(2, out=str(tmp_path), sync="dear", frozen_on=1)):
        assert "'scale' of () float32 on rank 0, 'scale' of () float32, frozen on rank 1" in said
