"""Messages: of a real job, each leaves at one end and comes at the other, in the order of things.

And of a process that joins a job twice, each is in the file of its life.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from byteprophet.bench import Case, Plan, run_bench
from byteprophet.observe.messages import MessageConsumer
from byteprophet.timeline.events import Events, events_path
from byteprophet.timeline.read_events import load_events, load_run
from byteprophet.timeline.tables import (
    MESSAGE,
    MESSAGES,
    SERVED_TABLE,
    TRANSFERS,
    Kind,
    Rows,
    What,
)
from byteprophet.workload import Tensor, Workload, to_toml

MS = 1_000_000
WORKLOAD = Workload(
    "few", 1, tuple(Tensor(f"layer{n}", 4 * (1000 + 50_000 * n), MS, 2 * MS) for n in range(4))
)
BY_WORKERS = (What.PUSH, What.REQUEST)


def rows_of(run: list[Events], table: str, role: str) -> Rows:
    (events,) = [e for e in run if (e.table.name, e.origin.role) == (table, role)]
    assert events.whole
    assert events.lost == 0
    return events.rows


def by_request(rows: Rows, what: What, kind: Kind) -> dict[int, np.void]:
    """Of one worker; all are of that kind, and no request has two."""
    rows = rows[rows["what"] == what]
    assert set(rows["kind"].tolist()) == {kind}
    found = {int(row["request"]): row for row in rows}
    assert len(found) == len(rows)
    return found


def check_worker(own: Rows, theirs: Rows) -> None:
    """What it sent its server received, and the other way round; answers follow requests."""
    ends = {}
    for what in What:
        here, there = (Kind.SEND, Kind.RECEIVE) if what in BY_WORKERS else (Kind.RECEIVE, Kind.SEND)
        mine, others = by_request(own, what, here), by_request(theirs, what, there)
        assert mine.keys() == others.keys()
        for request, message in mine.items():
            other = others[request]
            assert (message["key"], message["size_bytes"]) == (other["key"], other["size_bytes"])
            sent, received = (message, other) if here is Kind.SEND else (other, message)
            assert sent["begin_ns"] <= received["begin_ns"]
        ends[what] = mine
    for first, last in (
        (What.PUSH, What.ACKNOWLEDGEMENT),
        (What.REQUEST, What.ANSWER),
    ):
        assert ends[first].keys() == ends[last].keys()
        for request, message in ends[first].items():
            assert message["begin_ns"] <= ends[last][request]["begin_ns"]
            assert message["key"] == ends[last][request]["key"]


class Source:
    """A recorder whose messages a test makes: as the real one, it keeps those that end after off.

    ``ends``: keys of the messages that end once it is turned off and before the next call.
    """

    def __init__(self) -> None:
        self.on = False
        self.ends: list[int] = []
        self.lost_count = 0
        self._keys: list[int] = []

    def add(self, *keys: int) -> None:
        self._keys += keys

    def record(self, on: bool) -> None:
        self.on = on
        if not on:
            self._keys += self.ends
            self.ends = []

    def take(self) -> Rows:
        rows = np.zeros(len(self._keys), MESSAGE)
        rows["key"], self._keys = self._keys, []
        return rows

    def lost(self) -> int:
        return self.lost_count


def life(source: Source, directory: Path, **arguments: int) -> MessageConsumer:
    return MessageConsumer(
        directory,
        "worker-0",
        0,
        source,  # type: ignore[arg-type]
        lambda: True,
        **arguments,
    )


def saved(directory: Path, role: str) -> tuple[list[int], int]:
    """Keys of the messages of a life, and how many are lost."""
    events = load_events(events_path(directory, MESSAGES, role))
    assert events.whole
    return events.rows["key"].tolist(), events.lost


def test_what_ends_late_is_not_of_the_next_life(tmp_path: Path) -> None:
    source = Source()
    first = life(source, tmp_path)
    assert source.on
    source.add(1, 2)
    source.ends = [3]
    first.close()
    assert not source.on
    source.add(4)  # ended after the first life
    source.lost_count = 7
    second = life(source, tmp_path)
    source.add(5)
    second.close()
    assert saved(tmp_path, "worker-0") == ([1, 2, 3], 0)
    assert saved(tmp_path, "worker-0~2") == ([5], 0)


def test_what_a_source_that_records_has_is_written(tmp_path: Path) -> None:
    source = Source()
    source.lost_count = 2
    source.record(True)
    source.add(1)
    source.lost_count = 5
    consumer = life(source, tmp_path, lost_before=2)
    consumer.take()
    consumer.close()
    assert saved(tmp_path, "worker-0") == ([1], 3)


def test_one_that_failed_records_no_more(tmp_path: Path) -> None:
    source = Source()
    consumer = life(source, tmp_path)
    consumer.abandon()
    assert not source.on


@pytest.mark.job
@pytest.mark.parametrize("scheduler", ["prophet", "stock"])
def test_every_message_is_seen_at_both_ends(scheduler: str, tmp_path: Path) -> None:
    path = tmp_path / "workload.toml"
    path.write_text(to_toml(WORKLOAD), encoding="utf-8")
    case = Case(str(path), scheduler, None, partition_bytes=65536)
    plan = Plan((case,), 4, rounds=1, warmup_iterations=1, record=True, idle_s=0.0)
    (row,) = run_bench(plan, tmp_path / "runs", False, print)
    run = load_run(Path(row["run"]))
    at_server = rows_of(run, MESSAGES.name, "server-0")
    served = rows_of(run, SERVED_TABLE.name, "server-0")
    for worker in range(2):
        own = rows_of(run, MESSAGES.name, f"worker-{worker}")
        assert set(own["peer"].tolist()) == {0}
        check_worker(own, at_server[at_server["peer"] == worker])
        # Pushes of keys that are new come first, and are no round.
        pushed = own[own["what"] == What.PUSH]
        for key in np.unique(pushed["key"]).tolist():
            rounds = (served["key"] == key) & (served["worker"] == worker)
            assert (pushed["key"] == key).sum() == rounds.sum() + 1
        if scheduler == "stock":
            continue
        # The policy let it go, it was handed over, and the answer was there before it was said so.
        transfers = rows_of(run, TRANSFERS.name, f"worker-{worker}")
        answers = own[own["what"] == What.ANSWER]
        for key in np.unique(transfers["key"]).tolist():
            sent_ns = np.sort(transfers["sent_ns"][transfers["key"] == key])
            pulled_ns = np.sort(transfers["pulled_ns"][transfers["key"] == key])
            assert (np.sort(pushed["begin_ns"][pushed["key"] == key])[1:] >= sent_ns).all()
            assert (np.sort(answers["begin_ns"][answers["key"] == key]) <= pulled_ns).all()
