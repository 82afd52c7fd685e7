"""Sparse gradients of several ranks, whose meshes are all in this process.

The reference is dense: all ranks' gradients are added in rank order, and divided.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager

import pytest
import torch
from torch import Tensor

from byteprophet.allreduce.rows import Touched, block_words, sent_bytes
from byteprophet.job.owners import Owners
from byteprophet.tensor_names import gradient_name
from byteprophet.torch import PeerLost
from byteprophet.torch.sync.rows import Rows

from . import meshes
from .meshes import LIMIT_S, Rank

TABLE = 2000


def ranks_of(owners: Owners) -> AbstractContextManager[list[Rank]]:
    return meshes.ranks_of(owners, Rows, "table")


@pytest.fixture(params=[(1, 1), (1, 1, 1), (2, 0, 1)], ids=str)
def ranks(request: pytest.FixtureRequest) -> Iterator[list[Rank]]:
    with ranks_of(Owners(request.param)) as made:
        yield made


@pytest.fixture
def two() -> Iterator[list[Rank]]:
    with ranks_of(Owners.equal(2)) as made:
        yield made


def gradient_of(numbers: Sequence[int], dtype: torch.dtype, row: Sequence[int] = (3,)) -> Tensor:
    """A gradient as backward gives it: rows in any order, some of them several times."""
    values = torch.randn(len(numbers), *row).to(dtype)
    indices = torch.tensor([list(numbers)], dtype=torch.int64).reshape(1, -1)
    return torch.sparse_coo_tensor(indices, values, (TABLE, *row))


def expected(gradients: Sequence[Tensor]) -> tuple[list[int], Tensor]:
    """The union of the rows, and the averages of all rows."""
    numbers = sorted({number for each in gradients for number in each._indices()[0].tolist()})
    dtype = gradients[0].dtype
    summed = torch.float32 if dtype.itemsize == 2 else dtype
    total = torch.zeros(gradients[0].shape, dtype=summed)
    for each in gradients:
        total = total + each.coalesce().to_dense().to(summed)
    scale = torch.tensor(1.0 / len(gradients), dtype=summed)
    return numbers, (total * scale).to(dtype)


def average(ranks: Sequence[Rank], gradients: Sequence[Tensor]) -> None:
    """Average them on all ranks, and check that every rank has what is expected."""
    numbers, values = expected(gradients)
    for rank, gradient in zip(ranks, gradients, strict=True):
        rank.submit(gradient)
    for rank, gradient in zip(ranks, gradients, strict=True):
        assert rank.error() is None
        assert gradient.is_coalesced()
        assert gradient._indices()[0].tolist() == numbers
        assert torch.equal(gradient._values(), values[numbers])


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str
)
def test_averages_have_the_bits_of_dense_ones(ranks: list[Rank], dtype: torch.dtype) -> None:
    """From few rows to all: numbers that fit into blocks, that don't, and bitmaps."""
    draws = random.Random(5)
    torch.manual_seed(0)
    for most in (0, 3, 2, 30, 4, 1, 200, 0, 60, 500):
        counts = [draws.randint(0, most) for _ in ranks]
        average(
            ranks,
            [gradient_of([draws.randrange(TABLE) for _ in range(n)], dtype) for n in counts],
        )


@pytest.mark.parametrize("row", [(), (1,), (2, 5)], ids=str)
def test_rows_of_any_shape(ranks: list[Rank], row: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    for _ in range(2):
        average(
            ranks,
            [gradient_of([1, 9, 1, 20 + n], torch.float32, row) for n in range(len(ranks))],
        )


def test_all_rows_are_those_of_one_rank_or_common(two: list[Rank]) -> None:
    torch.manual_seed(0)
    for rows in ([[1, 2], [3]], [[5, 6], [6, 5]], [[], [4]], [[], []], [[7], []]):
        average(two, [gradient_of(each, torch.float32) for each in rows])


def test_a_rank_that_has_not_submitted_is_known(two: list[Rank]) -> None:
    gradients = [gradient_of([3], torch.float32) for _ in two]
    two[0].submit(gradients[0])
    two[0].worker.let_go(LIMIT_S)
    assert two[0].operations.missing(gradient_name("table")) == [1]
    two[1].submit(gradients[1])
    assert [rank.error() for rank in two] == [None, None]


def test_ranks_may_submit_in_different_orders(two: list[Rank]) -> None:
    torch.manual_seed(0)
    names = [f"table {number}" for number in range(6)]
    for turn in range(3):
        of_ranks = [
            {
                name: gradient_of([turn, place, 40 + n], torch.float32)
                for place, name in enumerate(names)
            }
            for n in range(2)
        ]
        sums = {name: expected([each[name] for each in of_ranks]) for name in names}
        for rank, gradients, order in zip(two, of_ranks, (names, names[::-1]), strict=True):
            for name in order:
                rank.submit(gradients[name], name)
        for rank, gradients in zip(two, of_ranks, strict=True):
            assert [rank.error() for _ in names] == [None] * len(names)
            for name, (numbers, values) in sums.items():
                assert torch.equal(gradients[name]._values(), values[numbers])


@pytest.mark.parametrize("size", [2, 3])
def test_bytes_are_those_foretold(size: int) -> None:
    with ranks_of(Owners.equal(size)) as ranks:
        draws = random.Random(1)
        most, width = 0, 6
        for limit in (10, 25, 60):
            rows = [sorted(draws.sample(range(TABLE), draws.randint(1, limit))) for _ in ranks]
            before = [rank.exchange.sent().payload_bytes for rank in ranks]
            average(ranks, [gradient_of(each, torch.float32, (width,)) for each in rows])
            touched = Touched.of([torch.tensor(each).numpy() for each in rows])
            after = [rank.exchange.sent().payload_bytes for rank in ranks]
            assert [b - a for a, b in zip(before, after, strict=True)] == sent_bytes(
                touched, width, 4, block_words(most, TABLE), TABLE
            )
            most = max(map(len, rows))


def test_dense_gradients_are_averaged_in_place(two: list[Rank]) -> None:
    torch.manual_seed(0)
    gradients = [torch.randn(TABLE, 3) for _ in two]
    mean = (gradients[0] + gradients[1]) * 0.5
    for rank, gradient in zip(two, gradients, strict=True):
        rank.submit(gradient)
    for rank, gradient in zip(two, gradients, strict=True):
        assert rank.error() is None
        assert torch.equal(gradient, mean)
    average(two, [gradient_of([n], torch.float32) for n in range(2)])


def test_a_gradient_that_is_dense_on_one_rank_is_refused_by_all(two: list[Rank]) -> None:
    two[0].submit(gradient_of([3], torch.float32))
    two[1].submit(torch.ones(TABLE, 3))
    for rank in two:
        assert "it is dense on rank 1 and sparse on rank 0" in str(rank.error())


@pytest.mark.parametrize("rows", [[3], []])
def test_a_rank_that_has_left_is_named(two: list[Rank], rows: list[int]) -> None:
    two[0].submit(gradient_of(rows, torch.float32))
    two[1].exchange.close()
    error = two[0].error()
    assert isinstance(error, PeerLost)
    assert "rank 1 has left the job" in str(error)
