"""Finds the same collective, or the two ends of a message, in the traces of several ranks.

Ranks call the collectives of a process group in one order. Profiles begin anywhere, so they are
counted anew in each step, and by their size, because threads of gloo may begin two at once in
another order. Those that were launched before the traces began are counted from the last one, and
some ranks may have recorded more of them than others. If the ranks of a group recorded different
numbers of others in a step, these are not matched, and keep their recorded times, in which they
wait for other ranks. So do messages whose two ends are not named, as gloo's are not, and what more
ranks recorded than their group has.

Traces may name no process group, as gloo's do not. Then all ranks are taken as one group, unless
they say that it has fewer. ``Matching.ungrouped`` tells how often that matters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from byteprophet.traces.messages import Message
from byteprophet.traces.work import RankTrace, Task

Key = tuple[object, ...]

_MAY_DIFFER = ("", "all-to-all", "gather", "scatter")
"""Kinds whose sizes may differ between ranks."""

_EARLIER = "earlier"


class Meeting(NamedTuple):
    """One collective or message: its tasks, as pairs of a trace's index and a task's."""

    tasks: tuple[tuple[int, int], ...]


class Matching(NamedTuple):
    """What several ranks did together, and their tasks for which others have no counterpart."""

    meetings: list[Meeting]
    unmatched: list[Task]
    ungrouped: int
    """Meetings of more than two ranks whose traces name no process group, nor its size. If the
    ranks formed several groups, they are wrong."""

    @property
    def unmatched_ns(self) -> int:
        """The recorded time of what is not matched."""
        return sum(task.duration_ns for task in self.unmatched)


def match(traces: Sequence[RankTrace]) -> Matching:
    """Finds what several ranks did together.

    A collective of a group of which a single rank was recorded counts as neither.
    """
    found: dict[Key, dict[int, list[int]]] = {}
    for index, trace in enumerate(traces):
        for number, task in enumerate(trace.tasks):
            key = _key(task)
            if key is not None:
                found.setdefault(key, {}).setdefault(index, []).append(number)
    recorded = Counter(one for trace in traces for one in _groups(trace))
    result: list[Meeting] = []
    unmatched: list[Task] = []
    ungrouped = 0
    if len(traces) > 1:
        unmatched += (task for one in traces for task in one.tasks if _lacks_ends(task.message))
    for key, by_trace in found.items():
        if key[0] == _EARLIER:
            fewest = min(map(len, by_trace.values()))
            by_trace = {index: numbers[-fewest:] for index, numbers in by_trace.items()}
            if len(by_trace) < 2:
                continue
        counts = {len(numbers) for numbers in by_trace.values()}
        tasks = [traces[index].tasks[at] for index, its in by_trace.items() for at in its]
        stated = {task.message.ranks for task in tasks if task.message} - {0}
        too_many = len(by_trace) > min(stated, default=len(by_trace))
        if len(by_trace) < 2 or len(counts) > 1 or too_many:
            if len(by_trace) > 1 or recorded[_group(tasks[0].message)] > 1:
                unmatched += tasks
            continue
        if len(by_trace) > 2 and not stated and _group(tasks[0].message) == ("", ""):
            ungrouped += min(counts)
        result += (
            Meeting(tuple(zip(by_trace, together, strict=True)))
            for together in zip(*by_trace.values(), strict=True)
        )
    return Matching(result, unmatched, ungrouped)


def _groups(trace: RankTrace) -> set[tuple[str, str] | None]:
    return {_group(task.message) for task in trace.tasks} - {None}


def _group(message: Message | None) -> tuple[str, str] | None:
    """The group of a collective; None: of a message between two, whose peer may not be recorded."""
    if message is None or message.is_between_two:
        return None
    return message.group, message.members


def _lacks_ends(message: Message | None) -> bool:
    """Whether it is a message between two ranks, and which ones is not known."""
    return message is not None and message.is_between_two and message.peers is None


def _key(task: Task) -> Key | None:
    message = task.message
    if message is None or (task.step < 0 and not task.is_earlier):
        return None
    counted = _EARLIER if task.is_earlier else task.step
    if message.is_between_two:
        if message.peers is None:
            return None
        return counted, message.group, message.members, message.peers
    size_bytes = 0 if message.kind in _MAY_DIFFER else message.size_bytes
    return counted, message.group, message.members, message.kind, size_bytes
