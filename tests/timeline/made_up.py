"""Tables of events made up for tests, and as hypothesis draws them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from byteprophet.timeline.events import Events, Origin
from byteprophet.timeline.tables import (
    SERVED,
    SERVED_TABLE,
    SPAN,
    SPANS,
    TRANSFER,
    TRANSFERS,
    Kind,
    Rows,
)

SECOND = 10**9
UNIX_NS = 1_700_000_000 * SECOND
NAMES = ("conv1.weight", 'fc "quoted"\\', "层.bias\n", "</script>", "")


def origin(role: str, machine: str = "here", ahead_ns: int = 0) -> Origin:
    """Of a role whose monotonic clock shows 1000 s and ``ahead_ns``.

    ``worker-1.0`` is of a job with two local ranks.
    """
    now_ns = 1000 * SECOND + ahead_ns
    number, _, local_rank = role.rpartition("-")[2].partition(".")
    rank = 2 * int(number) + int(local_rank) if local_rank else int(number)
    return Origin(role, rank, machine, now_ns, UNIX_NS)


def rows_of(dtype: Any, rows: Sequence[dict[str, int]]) -> Rows:
    """The rows of a table with these fields, others 0."""
    made = np.zeros(len(rows), dtype)
    for place, row in enumerate(rows):
        for name, value in row.items():
            made[name][place] = value
    return made


_gap_ns = st.integers(0, 3) | st.integers(0, 5000)  # many things at one time, too


@st.composite
def _chain(draw: Any, names: Sequence[str]) -> dict[str, int]:
    """Times in order, each of which may be unknown."""
    time_ns, times = 1000 * SECOND + draw(st.integers(1, 3000)), {}
    for name in names:
        time_ns += draw(_gap_ns)
        times[name] = time_ns if draw(st.integers(0, 7)) else 0
    return times


@st.composite
def timelines(draw: Any) -> list[Events]:
    """Tables of a few workers and servers; no more consistent than each table has to be."""
    tables = []
    for rank in range(draw(st.integers(1, 3))):
        machine = draw(st.sampled_from(["here", "there", ""]))
        who = origin(f"worker-{rank}", machine, draw(st.integers(-1000, 1000)))
        transfers = [
            {
                "key": draw(st.integers(0, 2)) << 16 | draw(st.integers(0, 1)),
                "size_bytes": draw(st.integers(0, 2**30)),
                "server": draw(st.integers(0, 1)),
                "iteration": draw(st.integers(0, 3)),
                "priority": draw(st.integers(-3, 1)),
                **draw(_chain(("ready_ns", "sent_ns", "acked_ns", "pulled_ns"))),
            }
            for _ in range(draw(st.integers(0, 8)))
        ]
        names = dict(enumerate(draw(st.permutations(NAMES))[:2]))
        rows = rows_of(TRANSFER, transfers)
        tables.append(Events(TRANSFERS, who, rows, names, lost=draw(st.sampled_from([0, 0, 0, 2]))))
        if draw(st.booleans()):
            tables.append(Events(SPANS, who, draw(spans()), dict(enumerate(NAMES)), whole=False))
    for rank in range(draw(st.integers(0, 2))):
        served = [
            {
                "key": draw(st.integers(0, 2)) << 16 | draw(st.integers(0, 1)),
                "size_bytes": draw(st.integers(0, 2**30)),
                "worker": draw(st.integers(0, 2)),
                "round": draw(st.integers(1, 3)),
                **draw(_chain(("arrived_ns", "sum_begin_ns", "sum_end_ns"))),
                **draw(_chain(("asked_ns", "answered_ns"))),
            }
            for _ in range(draw(st.integers(0, 8)))
        ]
        who = origin(f"server-{rank}", draw(st.sampled_from(["here", "elsewhere"])))
        tables.append(Events(SERVED_TABLE, who, rows_of(SERVED, served), {}))
    return tables


@st.composite
def spans(draw: Any) -> Rows:
    """Spans, also such as overlap on a lane without being nested."""
    rows = []
    for _ in range(draw(st.integers(0, 10))):
        begin_ns = 1000 * SECOND + draw(st.integers(1, 5000))
        rows.append(
            {
                "begin_ns": begin_ns,
                "end_ns": begin_ns + draw(_gap_ns),
                "size_bytes": draw(st.integers(0, 2**30)),
                "iteration": draw(st.integers(0, 3)),
                "name": draw(st.integers(0, len(NAMES) - 1)),
                "lane": draw(st.integers(0, 2)),
                "kind": draw(st.sampled_from(list(Kind))),
            }
        )
    return rows_of(SPAN, rows)
