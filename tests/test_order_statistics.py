"""They say what numpy says; groups are what masks select."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from byteprophet.order_statistics import distinct, groups, median, quantile

NUMBERS = st.one_of(
    st.lists(st.floats(-1e18, 1e18), min_size=1, max_size=50),
    st.lists(st.integers(-(2**52), 2**52), min_size=1, max_size=50),
    st.lists(st.integers(-3, 3), min_size=1, max_size=50),
)


@given(NUMBERS, st.one_of(st.floats(0, 1), st.sampled_from([0.0, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0])))
def test_a_quantile_is_that_of_numpy_to_the_last_bit(numbers: list[float], share: float) -> None:
    values = np.array(numbers)
    assert quantile(values, share) == float(np.quantile(values, share))


@given(NUMBERS)
def test_a_median_is_that_of_numpy_to_the_last_bit(numbers: list[float]) -> None:
    assert median(numbers) == float(np.median(numbers))


@given(NUMBERS)
def test_distinct_values_are_those_of_numpy(numbers: list[float]) -> None:
    values = np.array(numbers)
    assert np.array_equal(distinct(values), np.unique(values))
    assert len(distinct(values[:0])) == 0


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-1, 1)), max_size=30))
def test_distinct_rows_are_those_of_numpy(pairs: list[tuple[int, int]]) -> None:
    rows = np.array(pairs, [("key", np.uint64), ("time_ns", np.int64)])
    assert np.array_equal(distinct(rows), np.unique(rows))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), max_size=30))
def test_groups_are_what_masks_select(pairs: list[tuple[int, int]]) -> None:
    rows = np.array(pairs, [("iteration", np.uint32), ("server", np.uint32)])
    for names in (["iteration"], ["server", "iteration"]):
        expected = [np.flatnonzero(rows[names] == each) for each in np.unique(rows[names])]
        found = groups(*(rows[name] for name in names))
        assert [each.tolist() for each in found] == [each.tolist() for each in expected]
