"""Weights of owners: every element has one, in proportion; what is no weight is refused."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from byteprophet.errors import UserError
from byteprophet.job.owners import MOST_WEIGHT, Owners, parse_weights, text_of

WEIGHTS = st.lists(st.integers(0, 10**6), min_size=1, max_size=6).filter(any)


@given(WEIGHTS, st.integers(0, 10**12))
def test_every_element_has_one_owner_in_proportion(weights: list[int], elements: int) -> None:
    owners = Owners.of(weights, len(weights))
    shards = [owners.shard(elements, rank) for rank in range(len(weights))]
    assert shards[0].start == 0
    assert shards[-1].stop == elements
    assert all(one.stop == other.start for one, other in pairwise(shards))
    for weight, shard, share in zip(weights, shards, owners.shares, strict=True):
        assert share == Fraction(weight, sum(weights))
        assert abs(shard.stop - shard.start - elements * share) < 1
        assert weight or shard.stop == shard.start
    assert owners.sizes(elements) == tuple(shard.stop - shard.start for shard in shards)


@given(WEIGHTS, st.integers(1, 1000), st.integers(0, 10**9))
def test_only_proportions_matter(weights: list[int], factor: int, elements: int) -> None:
    ranks = len(weights)
    owners = Owners.of(weights, ranks)
    if sum(weights) * factor <= MOST_WEIGHT:
        assert Owners.of([weight * factor for weight in weights], ranks) == owners
    assert owners.are_equal == (len(set(weights)) == 1)


@given(st.integers(1, 9), st.integers(0, 10**9))
def test_none_are_equal_ones(ranks: int, elements: int) -> None:
    owners = Owners.of((), ranks)
    assert owners == Owners.equal(ranks) == Owners.of([7] * ranks, ranks)
    for rank in range(ranks):
        first, end = rank * elements // ranks, (rank + 1) * elements // ranks
        assert owners.shard(elements, rank) == slice(first, end)


@given(WEIGHTS)
def test_what_is_written_is_read(weights: list[int]) -> None:
    assert parse_weights(text_of(weights), "owners") == tuple(weights)


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ((0, 0, 0), "owners 0,0,0: all weights are 0, so nobody would sum"),
        ((1, -1, 1), "owners 1,-1,1: weights are whole numbers from 0 on"),
        ((1, 1), "owners 1,1: 2 weights for 3 ranks: give one for each rank"),
        ((1, 1, 1, 1), "owners 1,1,1,1: 4 weights for 3 ranks: give one for each rank"),
        ((1, 0.5, 1), "owners 1,0.5,1: weights are whole numbers from 0 on"),
        ((True, 1, 1), "owners True,1,1: weights are whole numbers from 0 on"),
        ((MOST_WEIGHT, 1, 0), "owners 1073741824,1,0: weights add up to more than 2^30"),
    ],
)
def test_what_are_no_weights_is_refused_in_one_line(weights: tuple[int, ...], said: str) -> None:
    with pytest.raises(UserError) as refused:
        Owners.of(weights, 3)
    assert str(refused.value) == said


@pytest.mark.parametrize("text", ["", "1,", "1;2", "-1,2", "0x1,1", "1,1.5", "one", "\u0661,1"])
def test_text_that_is_no_list_of_weights_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="one whole number for each rank"):
        parse_weights(text, "--owners")


@pytest.mark.parametrize(
    ("kib", "chunks"), [(1, 1), (256, 1), (257, 2), (1 << 10, 4), (1 << 16, 64), (1 << 20, 512)]
)
def test_a_large_all_reduce_goes_in_64_chunks_of_bounded_size(kib: int, chunks: int) -> None:
    """With unequal owners only. They are as large as each other, but for an element."""
    found = Owners((2, 1)).chunks(kib << 8, kib << 10)
    assert len(found) == chunks
    sizes = [chunk.stop - chunk.start for chunk in found]
    assert sum(sizes) == kib << 8
    assert max(sizes) - min(sizes) <= 1
    assert len(Owners.equal(2).chunks(kib << 8, kib << 10)) == 1
