"""A device mesh: how many ranks there are along each named axis, and which ranks form a group."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from math import prod

AXES = ("tp", "cp", "ep", "dp", "pp")
"""The axes, from that with neighbouring ranks to that with the most distant ones.

tp: tensor (and sequence) parallelism. cp: context parallelism. ep: expert parallelism; for all but
experts, it is a part of data parallelism. dp: the rest of data parallelism. pp: pipeline ranks.
"""


@dataclass(frozen=True)
class Mesh:
    """The sizes of the axes, in the order of ``AXES``."""

    tp: int = 1
    cp: int = 1
    ep: int = 1
    dp: int = 1
    pp: int = 1

    @cached_property
    def sizes(self) -> dict[str, int]:
        """The size of each axis."""
        return {axis: getattr(self, axis) for axis in AXES}

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return prod(self.sizes.values())

    @property
    def ranks_per_stage(self) -> int:
        """The number of ranks of each pipeline rank."""
        return self.ranks // self.pp

    def parts(self, axes: Iterable[str]) -> int:
        """The number of ranks in a group along these axes."""
        return prod(self.sizes[axis] for axis in axes)

    def stride(self, axis: str) -> int:
        """The distance between neighbours along this axis, in ranks."""
        return prod(self.sizes[before] for before in AXES[: AXES.index(axis)])

    def group(self, axes: Iterable[str], member: int = 0) -> tuple[int, ...]:
        """The ranks of the group along these axes that contains rank ``member``, ascending."""
        ranks = [member]
        for axis in axes:
            stride, size = self.stride(axis), self.sizes[axis]
            own = member // stride % size
            ranks = [rank + (at - own) * stride for rank in ranks for at in range(size)]
        return tuple(sorted(ranks))
