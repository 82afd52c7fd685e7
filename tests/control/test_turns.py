"""The controller's turns: no live worker is dropped, and a plan in force is written."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from pathlib import Path

import pytest

from byteprophet.control import server
from byteprophet.control.keys import Keys, read_keys
from byteprophet.control.log import NAME, PLAN_NAME, read_events, read_plan
from byteprophet.control.messages import Adopted, Hello, Message, ProfileReport, Status, encode

from .conftest import JOB, MEGABYTE, profile

SECOND_NS = 1_000_000_000
WORKERS = 100


class Door:
    """What has arrived, one message of each connection in turn, as a ROUTER socket gives it."""

    endpoint = "tcp://127.0.0.1:1"

    def __init__(self, _listen: str, _keys: Keys) -> None:
        self.arrived: deque[tuple[bytes, list[bytes]]] = deque()

    def receive(self) -> Iterator[tuple[bytes, list[bytes]]]:
        while self.arrived:
            yield self.arrived.popleft()

    def send(self, _peer: bytes, _message: Message) -> bool:
        return True

    def turned_away(self, _most: int) -> list[str]:
        return []


class Turns:
    """A controller whose turns are taken by hand; the workers have said hello."""

    def __init__(self, keys: Path, run: Path, workers: int = WORKERS) -> None:
        run.mkdir()
        self._run = run
        self._controller = server.Controller("", read_keys(keys, "controller"), JOB, run)
        self._door = self._controller._door
        self.now_ns = self._controller._turned_ns
        for rank in range(workers):
            self.say(rank, _hello(rank, workers))
        while len(self.named("joined")) < workers:
            self.turn(0)

    def report(self, *, times: int = 1, without: int | None = None) -> None:
        """All workers report, ``without`` one of them."""
        for rank in [rank for rank in range(WORKERS) if rank != without] * times:
            self.say(rank, _status(rank))

    def turn(self, later_s: float) -> None:
        self.now_ns += int(later_s * SECOND_NS)
        self._controller._turn(self.now_ns)

    def named(self, event: str) -> list[str]:
        """The workers of which it was logged."""
        return [one["worker"] for one in read_events(self._run / NAME) if one["event"] == event]

    def say(self, rank: int, message: Message) -> None:
        self._door.arrived.append((b"%d" % rank, [encode(message)]))  # type: ignore[attr-defined]


def _hello(rank: int, workers: int) -> Hello:
    return Hello(
        job=JOB,
        worker=f"worker-{rank}",
        client=f"{rank}",
        workers=workers,
        policy="prophet",
        settings={},
        iteration=0,
        plan=0,
    )


def _status(rank: int) -> Status:
    return Status(
        job=JOB, worker=f"worker-{rank}", iteration=1, partition_bytes=1, took=[], refused={}
    )


@pytest.fixture
def turns(keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Turns:
    monkeypatch.setattr(server, "Door", Door)
    return Turns(keys, tmp_path / "run")


def test_what_came_while_a_plan_was_made_is_heard_before_anybody_is_dropped(turns: Turns) -> None:
    turns.report(times=48)  # four times a second
    turns.turn(12)
    assert turns.named("left") == []


def test_a_flood_drops_nobody(turns: Turns, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_READING_NS", 0)  # each turn reads one message
    turns.report()
    for _ in range(WORKERS - 1):
        turns.turn(0.25)
    assert turns.named("left") == []


def test_the_controllers_own_pauses_are_nobodys_silence(turns: Turns) -> None:
    """Nothing has arrived yet: libzmq's thread may have been stopped as long as the controller."""
    turns.turn(60)
    assert turns.named("left") == []
    for _ in range(44):
        turns.report(without=7)
        turns.turn(0.25)
    assert turns.named("left") == ["worker-7"]


def test_a_plan_is_written_once_it_is_in_force(
    keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was only issued may never be used, and a replay takes the plan in the file as used."""
    monkeypatch.setattr(server, "Door", Door)
    turns, run = Turns(keys, tmp_path / "run", workers=1), tmp_path / "run"
    mine = profile(MEGABYTE, MEGABYTE)
    turns.say(0, ProfileReport(job=JOB, worker="worker-0", profile=mine))
    turns.turn(0.25)
    (plan,) = [event for event in read_events(run / NAME) if event["event"] == "plan"]
    assert not (run / PLAN_NAME).exists()
    number, at_iteration = plan["number"], plan["at_iteration"]
    turns.say(0, Adopted(job=JOB, worker="worker-0", number=number, iteration=at_iteration))
    turns.turn(0.25)
    assert read_plan(run / PLAN_NAME).at_iteration == at_iteration
