"""Sparse gradients among ranks: the bytes that they take, and the size of blocks of row numbers.

A sparse gradient has only the rows that a rank's batch has touched. Every rank first tells all
others the numbers of its rows. From then on, all know which ranks have touched which row, and do
the same with it:

- A row that *one* rank has touched is its average but for the division, so that rank sends it to
  all others: P - 1 times its bytes.
- A row that *several* ranks have touched is all-reduced, with zeros for the ranks that have not:
  2 (P - 1) times its bytes.

No row takes more than in an all-gather of all ranks' rows, which is m (P - 1) for one that m ranks
have touched, nor more than in a dense all-reduce. So there is nothing to choose for a whole table:
where a table is touched nearly whole, the all-reduce of its shared rows is the dense one.

The numbers travel in *blocks* of one size for all ranks. All know the size beforehand, because it
follows from the last iteration's numbers of rows, so no rank has to ask how many rows another one
has. A block is its number of rows, followed by so many words of 32 bits. These are row numbers or,
once a bitmap of the table takes no more, that bitmap. Row numbers that do not fit are sent in a
second message: all ranks know from the blocks how many these are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from byteprophet.job.owners import Owners

MOST_ROWS = (1 << 31) - 1
"""The most rows of a table: the numbers of rows have 31 bits."""
WORD_BYTES = 4
_WORD_BITS = 32
_SPARE_ROWS = 16


def bitmap_words(table_rows: int) -> int:
    """How many words a bitmap of a table has."""
    return -(-table_rows // _WORD_BITS)


def block_words(most_rows: int, table_rows: int) -> int:
    """How many words the next blocks have, behind the number of rows.

    Args:
        most_rows: the largest number of rows that any rank had in the last iteration; 0 before.
        table_rows: how many rows the table has. A block of ``bitmap_words`` of it is a bitmap.
    """
    return min(most_rows + most_rows // 8 + _SPARE_ROWS, bitmap_words(table_rows))


def overflow(rows: int, words: int, table_rows: int) -> int:
    """How many numbers of ``rows`` rows do not fit into a block of so many words."""
    return 0 if words >= bitmap_words(table_rows) else max(0, rows - words)


@dataclass(frozen=True)
class Touched:
    """What the ranks of a job have touched in one iteration of one table.

    Attributes:
        rows: how many rows each rank has touched.
        alone: how many rows each rank alone has touched.
        shared: how many rows several ranks have touched.
    """

    rows: tuple[int, ...]
    alone: tuple[int, ...]
    shared: int

    @classmethod
    def of(cls, numbers: Sequence[npt.NDArray[np.int64]]) -> Touched:
        """``numbers``: the numbers of the rows that each rank has touched, each once."""
        union, count = np.unique(np.concatenate(numbers), return_counts=True)
        single = union[count == 1]
        alone = tuple(int(np.isin(mine, single).sum()) for mine in numbers)
        return cls(tuple(len(mine) for mine in numbers), alone, len(union) - len(single))

    @property
    def union(self) -> int:
        """How many rows any rank has touched."""
        return sum(self.alone) + self.shared


def sent_bytes(
    touched: Touched, row_elements: int, element_bytes: int, words: int, table_rows: int
) -> list[int]:
    """What each rank sends in one iteration, if ranks own equally much.

    ``words``: of a block of the table, as ``block_words`` gives them.
    """
    ranks = len(touched.rows)
    owned = Owners.equal(ranks).sizes(touched.shared * row_elements)
    sent = []
    for rank, (rows, alone) in enumerate(zip(touched.rows, touched.alone, strict=True)):
        numbers = (ranks - 1) * WORD_BYTES * (1 + words + overflow(rows, words, table_rows))
        elements = (ranks - 1) * alone * row_elements
        elements += sum(owned) - owned[rank] + (ranks - 1) * owned[rank]
        sent.append(numbers + elements * element_bytes)
    return sent


def by_owner_bytes(touched: Touched, row_bytes: int) -> float:
    """What a rank sends on average if rows go to owners by number, and the union comes back.

    ``row_bytes``: of a row with its number.
    """
    ranks = len(touched.rows)
    return (ranks - 1) / ranks * (sum(touched.rows) / ranks + touched.union) * row_bytes


def least_bytes(touched: Touched, row_bytes: int) -> float:
    """What a rank sends on average at the least, whatever ranks do, for values alone.

    For the sum of m ranks' numbers to be on one rank for the first time, each of the other m - 1
    must have sent something. Later, each of the P - 1 ranks that do not have it yet must receive
    something. So a row takes m + P - 2 times its bytes.
    """
    ranks = len(touched.rows)
    return (sum(touched.rows) + (ranks - 2) * touched.union) / ranks * row_bytes


def gathered_bytes(touched: Touched, row_bytes: int) -> float:
    """What a rank sends on average if every rank sends all its rows to all others."""
    return (len(touched.rows) - 1) * sum(touched.rows) / len(touched.rows) * row_bytes


def dense_bytes(ranks: int, table_bytes: int) -> float:
    """What a rank sends in an all-reduce of the whole table."""
    return 2 * (ranks - 1) / ranks * table_bytes
