"""The caching allocator: its rules one by one, and what holds of any sequence of requests."""

from __future__ import annotations

import contextlib
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from byteprophet.memory.cuda.caching_allocator import (
    KIB,
    MIB,
    Block,
    CachingAllocator,
    OutOfMemoryError,
    rounded,
    segment_bytes,
)

REQUESTS = st.lists(
    st.tuples(
        st.one_of(st.integers(1, 4 * KIB), st.integers(1, 3 * MIB), st.integers(1, 64 * MIB)),
        st.integers(0, 1),  # stream
        st.integers(0, 3),  # frees before it
        st.randoms(use_true_random=False),
    ),
    max_size=60,
)


def check(allocator: CachingAllocator, used: list[Block]) -> None:
    """Blocks fill their segments without gap or overlap, and the sums are those of the blocks."""
    blocks = sorted([*used, *allocator.free_blocks()], key=lambda block: block.address)
    firsts = [block for block in blocks if block.before is None]
    assert len(firsts) == allocator.now.segments
    chained = []
    for first in firsts:
        block: Block | None = first
        while block is not None:
            chained.append(block)
            following = block.after
            if following is not None:
                assert following.before is block
                assert following.address == block.address + block.size_bytes
                assert (following.is_small, following.stream) == (block.is_small, block.stream)
                assert not (following.is_free and block.is_free), "free neighbours were not merged"
            block = following
    assert len(chained) == len(blocks)
    for one, other in itertools.pairwise(blocks):
        assert one.address + one.size_bytes <= other.address
    now = allocator.now
    assert now.reserved_bytes == sum(block.size_bytes for block in blocks)
    assert now.allocated_bytes == sum(block.size_bytes for block in used)
    assert now.requested_bytes == sum(block.requested_bytes for block in used)
    assert now.inactive_split_bytes == sum(
        block.size_bytes for block in allocator.free_blocks() if block.is_split
    )


@settings(max_examples=60, deadline=None)
@given(REQUESTS)
def test_blocks_never_overlap_and_sums_agree(
    requests: list[tuple[int, int, int, object]],
) -> None:
    allocator = CachingAllocator()
    used: list[Block] = []
    for size_bytes, stream, frees, random in requests:
        for _ in range(min(frees, len(used))):
            allocator.free(used.pop(random.randrange(len(used))))  # type: ignore[attr-defined]
        block = allocator.allocate(size_bytes, stream)
        assert block.size_bytes >= rounded(size_bytes)
        used.append(block)
        check(allocator, used)
    reserved_bytes = allocator.now.reserved_bytes
    for block in used:
        allocator.free(block)
    check(allocator, [])
    assert not any(block.is_split for block in allocator.free_blocks()), "segments are whole again"
    assert allocator.now.reserved_bytes == reserved_bytes, "and kept"
    allocator.release()
    assert allocator.now.reserved_bytes == allocator.now.segments == 0


@settings(max_examples=40, deadline=None)
@given(REQUESTS, st.integers(2, 200))
def test_a_limit_holds_and_what_fails_does_not_fit_beside_what_lives(
    requests: list[tuple[int, int, int, object]], limit_mib: int
) -> None:
    allocator = CachingAllocator(limit_mib * MIB)
    used: list[Block] = []
    for size_bytes, stream, frees, random in requests:
        for _ in range(min(frees, len(used))):
            allocator.free(used.pop(random.randrange(len(used))))  # type: ignore[attr-defined]
        with contextlib.suppress(OutOfMemoryError):
            used.append(allocator.allocate(size_bytes, stream, "it"))
            continue
        new_bytes = segment_bytes(rounded(size_bytes))
        assert allocator.now.reserved_bytes + new_bytes > limit_mib * MIB
        assert all(block.is_split for block in allocator.free_blocks()), "cached: given back"
        assert sum(row.blocks for row in allocator.table()) == len(used)
        check(allocator, used)
        assert allocator.peak.reserved_bytes <= limit_mib * MIB


@pytest.mark.parametrize(
    ("asked", "block", "segment"),
    [
        (1, 512, 2 * MIB),
        (512, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        (13 * MIB - 512, 13 * MIB - 512, 14 * MIB),  # a rest of more than 1 MiB is split off
        (13 * MIB, 14 * MIB, 14 * MIB),  # of 1 MiB it is not
    ],
)
def test_sizes(asked: int, block: int, segment: int) -> None:
    allocator = CachingAllocator()
    assert allocator.allocate(asked).size_bytes == block
    assert allocator.now.reserved_bytes == segment


def test_the_smallest_block_that_is_large_enough_is_taken_of_equals_the_lowest() -> None:
    allocator = CachingAllocator(addresses=[5 << 40, 3 << 40, 4 << 40, 2 << 40])
    blocks = [allocator.allocate(size * MIB) for size in (40, 30, 30, 60)]
    for block in blocks:
        allocator.free(block)
    taken = [allocator.allocate(30 * MIB) for _ in range(3)]
    assert [block.address for block in taken] == [3 << 40, 4 << 40, 5 << 40]
    assert taken[2].size_bytes == 30 * MIB
    assert allocator.now.segments == len(blocks)


def test_streams_and_pools_do_not_share_blocks() -> None:
    allocator = CachingAllocator()
    allocator.free(allocator.allocate(30 * MIB, stream=1))
    allocator.allocate(30 * MIB, stream=2)
    allocator.allocate(KIB, stream=1)
    assert allocator.now.segments == 3


def test_cached_segments_are_given_back_before_a_request_fails() -> None:
    allocator = CachingAllocator(100 * MIB)
    allocator.free(allocator.allocate(60 * MIB))
    kept = allocator.allocate(2 * MIB, label="kept")  # 2 of the 60 MiB
    allocator.free(kept)
    allocator.allocate(70 * MIB, label="large")
    assert (allocator.retries, allocator.now.reserved_bytes) == (1, 70 * MIB)
    with pytest.raises(OutOfMemoryError, match="out of memory") as error:
        allocator.allocate(40 * MIB)
    assert [(row.label, row.blocks, row.size_bytes) for row in error.value.table] == [
        ("large", 1, 70 * MIB)
    ]


def test_only_allocated_blocks_can_be_freed() -> None:
    allocator = CachingAllocator()
    block = allocator.allocate(KIB)
    allocator.free(block)
    with pytest.raises(ValueError, match="not allocated"):
        allocator.free(block)
