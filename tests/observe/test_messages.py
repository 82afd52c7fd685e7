"""A real job's messages: each leaves at one end and comes at the other, in the order of things."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from byteprophet.bench import Case, Plan, run_bench
from byteprophet.timeline.events import Events
from byteprophet.timeline.read_events import load_run
from byteprophet.timeline.tables import MESSAGES, SERVED_TABLE, TRANSFERS, Kind, Rows, What
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


@pytest.mark.job
@pytest.mark.parametrize("scheduler", ["prophet", "stock"])
def test_every_message_is_seen_at_both_ends(scheduler: str, tmp_path: Path) -> None:
    path = tmp_path / "workload.toml"
    path.write_text(to_toml(WORKLOAD), encoding="utf-8")
    case = Case(str(path), scheduler, None, partition_bytes=65536)
    (row,) = run_bench(Plan((case,), 6, rounds=1, record=True), tmp_path / "runs", False, print)
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
