"""Compressed gradients of several ranks, whose meshes are all in this process.

The reference computes for all ranks in one process (``compression_reference.py``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch import Tensor

from byteprophet.job.compression import Compressor, Dithering, OneBit, PowerSgd, RandomK, TopK
from byteprophet.job.owners import Owners
from byteprophet.tensor_names import gradient_name
from byteprophet.torch.sync.compressing import Compressing

from ..compression_reference import Reference
from . import meshes
from .meshes import LIMIT_S, Rank

NAME = "layer.weight"
COMPRESSORS: list[tuple[Compressor, dict[str, Any]]] = [
    (TopK(0.05), {"type": "topk", "k": 0.05}),
    (TopK(7, error_feedback=False), {"type": "topk", "k": 7}),
    (RandomK(0.1, seed=5), {"type": "randomk", "k": 0.1, "seed": 5}),
    (RandomK(3), {"type": "randomk", "k": 3}),
    (OneBit(), {"type": "onebit"}),
    (OneBit(error_feedback=False), {"type": "onebit"}),
    (Dithering(7, error_feedback=True), {"type": "dithering", "k": 7}),
    (Dithering(127, normalize="l2"), {"type": "dithering", "k": 127, "normalize": "l2"}),
    (
        Dithering(4, "natural", seed=3),
        {"type": "dithering", "k": 4, "partition": "natural", "seed": 3},
    ),
    (PowerSgd(1), {"type": "powersgd", "rank": 1}),
    (PowerSgd(4, seed=9), {"type": "powersgd", "rank": 4, "seed": 9}),
]
IDS = [str(compressor) for compressor, _ in COMPRESSORS]


def ranks_of(owners: Owners) -> AbstractContextManager[list[Rank]]:
    return meshes.ranks_of(owners, Compressing, NAME)


@pytest.fixture(params=[(1, 1), (1, 1, 1), (2, 0, 1)], ids=str)
def ranks(request: pytest.FixtureRequest) -> Iterator[list[Rank]]:
    with ranks_of(Owners(request.param)) as made:
        yield made


@pytest.fixture
def two() -> Iterator[list[Rank]]:
    with ranks_of(Owners.equal(2)) as made:
        yield made


def take(ranks: Sequence[Rank], compressor: Compressor, shape: Sequence[int]) -> None:
    for rank in ranks:
        rank.way.take(NAME, compressor, tuple(shape))


def averages(ranks: Sequence[Rank], gradients: Sequence[Tensor]) -> Tensor:
    """Average them on all ranks, check that all have the same, and give it."""
    mine = [each.clone() for each in gradients]
    for rank, gradient in zip(ranks, mine, strict=True):
        rank.submit(gradient)
    for rank in ranks:
        assert rank.error() is None
    for other in mine[1:]:
        torch.testing.assert_close(other, mine[0], rtol=0, atol=0, equal_nan=True)
    return mine[0]


@pytest.mark.parametrize(("compressor", "rule"), COMPRESSORS, ids=IDS)
@pytest.mark.parametrize("shape", [(24, 31), (9, 4, 3, 3)], ids=str)
def test_averages_are_those_of_one_process(
    ranks: list[Rank], compressor: Compressor, rule: dict[str, Any], shape: tuple[int, ...]
) -> None:
    """Over several steps, so that errors, random numbers and queries count, too."""
    torch.manual_seed(0)
    take(ranks, compressor, shape)
    reference = Reference(NAME, rule, len(ranks), compressor.error_feedback)
    for _ in range(5):
        gradients = [torch.randn(shape) for _ in ranks]
        expected = reference.average(gradients)
        assert torch.equal(averages(ranks, gradients), expected)
    if reference.errors is not None:
        for rank, error in zip(ranks, reference.errors, strict=True):
            own = rank.way.state.own_error(NAME)
            assert torch.equal(own, torch.from_numpy(error).view(shape))


@pytest.mark.parametrize(("compressor", "_rule"), COMPRESSORS, ids=IDS)
def test_bytes_are_those_stated(compressor: Compressor, _rule: dict[str, Any]) -> None:
    shape = (40, 25)
    for size in (2, 3):
        with ranks_of(Owners.equal(size)) as ranks:
            take(ranks, compressor, shape)
            averages(ranks, [torch.randn(shape) for _ in ranks])
            sent = [rank.exchange.sent().payload_bytes for rank in ranks]
            form = compressor.form(shape)
            assert sum(sent) == pytest.approx(size * form.sent_bytes(size), abs=1)
            assert max(sent) - min(sent) <= 16  # an owner's share is a whole number of elements


def test_error_feedback_sends_everything_in_the_end(two: list[Rank]) -> None:
    """What was averaged and the mean of what is left add up to what was given."""
    torch.manual_seed(1)
    for number, (compressor, _) in enumerate(COMPRESSORS):
        if not compressor.error_feedback or isinstance(compressor, Dithering):
            continue
        name = f"{number}"
        given, came = torch.zeros(16, 20), torch.zeros(16, 20)
        for rank in two:
            rank.way.take(name, compressor, (16, 20))
        for _ in range(6):
            gradients = [torch.randn(16, 20) for _ in two]
            given += (gradients[0] + gradients[1]) / 2
            for rank, gradient in zip(two, gradients, strict=True):
                rank.submit(gradient, name)
            assert [rank.error() for rank in two] == [None, None]
            came += gradients[0]
        left = sum(rank.way.state.own_error(name) for rank in two) / 2
        torch.testing.assert_close(came + left, given, rtol=1e-4, atol=1e-4)


def test_dithering_is_right_on_average(two: list[Rank]) -> None:
    torch.manual_seed(2)
    for number, (compressor, off) in enumerate(
        ((Dithering(3), 0.1), (Dithering(3, "natural", "l2"), 0.9))
    ):
        gradients = [torch.randn(8, 8) for _ in two]
        expected = (gradients[0] + gradients[1]) / 2
        for rank in two:
            rank.way.take(f"{number}", compressor, (8, 8))
        total = torch.zeros(8, 8)
        for _ in range(400):
            mine = [each.clone() for each in gradients]
            for rank, gradient in zip(two, mine, strict=True):
                rank.submit(gradient, f"{number}")
            assert [rank.error() for rank in two] == [None, None]
            total += mine[0]
        # A level is at most the largest entry, or the norm, 10: a mean of 800 has a deviation of
        # 0.016, or 0.18, at most. Over all entries, it is neither too large nor too small.
        torch.testing.assert_close(total / 400, expected, rtol=0, atol=off)
        slope = (total / 400 * expected).sum() / expected.square().sum()
        assert slope == pytest.approx(1, abs=0.15 * off)


@pytest.mark.parametrize(("compressor", "_rule"), COMPRESSORS, ids=IDS)
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_is_seen_and_not_kept(
    two: list[Rank], compressor: Compressor, _rule: dict[str, Any], value: float
) -> None:
    torch.manual_seed(3)
    shape = (12, 10)
    take(two, compressor, shape)
    averages(two, [torch.randn(shape) for _ in two])
    before = two[1].way.state.own_error(NAME)
    gradients = [torch.randn(shape) for _ in two]
    gradients[1][3, 3] = value
    assert not averages(two, gradients).isfinite().all()
    assert torch.equal(two[1].way.state.own_error(NAME), before)
    assert averages(two, [torch.randn(shape) for _ in two]).isfinite().all()
    for rank in two:
        assert rank.way.state.own_error(NAME).isfinite().all()


@pytest.mark.parametrize(("compressor", "_rule"), COMPRESSORS, ids=IDS)
def test_zeros_stay_zeros(two: list[Rank], compressor: Compressor, _rule: dict[str, Any]) -> None:
    """A parameter without a gradient contributes zeros."""
    take(two, compressor, (12, 10))
    for _ in range(2):
        assert not averages(two, [torch.zeros(12, 10) for _ in two]).any()


def test_a_low_rank_gradient_comes_whole(two: list[Rank]) -> None:
    """Factors of rank 3 are enough for two gradients of rank 1, after one step."""
    torch.manual_seed(4)
    take(two, PowerSgd(3), (30, 20))
    gradients = [torch.outer(torch.randn(30), torch.randn(20)) for _ in two]
    expected = (gradients[0] + gradients[1]) / 2
    torch.testing.assert_close(averages(two, gradients), expected, rtol=1e-4, atol=1e-4)


def test_a_rank_that_has_not_submitted_is_known(two: list[Rank]) -> None:
    take(two, OneBit(), (10,))
    gradients = [torch.randn(10) for _ in two]
    two[0].submit(gradients[0])
    two[0].worker.let_go(LIMIT_S)
    assert two[0].operations.missing(gradient_name(NAME)) == [1]
    two[1].submit(gradients[1])
    assert [rank.error() for rank in two] == [None, None]


def test_ranks_may_submit_in_different_orders(two: list[Rank]) -> None:
    torch.manual_seed(5)
    names = [f"{number}" for number in range(len(COMPRESSORS))]
    given = {name: [torch.randn(12, 10) for _ in two] for name in names}
    for name, (compressor, _) in zip(names, COMPRESSORS, strict=True):
        for rank in two:
            rank.way.take(name, compressor, (12, 10))
    for number, order in enumerate((names, names[::-1])):
        for name in order:
            two[number].submit(given[name][number], name)
    for rank in two:
        assert [rank.error() for _ in names] == [None] * len(names)
    assert all(torch.equal(*each) for each in given.values())


def test_a_rank_that_leaves_is_an_error(two: list[Rank]) -> None:
    take(two, OneBit(), (10,))
    two[0].submit(torch.randn(10))
    two[1].exchange.close()
    assert "rank 1" in str(two[0].error())
