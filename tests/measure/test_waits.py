"""Time that was worked: the time between two moments, less the training thread's waits in it."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from byteprophet.measure.waits import Waits, training_waits
from byteprophet.timeline.tables import SPAN, Kind

EPOCH_NS = 10**15
TIMES = st.integers(EPOCH_NS, EPOCH_NS + 60)
LANES = st.sampled_from([0, 0, 0, 1, 2])
WAITS = st.lists(st.tuples(TIMES, st.integers(0, 20), LANES), max_size=12)


@given(WAITS, st.lists(TIMES, min_size=1, max_size=8))
def test_each_instant_of_a_wait_is_left_out_once(
    waits: list[tuple[int, int, int]], times_ns: list[int]
) -> None:
    """Layers run in lane 0, and lane 1 is autograd's. Lane 2 is of another thread."""
    spans = [(begin, begin + length, Kind.WAIT, lane) for begin, length, lane in waits]
    spans += [(EPOCH_NS, EPOCH_NS + 9, Kind.FORWARD, 0), (EPOCH_NS, EPOCH_NS, Kind.BACKWARD, 1)]
    rows = np.zeros(len(spans), SPAN)
    for column, values in zip(
        ("begin_ns", "end_ns", "kind", "lane"), zip(*spans, strict=True), strict=True
    ):
        rows[column] = values
    expected = [
        sum(
            not any(begin <= at < begin + length for begin, length, lane in waits if lane < 2)
            for at in range(since_ns, until_ns)
        )
        for since_ns, until_ns in pairwise(times_ns)
    ]
    assert Waits(training_waits(rows)).worked_ns(times_ns).tolist() == expected
