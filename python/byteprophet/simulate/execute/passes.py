"""Adds what a rank does in a row: work on its GPU, and collectives that its operators wait for.

Most ranks do the same pass for many micro-batches. So a pass is written down as columns once, and
added many times.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from byteprophet.simulate.costs.blocks import Pass, PassTime, Waited, slower
from byteprophet.simulate.execute.meetings import Meetings
from byteprophet.simulate.execute.operations import Operations
from byteprophet.simulate.execute.ranks import Rank, Ranks
from byteprophet.simulate.execute.wiring import units

STREAM = "operators"
"""The connections of collectives that operators wait for."""


@dataclass(frozen=True)
class _Columns:
    """A pass on one rank: one entry per operation. ``waited``: those that are collectives."""

    duration_ns: list[int]
    device: list[int]
    units: list[int]
    waited: list[Waited | None]
    spent: list[PassTime]

    def __len__(self) -> int:
        return len(self.duration_ns)


class Passes:
    """Adds passes of ranks to their graph."""

    def __init__(self, ranks: Ranks, meetings: Meetings | None) -> None:
        """``meetings``: where ranks meet; None: each rank stands for all that it would meet."""
        self._ranks = ranks
        self._meetings = meetings
        self._done: dict[tuple[int, int], tuple[Pass, _Columns]] = {}

    def add(self, rank: Rank, passes: Iterable[Pass]) -> list[tuple[int, int]]:
        """Add passes behind each other, and return the first and last operation of each."""
        several = [self._of(rank, passed) for passed in passes]
        operations = self._ranks.operations
        here = operations.add_rows(
            [value for columns in several for value in columns.duration_ns],
            [value for columns in several for value in columns.device],
            [value for columns in several for value in columns.units],
        )
        ends = []
        for columns in several:
            _note(rank, columns, here, operations)
            self._chain(rank, columns, here)
            ends.append((here, here + len(columns) - 1))
            here += len(columns)
        return ends

    def _of(self, rank: Rank, passed: Pass) -> _Columns:
        key = (rank.gpu, id(passed))
        if key not in self._done:
            self._done[key] = passed, self._columns(rank, passed)
        return self._done[key][1]

    def _columns(self, rank: Rank, passed: Pass) -> _Columns:
        found = _Columns([], [], [], [], [])
        for part in passed:
            if isinstance(part, PassTime):
                part = slower(part, rank.factor)
                found.duration_ns.append(part.time_ns)
                found.device.append(rank.gpu)
                found.units.append(0)
                found.waited.append(None)
                found.spent.append(part)
                continue
            found.duration_ns.append(round(part.transfer.latency_ns))
            found.device.append(self._ranks.connection(rank, STREAM, part.transfer))
            found.units.append(units(part.transfer, self._ranks.operations.costs))
            found.waited.append(part)
        return found

    def _chain(self, rank: Rank, columns: _Columns, first: int) -> None:
        """Each operation comes after the one before, and a collective when all have met, too."""
        operations = self._ranks.operations
        numbers = range(first, first + len(columns))
        if self._meetings is None or len(columns.spent) == len(columns):
            operations.depend(rank.last, first)
            operations.depend_each(numbers[:-1], numbers[1:])
            rank.last = numbers[-1]
            return
        for number, waited in zip(numbers, columns.waited, strict=True):
            if waited is None:
                operations.depend(rank.last, number)
            else:
                self._meetings.join(
                    (rank.pp_rank, rank.met),
                    waited.axes,
                    rank.member,
                    after=rank.last,
                    transfer=number,
                )
                rank.met += 1
            rank.last = number


def _note(rank: Rank, columns: _Columns, first: int, operations: Operations) -> None:
    """Note in a rank's record what the operations from ``first`` on are, and what may queue."""
    record = rank.record
    record.spent += columns.spent
    if len(columns.spent) == len(columns):
        record.computed += range(first, first + len(columns))
        return
    for number, waited in enumerate(columns.waited, first):
        if waited is None:
            record.computed.append(number)
        else:
            record.waited.append((number, waited.use, len(record.computed)))
            operations.may_queue(number, waited.transfer)
