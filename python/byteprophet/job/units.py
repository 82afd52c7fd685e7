"""The units that FSDP2 gets where no strategy says which: the blocks of a model, and the rest.

Blocks are neighbours in a list of modules, ``blocks.0``, ``blocks.1`` and so on, whose parameters
have the same names and sizes. Each block is a unit, as in torch's own examples, so that most of a
model travels while other blocks compute. All other parameters are one unit, the root's.
"""

from __future__ import annotations

from collections.abc import Mapping

_LEAST_BLOCKS = 2


def block_units(sizes_bytes: Mapping[str, int]) -> tuple[tuple[str, ...], ...]:
    """The units of a model whose parameters have ``sizes_bytes``, by name, in forward order.

    The root's comes first. Of several chains of equal blocks, the longest one is taken, and of
    equally long ones the one with most bytes. Without any, all parameters are one unit.
    """
    chains = [_longest_run(blocks) for blocks in _lists(sizes_bytes).values()]
    chains = [chain for chain in chains if len(chain) >= _LEAST_BLOCKS]
    if not chains:
        return (tuple(sizes_bytes),)
    chain = max(chains, key=lambda blocks: (len(blocks), _size_bytes(blocks)))
    units = [tuple(block.values()) for block in _named(chain)]
    in_blocks = {name for unit in units for name in unit}
    rest = tuple(name for name in sizes_bytes if name not in in_blocks)
    return (rest, *units) if rest else tuple(units)


Block = dict[str, tuple[str, int]]
"""What parameters are called within a block, with their whole names and sizes in bytes."""


def _lists(sizes_bytes: Mapping[str, int]) -> dict[str, dict[int, Block]]:
    """For each list of modules, by its path, its members by their number."""
    lists: dict[str, dict[int, Block]] = {}
    for name, size in sizes_bytes.items():
        parts = name.split(".")
        for place, part in enumerate(parts[:-1]):
            if part.isdecimal():
                members = lists.setdefault(".".join(parts[:place]), {})
                inner = ".".join(parts[place + 1 :])
                members.setdefault(int(part), {})[inner] = name, size
    return lists


def _longest_run(members: Mapping[int, Block]) -> list[Block]:
    """The longest run of neighbours that are equal."""
    longest: list[Block] = []
    run: list[Block] = []
    before = None
    for number in sorted(members):
        block = members[number]
        alike = before == number - 1 and run and _sizes(run[-1]) == _sizes(block)
        run = [*run, block] if alike else [block]
        longest = max(longest, run, key=len)
        before = number
    return longest


def _sizes(block: Block) -> dict[str, int]:
    return {inner: size for inner, (_, size) in block.items()}


def _size_bytes(blocks: list[Block]) -> int:
    return sum(size for block in blocks for _, size in block.values())


def _named(blocks: list[Block]) -> list[dict[str, str]]:
    return [{inner: name for inner, (name, _) in block.items()} for block in blocks]
