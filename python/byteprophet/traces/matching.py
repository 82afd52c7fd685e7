"""Finds the same collective, or the two ends of a message, in the traces of several ranks.

Ranks call the collectives of a process group in one order. Profiles begin anywhere, so they are
counted anew in each step, and by their size, because threads of gloo may begin two at once in
another order. If the ranks of a group recorded different numbers of them in a step, these are not
matched, and keep their recorded times.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from byteprophet.traces.work import RankTrace, Task

Key = tuple[object, ...]

_MAY_DIFFER = ("", "all-to-all", "gather", "scatter")
"""Kinds whose sizes may differ between ranks."""


class Meeting(NamedTuple):
    """One collective or message: its tasks, as pairs of a trace's index and a task's."""

    tasks: tuple[tuple[int, int], ...]


def meetings(traces: Sequence[RankTrace]) -> list[Meeting]:
    """What several ranks did together."""
    if len(traces) < 2:
        return []
    found: dict[Key, dict[int, list[int]]] = {}
    for index, trace in enumerate(traces):
        for number, task in enumerate(trace.tasks):
            key = _key(task)
            if key is not None:
                found.setdefault(key, {}).setdefault(index, []).append(number)
    result: list[Meeting] = []
    for by_trace in found.values():
        counts = {len(numbers) for numbers in by_trace.values()}
        if len(by_trace) < 2 or len(counts) > 1:
            continue
        result += (
            Meeting(tuple(zip(by_trace, together, strict=True)))
            for together in zip(*by_trace.values(), strict=True)
        )
    return result


def _key(task: Task) -> Key | None:
    message = task.message
    if message is None or task.step < 0:
        return None
    if message.kind in ("send", "receive"):
        if message.peers is None:
            return None
        return task.step, message.group, message.members, message.peers
    size_bytes = 0 if message.kind in _MAY_DIFFER else message.size_bytes
    return task.step, message.group, message.members, message.kind, size_bytes
