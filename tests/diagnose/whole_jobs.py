"""Tables that hypothesis draws, and iterations to go with them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from byteprophet.timeline.events import Events
from byteprophet.timeline.tables import SPAN, SPANS, Kind

from ..timeline.made_up import NAMES, SECOND, origin, rows_of, timelines

_KINDS = [kind for kind in Kind if kind != Kind.ITERATION]


@st.composite
def jobs(draw: Any) -> list[Events]:
    """Workers that share iterations, whose other events need not fit them, or each other."""
    events: list[Events] = [table for table in draw(timelines()) if table.table is not SPANS]
    ranks = sorted({t.origin.rank for t in events if t.origin.role.startswith("worker")})
    for rank in ranks:
        time_ns = 1000 * SECOND + draw(st.integers(1, 500))
        rows = []
        for number in range(1, draw(st.integers(2, 4))):
            end_ns = time_ns + draw(st.integers(1, 3000))
            rows.append({"begin_ns": time_ns, "end_ns": end_ns, "iteration": number})
            time_ns = end_ns
        others = draw(
            st.lists(
                st.fixed_dictionaries(
                    {
                        "begin_ns": st.integers(1000 * SECOND + 1, 1000 * SECOND + 6000),
                        "size_bytes": st.integers(0, 2000),
                        "name": st.integers(0, len(NAMES) - 1),
                        "kind": st.sampled_from(_KINDS),
                        "iteration": st.integers(0, 3),
                    }
                ),
                max_size=10,
            )
        )
        spans = rows_of(SPAN, rows + others)
        lengths = spans["size_bytes"][len(rows) :].astype(np.int64)
        spans["end_ns"][len(rows) :] = spans["begin_ns"][len(rows) :] + lengths
        machine = next(t.origin.machine for t in events if t.origin.role == f"worker-{rank}")
        who = replace(origin(f"worker-{rank}"), machine=machine)
        events.append(Events(SPANS, who, spans, dict(enumerate(NAMES))))
    return events
