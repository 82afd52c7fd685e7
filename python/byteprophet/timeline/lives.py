"""Joins the lives of a job: after a suspension or a restart, every role begins new files.

A suspension stops all roles. So files that overlap in time belong to one *epoch* of the job, and
epochs do not overlap. Values that restart with an epoch continue those of the previous one:

    round, request    always, because servers are new and workers connect again
    iteration         if it restarts, as in a new process; 0 stays 0
    key               if tensors got other numbers; the tensor's name determines its earlier number
    times             if the role moved to another machine; converted to its first clock

All tables of an epoch are shifted by the same amounts, so they still match each other. Files are
joined if they have the same table, the same kind of role and the same rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from byteprophet.errors import UserError
from byteprophet.timeline.events import Events
from byteprophet.timeline.tables import TRANSFERS, Rows, tensor_of

_COUNTED = {"iteration": 1, "round": 1, "request": 0}
"""Columns that are continued, and their first number. Smaller numbers mean: not counted."""

_LARGEST = 2**32 - 1

_Role = tuple[str, str, int]


def join_lives(files: Sequence[Events]) -> list[Events]:
    """Joins the files of each role and table; the result is in the order of their first files."""
    roles = dict.fromkeys(map(_role, files))
    if len(roles) == len(files):
        return list(files)
    lives: dict[_Role, list[Events]] = {role: [] for role in roles}
    before = _Before()
    for epoch in _epochs(files):
        _check_apart(epoch)
        for events in before.carry_on(epoch):
            lives[_role(events)].append(events)
    return [_joined(of_role) for of_role in lives.values()]


def _role(events: Events) -> _Role:
    return events.table.name, events.origin.role.partition("-")[0], events.origin.rank


def _epochs(files: Sequence[Events]) -> list[list[Events]]:
    """The files by epoch, in order of time.

    Wall clocks tell the time. They differ by less than a suspension takes.
    """
    epochs: list[list[Events]] = []
    until_ns = 0
    for begin_ns, end_ns, index in sorted((*_moments(e), i) for i, e in enumerate(files)):
        if begin_ns > until_ns:
            epochs.append([])
        epochs[-1].append(files[index])
        until_ns = max(until_ns, end_ns)
    return epochs


def _check_apart(epoch: Sequence[Events]) -> None:
    """Raises ``UserError`` if a role has two files of one table in one epoch."""
    seen: set[_Role] = set()
    for events in epoch:
        if _role(events) in seen:
            raise UserError(
                f"{events.origin.role}: several files of {events.table.name} overlap in "
                "time, so their order is not known (a role was restarted alone, or "
                "machines' wall clocks differ)"
            )
        seen.add(_role(events))


def _moments(events: Events) -> tuple[int, int]:
    """First and last time in a file, in Unix time; for a file without rows, when it was begun."""
    columns = [events.rows[name] for name in events.table.times]
    known = [column[column != 0] for column in columns]
    now_ns = events.origin.monotonic_ns
    begin_ns = min((int(times.min()) for times in known if len(times)), default=now_ns)
    end_ns = max((int(times.max()) for times in known if len(times)), default=now_ns)
    ahead_ns = _ahead_ns(events)
    return begin_ns + ahead_ns, end_ns + ahead_ns


def _ahead_ns(events: Events) -> int:
    """How far the wall clock is ahead of the clock that stamped the events."""
    return events.origin.unix_ns - events.origin.monotonic_ns


class _Before:
    """The highest counts of the epochs so far, and their numbers of tensors."""

    def __init__(self) -> None:
        self._used = dict.fromkeys(_COUNTED, 0)
        self._numbers: dict[str, int] = {}
        self._next_number = 0

    def carry_on(self, epoch: Sequence[Events]) -> list[Events]:
        """Returns the same files, with their numbers continued from the earlier epochs."""
        shifts = {column: self._shift(column, epoch) for column in _COUNTED}
        tensors = self._tensors(epoch)
        carried = []
        for events in epoch:
            rows = events.rows.copy()
            for column, shift in shifts.items():
                if column in events.table.columns:
                    rows[column][rows[column] >= _COUNTED[column]] += np.uint32(shift)
            names = events.names
            if tensors and "key" in events.table.columns:
                numbers = _renumbered(tensor_of(rows), tensors)
                rows["key"] = numbers << np.uint64(16) | rows["key"] & np.uint64(0xFFFF)
                names = {tensors.get(number, number): name for number, name in names.items()}
            carried.append(replace(events, rows=rows, names=names))
        return carried

    def _shift(self, column: str, epoch: Sequence[Events]) -> int:
        found = [e.rows[column].astype(np.int64) for e in epoch if column in e.table.columns]
        values = np.concatenate([np.zeros(0, np.int64), *found])
        values = values[values >= _COUNTED[column]]
        if not len(values):
            return 0
        used = self._used[column]
        goes_on = column == "iteration" and int(values.min()) >= used
        shift = 0 if goes_on else used
        if shift + int(values.max()) > _LARGEST:
            raise UserError(
                f"events: {column} {values.max()}: too large after those of earlier lives"
            )
        self._used[column] = max(used, shift + int(values.max()) - _COUNTED[column] + 1)
        return shift

    def _tensors(self, epoch: Sequence[Events]) -> dict[int, int]:
        """New numbers of tensors, by old number: the earlier one of their name, or a free one."""
        numbers = [int(tensor_of(e.rows).max(initial=0)) for e in epoch if "key" in e.table.columns]
        self._next_number = max(self._next_number, *numbers, 0) + 1
        changed: dict[int, int] = {}
        taken = set(self._numbers.values())
        for events in epoch:
            for number, name in events.names.items() if events.table is TRANSFERS else ():
                if name not in self._numbers:
                    self._numbers[name] = self._next_number if number in taken else number
                    self._next_number += number in taken
                if self._numbers[name] != number:
                    changed[number] = self._numbers[name]
        return changed


def _joined(lives: Sequence[Events]) -> Events:
    """One table of all rows, on the clock of the first life."""
    first = lives[0]
    texts: dict[str, int] = {}
    names: dict[int, str] = {}
    parts: list[Rows] = []
    for life in lives:
        rows = life.rows.copy()
        if not first.origin.machine or life.origin.machine != first.origin.machine:
            for column in life.table.times:
                rows[column][rows[column] != 0] += _ahead_ns(life) - _ahead_ns(first)
        if "name" in (rows.dtype.names or ()):
            indices = {i: texts.setdefault(name, len(texts)) for i, name in life.names.items()}
            rows["name"] = _renumbered(rows["name"], indices)
        else:
            names |= life.names
        parts.append(rows)
    return replace(
        first,
        rows=np.concatenate(parts),
        names=names or {index: text for text, index in texts.items()},
        lost=sum(life.lost for life in lives),
        whole=all(life.whole for life in lives),
    )


def _renumbered(
    values: npt.NDArray[np.unsignedinteger], changed: Mapping[int, int]
) -> npt.NDArray[np.uint64]:
    """``values``, replaced as ``changed`` says; values that are not in it stay the same."""
    distinct, places = np.unique(values, return_inverse=True)
    wanted = [changed.get(value, value) for value in distinct.tolist()]
    renumbered: npt.NDArray[np.uint64] = np.array(wanted, np.uint64)[places]
    return renumbered
