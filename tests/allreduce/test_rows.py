"""Bytes of sparse gradients, against a count of every row that goes from one rank to another."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from byteprophet.allreduce.rows import (
    Touched,
    bitmap_words,
    block_words,
    by_owner_bytes,
    dense_bytes,
    gathered_bytes,
    least_bytes,
    sent_bytes,
)

ROWS = 40
TOUCHED = st.lists(st.sets(st.integers(0, ROWS - 1)), min_size=2, max_size=6)


def touched_by(ranks: list[set[int]]) -> Touched:
    return Touched.of([np.array(sorted(rows), dtype=np.int64) for rows in ranks])


@given(TOUCHED)
def test_every_row_is_counted(ranks: list[set[int]]) -> None:
    """Elements of ``width`` divide evenly among owners here, so each owns a part of every row."""
    others, width, words = len(ranks) - 1, len(ranks), 3
    expected = []
    for rows in ranks:
        numbers = others * (1 + words + max(0, len(rows) - words))
        elements = 0
        for row in set().union(*ranks):
            if sum(row in each for each in ranks) > 1:
                elements += (width - 1) + others  # parts of all other owners, and its own to all
            elif row in rows:
                elements += others * width
        expected.append(4 * numbers + 2 * elements)
    assert sent_bytes(touched_by(ranks), width, 2, words, 1000) == expected


@given(TOUCHED, st.sampled_from([2, 4, 8]))
def test_values_are_never_more_than_of_other_ways(ranks: list[set[int]], width: int) -> None:
    touched, size = touched_by(ranks), len(ranks)
    numbers = sum(4 * (size - 1) * (1 + len(rows)) for rows in ranks)
    average = (sum(sent_bytes(touched, width, 4, 0, 1000)) - numbers) / size
    assert average <= gathered_bytes(touched, 4 * width) + 1e-6
    assert average <= dense_bytes(size, 4 * width * ROWS) + 1e-6
    assert average >= least_bytes(touched, 4 * width) - 1e-6
    if size == 2:
        assert average == pytest.approx(least_bytes(touched, 4 * width))


def test_what_other_ways_take_is_what_is_known_of_them() -> None:
    """Three of four rows each, of which two are common: U = 4 + 2, k = 3, by hand."""
    touched = touched_by([{0, 1, 2}, {0, 1, 3}, {0, 1, 4}, {0, 1, 5}])
    assert (touched.rows, touched.alone, touched.shared) == ((3,) * 4, (1,) * 4, 2)
    assert touched.union == 6
    assert by_owner_bytes(touched, 100) == pytest.approx(3 / 4 * (3 + 6) * 100)
    assert gathered_bytes(touched, 100) == pytest.approx(3 * 3 * 100)
    assert least_bytes(touched, 100) == pytest.approx((4 * 3 + 2 * 6) / 4 * 100)
    assert dense_bytes(4, 1000) == pytest.approx(1500)


@given(st.integers(0, 10_000), st.integers(1, 10_000))
def test_blocks_hold_as_many_rows_as_before_or_a_bitmap(most_rows: int, table_rows: int) -> None:
    words = block_words(min(most_rows, table_rows), table_rows)
    assert words <= bitmap_words(table_rows) == -(-table_rows // 32)
    assert words >= min(most_rows, table_rows) or words == bitmap_words(table_rows)
