"""Transfers find their pushes at servers as counting them one by one does."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import given, settings

from byteprophet.timeline.events import Events
from byteprophet.timeline.joined import served_rows
from byteprophet.timeline.tables import SERVED, SERVED_TABLE, TRANSFER, TRANSFERS

from .made_up import origin, rows_of, timelines


def one_by_one(events: list[Events]) -> dict[tuple[int, int], tuple[int, int]]:
    """By table and row of a transfer, table and row of its push; each worker has one table."""
    served = {
        (row["worker"].item(), row["key"].item(), row["round"].item()): (index, place)
        for index, table in enumerate(events)
        if table.table is SERVED_TABLE
        for place, row in enumerate(table.rows)
    }
    found = {}
    for index, table in enumerate(events):
        count = Counter[int]()
        if table.table is TRANSFERS and not table.lost:
            for place, row in enumerate(table.rows):
                key = row["key"].item()
                count[key] += 1
                pushed = (table.origin.rank, key, count[key])
                if pushed in served:
                    found[index, place] = served[pushed]
    return found


def without_twice(events: list[Events]) -> list[Events]:
    """Servers have one push per worker, key and round, as they do."""
    seen = set()
    kept = []
    for table in events:
        if table.table is SERVED_TABLE:
            keep = []
            for row in table.rows:
                pushed = tuple(row[name].item() for name in ("worker", "key", "round"))
                keep.append(pushed not in seen)
                seen.add(pushed)
            table = replace(table, rows=table.rows[keep] if keep else table.rows)
        kept.append(table)
    return kept


@given(tables=timelines())
@settings(max_examples=100)
def test_as_counted_one_by_one(tables: list[Events]) -> None:
    tables = without_twice(tables)
    found = {
        (index, place): (table, row)
        for index, (of_table, of_row) in served_rows(tables).items()
        for place, (table, row) in enumerate(zip(of_table.tolist(), of_row.tolist(), strict=True))
        if table >= 0
    }
    assert found == one_by_one(tables)


def test_local_ranks() -> None:
    """Numbers are among those that talk to servers."""
    key = {"key": 7 << 16}
    first, other = origin("worker-0.1"), origin("worker-1.1")
    tables = [
        Events(TRANSFERS, other, rows_of(TRANSFER, [key]), {}),
        Events(TRANSFERS, first, rows_of(TRANSFER, [key, key, key]), {}),
        Events(
            SERVED_TABLE,
            origin("server-0"),
            rows_of(
                SERVED, [{**key, "worker": w, "round": r} for w, r in ((1, 1), (0, 3), (0, 2))]
            ),
            {},
        ),
    ]
    found = {index: rows.tolist() for index, (_, rows) in served_rows(tables).items()}
    assert found == {0: [0], 1: [-1, 2, 1]}


def test_a_worker_whose_others_are_missing() -> None:
    key = {"key": 7 << 16}
    rows = [{**key, "worker": worker, "round": 1} for worker in range(3)]
    served = Events(SERVED_TABLE, origin("server-0"), rows_of(SERVED, rows), {})
    second = Events(TRANSFERS, origin("worker-1"), rows_of(TRANSFER, [key]), {})
    assert served_rows([served, second])[1][1].tolist() == [1]
    # Of two jobs, nothing is known of either.
    assert [rows.tolist() for _, rows in served_rows([second, second, served]).values()] == [
        [-1],
        [-1],
    ]


def test_rounds_that_were_recorded_are_believed() -> None:
    """Of a window, or with rows lost; and where one is not known, nothing is."""
    key = {"key": 7 << 16}
    sent = [{**key, "round": number} for number in (5, 0, 3)]
    pushed = [{**key, "worker": 0, "round": number} for number in (0, 1, 2, 3, 4, 5)]
    tables = [
        Events(TRANSFERS, origin("worker-0"), rows_of(TRANSFER, sent), {}, lost=7),
        Events(SERVED_TABLE, origin("server-0"), rows_of(SERVED, pushed), {}),
    ]
    (found,) = served_rows(tables).values()
    assert [column.tolist() for column in found] == [[1, -1, 1], [5, -1, 3]]


def test_nothing_served() -> None:
    assert served_rows([]) == {}
    tables = [Events(TRANSFERS, origin("worker-0"), rows_of(TRANSFER, [{"key": 1}]), {})]
    (index_and_row,) = served_rows(tables).values()
    assert [column.tolist() for column in index_and_row] == [[-1], [-1]]
