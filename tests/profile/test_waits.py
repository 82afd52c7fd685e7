"""What urgent gradients waited for, on hand-made transfers."""

from __future__ import annotations

import numpy as np

from byteprophet.profile.waits import allowed_wait_ns, urgent_waits_ns, window_bytes
from byteprophet.timeline.tables import TRANSFER, Transfers

MS = 1_000_000
Row = tuple[int, int, float, float, float]  # tensor, priority, ready, sent, acked in ms


def made(*rows: Row, server: int = 0, iteration: int = 9) -> Transfers:
    transfers = np.zeros(len(rows), TRANSFER)
    for at, (tensor, priority, ready, sent, acked) in enumerate(rows):
        transfers[at]["key"] = tensor << 16
        transfers[at]["priority"] = priority
        for name, time in (("ready_ns", ready), ("sent_ns", sent), ("acked_ns", acked)):
            transfers[at][name] = int(time * MS)
        transfers[at]["server"] = server
        transfers[at]["iteration"] = iteration
    return transfers


BULK: Row = (9, -10, 0, 0, 30)


def test_a_new_most_urgent_waits_for_what_is_in_flight() -> None:
    assert urgent_waits_ns(made(BULK, (1, -2, 10, 14, 40))).tolist() == [4 * MS]


def test_on_an_idle_link_nothing_is_waited_for() -> None:
    assert urgent_waits_ns(made(BULK, (1, -2, 40, 41, 50))).size == 0


def test_behind_something_more_urgent_it_waits_by_design() -> None:
    urgent: Row = (0, -1, 5, 25, 50)
    rows = made(BULK, urgent, (1, -2, 10, 30, 60))
    assert urgent_waits_ns(rows).tolist() == [20 * MS]


def test_what_it_waits_for_something_that_outranked_it_since_is_by_design() -> None:
    outranks: Row = (0, -1, 13, 20, 50)
    rows = made(BULK, (1, -2, 10, 30, 60), outranks)
    assert sorted(urgent_waits_ns(rows).tolist()) == [3 * MS, 7 * MS]


def test_of_a_burst_only_the_most_urgent_counts() -> None:
    burst: list[Row] = [(3, -4, 10, 30, 60), (2, -3, 10.3, 20, 50), (4, -5, 10.6, 40, 70)]
    assert urgent_waits_ns(made(BULK, *burst)).tolist() == [int(9.7 * MS)]


def test_servers_and_iterations_are_apart() -> None:
    urgent: Row = (1, -2, 10, 14, 40)
    other = made((2, -1, 5, 25, 40), server=1)
    later = made((3, -1, 5, 25, 40), iteration=10)
    rows = np.concatenate([made(BULK, urgent), other, later])
    assert urgent_waits_ns(rows).tolist() == [4 * MS]


def test_what_is_unranked_does_not_count() -> None:
    assert urgent_waits_ns(made((9, 0, 0, 0, 30), (1, 0, 10, 14, 40))).size == 0
    assert urgent_waits_ns(np.empty(0, TRANSFER)).size == 0


def test_what_policies_let_in_flight() -> None:
    rows = made(BULK, (1, -2, 10, 14, 24))  # acknowledged after 10 ms at the shortest
    link = 8e8  # a hundred bytes per microsecond
    assert window_bytes({"partition_bytes": 5}, rows, link) is None
    assert window_bytes({"partition_bytes": 5, "outstanding_messages": 2}, rows, link) == 10
    assert window_bytes({"partition_bytes": 5, "credit_bytes": 7}, rows, link) == 7
    fixed = {"partition_bytes": 5, "window_floor_bytes": 9}
    assert window_bytes(fixed, rows, link) == 9
    follows = {"partition_bytes": 5, "window_floor_bytes": 0}
    assert window_bytes(follows, rows, link) == 5 + 11_000 * 100
    assert window_bytes(follows, rows, link / 1000) == 5 + (128 << 10)
    assert window_bytes(follows, rows[:0], link) is None
    assert allowed_wait_ns(1_000_000, 1_000_000, link) == 20 * MS
