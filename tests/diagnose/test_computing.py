"""What counts where spans overlap, against a look at every single instant."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from byteprophet.diagnose.computing import NOTHING, stretches
from byteprophet.timeline.tables import SPAN, Kind, Rows

from ..thorough import examples
from ..timeline.made_up import rows_of

ORDER = (Kind.WAIT, Kind.FORWARD, Kind.UPDATE)
TRAINED = (Kind.ITERATION, Kind.FORWARD, Kind.BACKWARD)
"""What the training runs in; waits in other lanes are those of other threads."""

spans = st.lists(
    st.tuples(
        st.integers(0, 30),
        st.integers(0, 12),
        st.sampled_from(list(Kind)),
        st.sampled_from([0, 0, 1]),
    ),
    max_size=12,
).map(
    lambda rows: rows_of(
        SPAN,
        [
            {"begin_ns": b, "end_ns": b + length, "kind": kind, "lane": lane}
            for b, length, kind, lane in sorted(rows)
        ],
    )
)


def slow(rows: Rows, instant: int) -> int:
    """The row that counts from ``instant`` to the next."""
    trained = {row["lane"] for row in rows if row["kind"] in TRAINED}
    there = [
        (ORDER.index(row["kind"]), -int(row["begin_ns"]), place)
        for place, row in enumerate(rows)
        if row["kind"] in ORDER
        and row["begin_ns"] <= instant < row["end_ns"]
        and (row["kind"] != Kind.WAIT or row["lane"] in trained)
    ]
    return min(there)[2] if there else -1


@given(rows=spans, begin=st.integers(0, 20), length=st.integers(1, 25))
@settings(max_examples=examples(100, 300))
def test_every_instant_belongs_to_one(rows: Rows, begin: int, length: int) -> None:
    found = stretches(rows, ORDER, begin, begin + length)
    assert found.begin_ns[0] == begin
    assert found.end_ns[-1] == begin + length
    assert (found.begin_ns[1:] == found.end_ns[:-1]).all()
    assert (found.begin_ns < found.end_ns).all()
    for instant in range(begin, begin + length):
        index = found.at(instant + 1)
        assert found.row[index] == slow(rows, instant)
        expected = rows["kind"][found.row[index]] if found.row[index] >= 0 else NOTHING
        assert found.kind[index] == expected
    assert found.at(begin) == -1


@given(rows=spans, begin=st.integers(-5, 50), length=st.integers(0, 25))
@settings(max_examples=100)
def test_covered(rows: Rows, begin: int, length: int) -> None:
    found = stretches(rows, ORDER, 0, 45)
    instants = range(max(0, begin), min(45, begin + length))
    covered = sum(slow(rows, instant) >= 0 for instant in instants)
    assert found.covered_ns(begin, begin + length) == covered
