"""Recorded histories of the caching allocator, and where its segments lay.

A line of ``results/gpu-h200/allocations_*.txt.gz`` is an action, its bytes, and a number that
stands for the address. The addresses themselves are not kept, but which of several equal blocks the
allocator took tells how segments lie to each other.
"""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from byteprophet.memory.cuda.caching_allocator import Block, CachingAllocator

MIB = 1 << 20
BEFORE_BYTES = (MIB, 32 * MIB, 32 * MIB)
"""What lived before each model: 1 MiB, and cuBLAS's workspaces of two threads."""


@dataclass(frozen=True)
class Action:
    """An allocation or, with 0 bytes, the end of one. ``new_segment_bytes``: made for it, or 0."""

    address: int
    size_bytes: int
    new_segment_bytes: int


def read_history(path: Path) -> list[Action]:
    """The allocations and frees of a recorded history, in order."""
    actions: list[Action] = []
    new_segment_bytes = 0
    with gzip.open(path, "rt", encoding="ascii") as lines:
        for line in lines:
            if line.startswith("#"):
                continue
            name, size, address = line.split()
            if name == "segment_alloc":
                new_segment_bytes = int(size)
            elif name == "alloc":
                actions.append(Action(int(address), int(size), new_segment_bytes))
                new_segment_bytes = 0
            elif name == "free_completed":
                actions.append(Action(int(address), 0, 0))
    return actions


class Recorded(CachingAllocator):
    """Takes, of equally large blocks, the one at the recorded address.

    ``contradictions``: allocations whose recorded address is of none of these blocks.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self.wanted: int | None = None
        self.contradictions = 0
        self._names: dict[int, int] = {}

    def name(self, block: Block) -> None:
        """Note that a block lies at the wanted address."""
        if self.wanted is not None:
            self._names[block.address] = self.wanted

    def _choose(self, blocks: list[Block], place: int) -> Block:
        equal = [each for each in blocks[place:] if each.size_bytes == blocks[place].size_bytes]
        known = [each for each in equal if self._names.get(each.address) == self.wanted]
        new = [each for each in equal if each.address not in self._names]
        if not known and (not new or self.wanted in self._names.values()):
            self.contradictions += 1
        return (known or new or equal)[0]


def serve(allocator: CachingAllocator, actions: Sequence[Action]) -> int:
    """Serve a history. Returns how many segments were made where the record has none, or not."""
    for size_bytes in BEFORE_BYTES:
        allocator.allocate(size_bytes)
    blocks: dict[int, Block] = {}
    wrong = 0
    for action in actions:
        if not action.size_bytes:
            allocator.free(blocks.pop(action.address))
            continue
        reserved_bytes = allocator.now.reserved_bytes
        if isinstance(allocator, Recorded):
            allocator.wanted = action.address
        block = blocks[action.address] = allocator.allocate(action.size_bytes)
        if isinstance(allocator, Recorded):
            allocator.name(block)
        wrong += allocator.now.reserved_bytes - reserved_bytes != action.new_segment_bytes
    return wrong
