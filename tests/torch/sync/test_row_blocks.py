"""Row numbers come out of blocks as they went in, whatever fits."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from byteprophet.allreduce.rows import bitmap_words, block_words
from byteprophet.torch.sync import row_blocks


@st.composite
def rows_of_tables(draw: st.DrawFn) -> tuple[int, list[int], int]:
    table_rows = draw(st.integers(1, 400))
    numbers = sorted(draw(st.sets(st.integers(0, table_rows - 1))))
    return table_rows, numbers, block_words(draw(st.integers(0, table_rows)), table_rows)


@given(rows_of_tables())
def test_numbers_come_back(drawn: tuple[int, list[int], int]) -> None:
    table_rows, numbers, words = drawn
    blocks = torch.zeros((2, 1 + words), dtype=torch.int32)
    more = row_blocks.fill(blocks[1], torch.tensor(numbers, dtype=torch.int64), table_rows)
    assert row_blocks.overflow(blocks, table_rows) == [0, len(more)]
    assert row_blocks.numbers_in(blocks[1], more, table_rows).tolist() == numbers
    assert row_blocks.numbers_in(blocks[0], more[:0], table_rows).tolist() == []
    if words == bitmap_words(table_rows):
        assert not len(more)


def test_a_bitmap_is_little_endian() -> None:
    """Bit b of word w is row 32 w + b: the last bit of a word is its sign."""
    block = torch.zeros(3, dtype=torch.int32)
    row_blocks.fill(block, torch.tensor([0, 3, 31, 32]), 40)
    assert block.tolist() == [4, 1 + 8 - (1 << 31), 1]
