"""Where ranks meet: those of a group begin a collective together, when the last one has come."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeVar

from byteprophet.simulate.execute.operations import Operations
from byteprophet.simulate.operation.mesh import AXES, Mesh

_T = TypeVar("_T")


def groups_along(
    mesh: Mesh, axes: Iterable[str], parts: Iterable[_T], member: Callable[[_T], int]
) -> list[list[_T]]:
    """``parts`` of members of one pipeline rank, by the group along ``axes`` that they are in."""
    found: dict[tuple[int, ...], list[_T]] = defaultdict(list)
    for part in parts:
        place, fixed = member(part), []
        for axis in AXES[:-1]:
            place, at = divmod(place, mesh.sizes[axis])
            if axis not in axes:
                fixed.append(at)
        found[tuple(fixed)].append(part)
    return list(found.values())


class _Part(NamedTuple):
    member: int
    after: int
    transfer: int


class Meetings:
    """The meetings for collectives that operators wait for, with several ranks per pipeline rank.

    All ranks of a pipeline rank have the same collectives in the same order.
    """

    def __init__(self, operations: Operations, mesh: Mesh) -> None:
        self._operations = operations
        self._mesh = mesh
        self._parts: dict[tuple[int, int], list[_Part]] = defaultdict(list)
        self._axes: dict[tuple[int, int], tuple[str, ...]] = {}

    def join(
        self,
        collective: tuple[int, int],
        axes: tuple[str, ...],
        member: int,
        *,
        after: int,
        transfer: int,
    ) -> None:
        """Take part in a collective: the pipeline rank, and how many it has had before.

        Args:
            collective: which it is.
            axes: the mesh axes along which its group is.
            member: who takes part.
            after: what it comes after; -1: nothing.
            transfer: the operation that begins when all have come.
        """
        self._axes[collective] = axes
        self._parts[collective].append(_Part(member, after, transfer))

    def add(self) -> None:
        """Add all meetings to the graph."""
        operations = self._operations
        for collective, parts in self._parts.items():
            axes = self._axes[collective]
            for group in groups_along(self._mesh, axes, parts, lambda part: part.member):
                meeting = operations.add(0) if len(group) > 1 else -1
                for part in group:
                    operations.depend(part.after, meeting if meeting >= 0 else part.transfer)
                    operations.depend(meeting, part.transfer)
