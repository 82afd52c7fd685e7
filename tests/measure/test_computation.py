"""Time that was worked: the time between two moments, less every wait in it."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from byteprophet.measure.computation import Waits
from byteprophet.timeline.tables import SPAN

TIMES = st.integers(10**15, 10**15 + 60)
WAITS = st.lists(st.tuples(TIMES, st.integers(0, 20)), max_size=12)


@given(WAITS, st.lists(TIMES, min_size=1, max_size=8))
def test_each_wait_is_left_out_as_far_as_it_reaches(
    waits: list[tuple[int, int]], times_ns: list[int]
) -> None:
    rows = np.zeros(len(waits), SPAN)
    rows["begin_ns"] = [begin_ns for begin_ns, _ in waits]
    rows["end_ns"] = [begin_ns + length_ns for begin_ns, length_ns in waits]
    expected = []
    for since_ns, until_ns in pairwise(times_ns):
        waited_ns = sum(
            max(0, min(begin_ns + length_ns, until_ns) - max(begin_ns, since_ns))
            for begin_ns, length_ns in waits
        )
        expected.append(max(0, until_ns - since_ns - waited_ns))
    assert Waits(rows).worked_ns(times_ns).tolist() == expected
