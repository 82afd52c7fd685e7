"""Which events are cause and effect is told by counting, and holds on a job's true clock."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from byteprophet.timeline.alignment_evidence import Evidence
from byteprophet.timeline.causes import evidence_of
from byteprophet.timeline.events import Events
from byteprophet.timeline.tables import (
    MESSAGE,
    MESSAGES,
    SERVED,
    SERVED_TABLE,
    TRANSFER,
    TRANSFERS,
    Kind,
    What,
)

from .made_up import origin, rows_of
from .own_machines import DELAY_NS, recorded, small_job


def one_push(**changes: int) -> list[Events]:
    """Of 3 MB, sent at 10, there at 40, acknowledged at 55; its answer takes from 70 to 100."""
    sent = {"key": 7 << 16, "size_bytes": 3_000_000, "ready_ns": 5, "sent_ns": 10, "acked_ns": 55}
    served = {"key": 7 << 16, "round": 1, "arrived_ns": 40, "asked_ns": 41, "answered_ns": 70}
    sent["pulled_ns"] = 100
    sent |= {name: value for name, value in changes.items() if name in sent}
    served |= {name: value for name, value in changes.items() if name in served}
    return [
        Events(TRANSFERS, origin("worker-0", "here"), rows_of(TRANSFER, [sent]), {}),
        Events(SERVED_TABLE, origin("server-0", "there"), rows_of(SERVED, [served]), {}),
    ]


def told(evidence: list[Evidence]) -> list[tuple[str, list[int], list[int], list[int]]]:
    return [
        (str(each), each.cause_ns.tolist(), each.effect_ns.tolist(), each.sizes().tolist())
        for each in evidence
    ]


def test_a_push_its_acknowledgement_and_its_answer() -> None:
    assert told(evidence_of(one_push())) == [
        ("push from here to there", [10], [40], [3_000_000]),
        ("acknowledgement from there to here", [40], [55], [0]),
        ("answer from there to here", [70], [100], [3_000_000]),
    ]


def test_what_is_not_known_causes_nothing() -> None:
    assert [each.kind for each in evidence_of(one_push(answered_ns=0))] == [
        "push",
        "acknowledgement",
    ]
    assert [each.kind for each in evidence_of(one_push(arrived_ns=0))] == ["answer"]
    transfers, served = one_push()
    nobodys = replace(served, origin=replace(served.origin, machine=""))
    assert evidence_of([transfers, nobodys]) == []
    assert evidence_of([transfers]) == evidence_of([served]) == []


def test_no_effect_of_a_real_order_is_before_its_cause() -> None:
    events = recorded(small_job(workers=3))
    evidence = evidence_of(events)
    pairs = {(each.cause_machine, each.effect_machine) for each in evidence}
    assert len(pairs) == 2 * 3 * 2  # each worker and each server, both ways
    for each in evidence:
        least_ns = int((each.effect_ns - each.cause_ns).min())
        assert least_ns >= DELAY_NS
        if each.kind == "acknowledgement":
            assert least_ns == DELAY_NS
            assert not np.any(each.sizes())
    pushes = sum(len(table.rows) for table in events if table.table is TRANSFERS)
    for kind in ("push", "acknowledgement", "answer"):
        assert sum(len(each) for each in evidence if each.kind == kind) == pushes


Row = tuple[What, Kind, int, int, int]


def messages(role: str, machine: str, *rows: Row) -> Events:
    """Each: what, sent or received, the number of the request, the other end's rank, when."""
    fields = [
        {"what": what, "kind": kind, "request": request, "peer": peer, "begin_ns": begin_ns}
        | {"end_ns": begin_ns + 1000, "size_bytes": 5000 * (what in (What.PUSH, What.ANSWER))}
        for what, kind, request, peer, begin_ns in rows
    ]
    return Events(MESSAGES, origin(role, machine), rows_of(MESSAGE, fields), {})


def test_messages_have_both_their_ends() -> None:
    """Numbers of requests are a worker's own; servers know workers by place, not by rank."""
    sent, received = Kind.SEND, Kind.RECEIVE
    evidence = evidence_of(
        [
            messages(
                "worker-1.1",
                "late",
                (What.PUSH, sent, 4, 0, 10),
                (What.PUSH, sent, 5, 1, 11),
                (What.PUSH, sent, 6, 0, 12),  # never received
                (What.REQUEST, sent, 7, 0, 13),
                (What.ANSWER, received, 7, 0, 99),
                (What.ACKNOWLEDGEMENT, received, 4, 0, 60),
            ),
            messages("worker-0.1", "early", (What.PUSH, sent, 4, 0, 20)),
            messages(
                "server-0",
                "there",
                (What.PUSH, received, 4, 0, 41),
                (What.PUSH, received, 4, 1, 40),
                (What.PUSH, received, 5, 1, 42),  # of that number, but to the other server
                (What.REQUEST, received, 7, 1, 43),
                (What.ACKNOWLEDGEMENT, sent, 4, 1, 50),
                (What.ANSWER, sent, 7, 1, 70),
            ),
        ]
    )
    assert told(evidence) == [
        ("push from early to there", [20], [41], [5000]),
        ("push from late to there", [10], [40], [5000]),
        ("acknowledgement from there to late", [50], [60], [0]),
        ("request from late to there", [13], [43], [0]),
        ("answer from there to late", [70], [99], [5000]),
    ]


def test_messages_stand_in_for_transfers_where_both_ends_have_them() -> None:
    ends = [
        messages("worker-0", "here", (What.PUSH, Kind.SEND, 1, 0, 20)),
        messages("server-0", "there", (What.PUSH, Kind.RECEIVE, 1, 0, 30)),
    ]
    of_messages = [("push from here to there", [20], [30], [5000])]
    assert told(evidence_of([*one_push(), *ends])) == of_messages
    for end in ends:
        assert len(evidence_of([*one_push(), end])) == 3
