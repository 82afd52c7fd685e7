"""A job's lives as one: what belonged together before does so after, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from byteprophet.errors import UserError
from byteprophet.timeline.events import Events, Origin, new_path, save_events
from byteprophet.timeline.joined import served_rows
from byteprophet.timeline.lives import join_lives
from byteprophet.timeline.read_events import load_rank, load_run
from byteprophet.timeline.tables import (
    MESSAGE,
    MESSAGES,
    SERVED,
    SERVED_TABLE,
    SPAN,
    SPANS,
    TRANSFER,
    TRANSFERS,
    Kind,
    TableKind,
)

from .made_up import SECOND, origin, rows_of

LIFE_NS = 100 * SECOND
TENSORS = ("conv.weight", "fc.weight", "fc.bias")


def life(
    number: int,
    iterations: range,
    numbers: dict[str, int],
    workers: tuple[int, ...] = (0, 1),
    machine: str = "here",
) -> list[Events]:
    """The files of one: workers push all tensors in each iteration, a server has all pushes.

    Sizes tell which push it is: no two of a job's have the same.
    """
    begin_ns = 1000 * SECOND + number * LIFE_NS

    def who(role: str) -> Origin:
        now = origin(role, machine)
        moved_ns = number * LIFE_NS
        return replace(
            now, monotonic_ns=now.monotonic_ns + moved_ns, unix_ns=now.unix_ns + moved_ns
        )

    files, served, messages = [], [], []
    for worker in workers:
        sent, spans = [], []
        for turn, iteration in enumerate(iterations):
            at_ns = begin_ns + (turn + 1) * SECOND
            for place, name in enumerate(TENSORS):
                push = {
                    "key": numbers[name] << 16 | place,
                    "size_bytes": 10000 * number + 1000 * worker + 10 * turn + place,
                }
                times = {"sent_ns": at_ns + 5, "acked_ns": at_ns + 7, "pulled_ns": at_ns + 9}
                sent.append({**push, **times, "iteration": iteration, "round": turn + 1})
                served.append(
                    {**push, "arrived_ns": at_ns + 6, "worker": worker, "round": turn + 1}
                )
                request = {"request": 3 * turn + place, "kind": Kind.RECEIVE, "peer": worker}
                messages.append({**push, **request, "begin_ns": at_ns, "end_ns": at_ns + 1})
            span = {"begin_ns": at_ns, "end_ns": at_ns + SECOND, "kind": Kind.ITERATION}
            spans.append({**span, "iteration": iteration, "name": turn % 2})
        role = f"worker-{worker}"
        names = {numbers[name]: name for name in TENSORS}
        files.append(Events(TRANSFERS, who(role), rows_of(TRANSFER, sent), names))
        called = {0: f"even {number}", 1: "odd"}
        files.append(Events(SPANS, who(role), rows_of(SPAN, spans), called))
    files.append(Events(SERVED_TABLE, who("server-0"), rows_of(SERVED, served), {}))
    files.append(Events(MESSAGES, who("server-0"), rows_of(MESSAGE, messages), {}))
    return files


SAME = {name: number for number, name in enumerate(TENSORS)}
OTHER = {"conv.weight": 2, "fc.weight": 0, "fc.bias": 1}


def only(events: list[Events], table: TableKind, role: str) -> Events:
    (found,) = [e for e in events if e.table is table and e.origin.role == role]
    return found


@pytest.mark.parametrize("second", [range(1, 4), range(5, 8)], ids=["anew", "on"])
@pytest.mark.parametrize("numbers", [SAME, OTHER], ids=["same numbers", "others"])
def test_each_transfer_is_found_at_its_server(second: range, numbers: dict[str, int]) -> None:
    files = [*life(1, second, numbers), *life(0, range(1, 5), SAME)]
    joined = join_lives(files)
    assert len(joined) == len(files) // 2
    for index, (tables, rows) in served_rows(joined).items():
        sent = joined[index].rows
        assert len(sent) == 3 * (4 + 3)
        assert (tables >= 0).all()
        (table,) = {joined[t].origin.role for t in tables.tolist()}
        assert table == "server-0"
        assert np.array_equal(joined[tables[0]].rows["size_bytes"][rows], sent["size_bytes"])
        assert np.array_equal(np.unique(sent["iteration"]), np.arange(1, 8))
        named = [joined[index].names[number] for number in (sent["key"] >> 16).tolist()]
        assert named == [TENSORS[place] for place in (sent["key"] & 0xFFFF).tolist()]


def test_iterations_of_all_tables_and_ranks_are_moved_alike() -> None:
    # One worker has recorded less than the other, and one more joins later.
    first = life(0, range(1, 9), SAME)
    own = only(first, SPANS, "worker-1")
    first[first.index(own)] = replace(own, rows=own.rows[:5])
    joined = join_lives([*first, *life(1, range(1, 3), SAME, workers=(0, 1, 2))])
    for role in ("worker-0", "worker-1"):
        assert only(joined, SPANS, role).rows["iteration"][-2:].tolist() == [9, 10]
    for role in ("worker-0", "worker-2"):
        assert only(joined, TRANSFERS, role).rows["iteration"][-6:].tolist() == [9] * 3 + [10] * 3
    late = only(joined, TRANSFERS, "worker-2")
    tables, rows = served_rows(joined)[joined.index(late)]
    served = only(joined, SERVED_TABLE, "server-0")
    assert np.array_equal(served.rows["size_bytes"][rows], late.rows["size_bytes"])
    assert (tables == joined.index(served)).all()


def test_numbers_that_cannot_go_on_are_refused() -> None:
    first = life(0, range(1, 5), SAME)
    only(first, TRANSFERS, "worker-0").rows["iteration"][-1] = 2**32 - 1
    with pytest.raises(
        UserError, match="events: iteration 4: too large after those of earlier lives"
    ):
        join_lives([*first, *life(1, range(1, 5), SAME)])


def test_names_of_spans_and_requests_stay_apart() -> None:
    joined = join_lives([*life(0, range(1, 3), SAME), *life(1, range(1, 3), SAME)])
    spans = only(joined, SPANS, "worker-0")
    texts = [spans.names[index] for index in spans.rows["name"].tolist()]
    assert texts == ["even 0", "odd", "even 1", "odd"]
    messages = only(joined, MESSAGES, "server-0").rows
    assert len(np.unique(messages[["peer", "request"]])) == len(messages)


def test_another_machine_shows_the_first_ones_time() -> None:
    """Its clock has another origin; the wall clocks agree."""
    second = [
        replace(e, origin=replace(e.origin, machine="there")) for e in life(1, range(1, 3), SAME)
    ]
    moved = []
    for events in second:
        rows = events.rows.copy()
        for column in events.table.times:
            rows[column][rows[column] != 0] -= 900 * SECOND
        ahead = replace(events.origin, monotonic_ns=events.origin.monotonic_ns - 900 * SECOND)
        moved.append(replace(events, origin=ahead, rows=rows))
    first = life(0, range(1, 3), SAME)
    expected = join_lives([*first, *second])
    for one, other in zip(join_lives([*first, *moved]), expected, strict=True):
        assert np.array_equal(one.rows, other.rows)


def test_what_is_of_no_iteration_moves_none() -> None:
    """As a broadcast when a process goes on, whose iterations are numbered on."""
    second = life(1, range(5, 8), SAME)
    own = only(second, TRANSFERS, "worker-0")
    rows = own.rows.copy()
    rows["iteration"][0] = 0
    second[second.index(own)] = replace(own, rows=rows)
    joined = join_lives([*life(0, range(1, 5), SAME), *second])
    assert np.unique(only(joined, SPANS, "worker-0").rows["iteration"]).tolist() == [*range(1, 8)]


def test_lives_at_one_time_are_refused() -> None:
    with pytest.raises(UserError, match=r"several files of .* overlap in time"):
        join_lives([*life(0, range(1, 3), SAME), *life(0, range(1, 3), SAME)])


def test_lives_that_cannot_be_joined_name_the_run(tmp_path: Path) -> None:
    for events in (*life(0, range(1, 3), SAME), *life(0, range(1, 3), SAME)):
        save_events(new_path(tmp_path, events.table, events.origin.role), events)
    for load in (load_run, lambda path: load_rank(path, SPANS, 0)):
        with pytest.raises(UserError, match=rf"^{tmp_path}: [a-z]+-0: several files of"):
            load(tmp_path)


def test_a_rank_is_joined_as_the_run_is(tmp_path: Path) -> None:
    """Its own spans alone do not tell how far the others had come."""
    first = life(0, range(1, 9), SAME)
    own = only(first, SPANS, "worker-1")
    first[first.index(own)] = replace(own, rows=own.rows[:5])
    for events in (*first, *life(1, range(1, 3), SAME)):
        save_events(new_path(tmp_path, events.table, events.origin.role), events)
    alone = load_rank(tmp_path, SPANS, 1)
    assert np.array_equal(alone.rows, only(load_run(tmp_path), SPANS, "worker-1").rows)
    assert alone.rows["iteration"].tolist() == [1, 2, 3, 4, 5, 9, 10]


def test_a_single_life_is_left_as_it_is() -> None:
    files = life(0, range(1, 3), OTHER)
    assert all(one is other for one, other in zip(join_lives(files), files, strict=True))


def test_lost_and_cut_off_stay_known(tmp_path: Path) -> None:
    for number in range(3):
        for events in life(number, range(1, 3), SAME):
            path = new_path(tmp_path, events.table, events.origin.role)
            save_events(path, replace(events, lost=number, whole=number != 1))
    joined = load_run(tmp_path)
    assert len(joined) == 6
    for events in joined:
        assert (events.lost, events.whole) == (3, False)
        if "iteration" in events.table.columns:
            assert np.unique(events.rows["iteration"]).tolist() == [1, 2, 3, 4, 5, 6]
