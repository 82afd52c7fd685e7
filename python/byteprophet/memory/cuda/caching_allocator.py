"""PyTorch's caching allocator of a CUDA device, as an exact model; without torch.

It takes *segments* from the device and divides them into *blocks*. The rules, of torch 2.11
(``c10/cuda/CUDACachingAllocator.cpp``; no option of ``PYTORCH_CUDA_ALLOC_CONF`` is set):

- Sizes are rounded up to 512 bytes.
- Blocks of at most 1 MiB come from segments of 2 MiB (the small pool). Others come from segments of
  20 MiB, or from 10 MiB on from segments of their own size, rounded up to 2 MiB (the large pool).
- A free block serves a request of its stream and pool if it is large enough: the smallest one, and
  of several the one with the lowest address.
- The rest of a block stays a free block of its own if it has at least 512 bytes (small pool), or
  more than 1 MiB (large pool). Otherwise the request gets the whole block.
- A freed block merges with free neighbours of its segment.
- Segments are kept. If the device has no room for another one, all segments without a used block
  are given back, and the request is tried again. Then it fails.

Which block has the lowest address depends on where the driver puts segments. It puts most of them
below the one before, and so does this model, unless it is told addresses. So a real job may differ
a little in ``reserved``, as it differs from run to run.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

KIB, MIB = 1 << 10, 1 << 20
ROUNDING_BYTES = 512
SMALL_BYTES = MIB
SMALL_SEGMENT_BYTES = 2 * MIB
LARGE_SEGMENT_BYTES = 20 * MIB
OWN_SEGMENT_BYTES = 10 * MIB
SEGMENT_ROUNDING_BYTES = 2 * MIB
_APART_BYTES = 1 << 40  # segments are never neighbours


def rounded(size_bytes: int) -> int:
    """The size of a block for a request."""
    return max(ROUNDING_BYTES, -(-size_bytes // ROUNDING_BYTES) * ROUNDING_BYTES)


def segment_bytes(block_bytes: int) -> int:
    """The size of a new segment for a block."""
    if block_bytes <= SMALL_BYTES:
        return SMALL_SEGMENT_BYTES
    if block_bytes < OWN_SEGMENT_BYTES:
        return LARGE_SEGMENT_BYTES
    return -(-block_bytes // SEGMENT_ROUNDING_BYTES) * SEGMENT_ROUNDING_BYTES


@dataclass(eq=False)
class Block:
    """A part of a segment. ``requested_bytes`` is 0 and ``label`` empty while it is free."""

    address: int
    size_bytes: int
    is_small: bool
    stream: int
    before: Block | None = None
    after: Block | None = None
    is_free: bool = True
    requested_bytes: int = 0
    label: str = ""

    @property
    def is_split(self) -> bool:
        """Whether the segment has other blocks."""
        return self.before is not None or self.after is not None

    @property
    def key(self) -> tuple[int, int]:
        """The smallest key of the free blocks that are large enough is taken."""
        return self.size_bytes, self.address


@dataclass(frozen=True)
class Row:
    """What blocks of one label take."""

    label: str
    blocks: int
    size_bytes: int


@dataclass
class Amounts:
    """Bytes and segments, as ``torch.cuda.memory_stats`` counts them.

    ``allocated_bytes``: of used blocks. ``requested_bytes``: what was asked for in them.
    ``reserved_bytes``: of segments. ``inactive_split_bytes``: of free blocks in segments that have
    other blocks, so that they cannot be given back.
    """

    allocated_bytes: int = 0
    requested_bytes: int = 0
    reserved_bytes: int = 0
    inactive_split_bytes: int = 0
    segments: int = 0


class OutOfMemoryError(Exception):
    """No room for a request. ``table``: what lives, the largest first."""

    def __init__(
        self, size_bytes: int, amounts: Amounts, limit_bytes: int, table: list[Row]
    ) -> None:
        super().__init__(
            f"out of memory: {size_bytes} bytes asked for, {amounts.allocated_bytes} allocated, "
            f"{amounts.reserved_bytes} reserved of {limit_bytes}"
        )
        self.size_bytes = size_bytes
        self.table = table


@dataclass
class CachingAllocator:
    """The allocator of one device.

    Args:
        limit_bytes: what segments may take; None: no limit.
        addresses: of the segments, in the order in which they are made; afterwards, or if None,
            each is below all others.
    """

    limit_bytes: int | None = None
    addresses: Iterable[int] | None = None
    now: Amounts = field(default_factory=Amounts)
    peak: Amounts = field(default_factory=Amounts)
    """The highest value of each amount, each at its own time."""
    retries: int = 0
    """How often segments had to be given back."""

    def __post_init__(self) -> None:
        self._free: defaultdict[tuple[bool, int], list[Block]] = defaultdict(list)
        self._segments: dict[int, int] = {}  # address: bytes
        self._used: set[Block] = set()
        self._addresses: Iterator[int] = iter(self.addresses or ())
        self._lowest = 0

    def allocate(self, size_bytes: int, stream: int = 0, label: str = "") -> Block:
        """Return a block for ``size_bytes``. Raises ``OutOfMemoryError``."""
        need_bytes = rounded(size_bytes)
        is_small = need_bytes <= SMALL_BYTES
        block = self._best(need_bytes, is_small, stream)
        if block is None:
            block = self._segment(need_bytes, is_small, stream, size_bytes)
        else:
            self._take(block)
        self._cut(block, need_bytes)
        block.is_free, block.requested_bytes, block.label = False, size_bytes, label
        self._used.add(block)
        self.now.allocated_bytes += block.size_bytes
        self.now.requested_bytes += size_bytes
        self._note()
        return block

    def free(self, block: Block) -> None:
        """Free a block that ``allocate`` returned."""
        if block not in self._used:
            raise ValueError("the block is not allocated")
        self._used.remove(block)
        self.now.allocated_bytes -= block.size_bytes
        self.now.requested_bytes -= block.requested_bytes
        block.is_free, block.requested_bytes, block.label = True, 0, ""
        if block.before is not None and block.before.is_free:
            self._take(block.before)
            block.address = block.before.address
            block.size_bytes += block.before.size_bytes
            block.before = block.before.before
            if block.before is not None:
                block.before.after = block
        if block.after is not None and block.after.is_free:
            self._take(block.after)
            block.size_bytes += block.after.size_bytes
            block.after = block.after.after
            if block.after is not None:
                block.after.before = block
        self._give(block)
        self._note()

    def table(self) -> list[Row]:
        """What lives, by label, the largest first."""
        blocks: defaultdict[str, list[int]] = defaultdict(list)
        for block in self._used:
            blocks[block.label].append(block.size_bytes)
        rows = [Row(label, len(sizes), sum(sizes)) for label, sizes in blocks.items()]
        return sorted(rows, key=lambda row: (-row.size_bytes, row.label))

    def free_blocks(self) -> list[Block]:
        """All free blocks, in any order."""
        return [block for blocks in self._free.values() for block in blocks]

    def release(self) -> None:
        """Give back all segments without a used block, as ``torch.cuda.empty_cache`` does."""
        for blocks in self._free.values():
            for block in [each for each in blocks if not each.is_split]:
                blocks.remove(block)
                self.now.reserved_bytes -= self._segments.pop(block.address)
                self.now.segments -= 1

    def _best(self, need_bytes: int, is_small: bool, stream: int) -> Block | None:
        blocks = self._free[is_small, stream]
        place = bisect.bisect_left(blocks, need_bytes, key=lambda block: block.size_bytes)
        return self._choose(blocks, place) if place < len(blocks) else None

    def _choose(self, blocks: list[Block], place: int) -> Block:
        """The block of those that are large enough, which begin at ``place``."""
        return blocks[place]

    def _segment(self, need_bytes: int, is_small: bool, stream: int, asked_bytes: int) -> Block:
        size_bytes = segment_bytes(need_bytes)
        if not self._has_room(size_bytes):
            self.retries += 1
            self.release()
            if not self._has_room(size_bytes):
                assert self.limit_bytes is not None
                raise OutOfMemoryError(asked_bytes, self.now, self.limit_bytes, self.table())
        address = next(self._addresses, self._lowest - size_bytes - _APART_BYTES)
        self._lowest = min(self._lowest, address)
        self._segments[address] = size_bytes
        self.now.reserved_bytes += size_bytes
        self.now.segments += 1
        return Block(address, size_bytes, is_small, stream)

    def _has_room(self, size_bytes: int) -> bool:
        return self.limit_bytes is None or self.now.reserved_bytes + size_bytes <= self.limit_bytes

    def _cut(self, block: Block, need_bytes: int) -> None:
        rest_bytes = block.size_bytes - need_bytes
        if not (rest_bytes >= ROUNDING_BYTES if block.is_small else rest_bytes > SMALL_BYTES):
            return
        rest = Block(
            block.address + need_bytes, rest_bytes, block.is_small, block.stream, block, block.after
        )
        if block.after is not None:
            block.after.before = rest
        block.after, block.size_bytes = rest, need_bytes
        self._give(rest)

    def _take(self, block: Block) -> None:
        """Take a block out of the free ones."""
        blocks = self._free[block.is_small, block.stream]
        place = bisect.bisect_left(blocks, block.key, key=lambda each: each.key)
        assert blocks[place] is block
        del blocks[place]
        if block.is_split:
            self.now.inactive_split_bytes -= block.size_bytes

    def _give(self, block: Block) -> None:
        """Put a block among the free ones."""
        blocks = self._free[block.is_small, block.stream]
        bisect.insort(blocks, block, key=lambda each: each.key)
        if block.is_split:
            self.now.inactive_split_bytes += block.size_bytes

    def _note(self) -> None:
        for name, value in vars(self.now).items():
            if value > getattr(self.peak, name):
                setattr(self.peak, name, value)
