"""When threads are busy, and what they waited for while they were not.

A thread is busy while an operator, a call of the runtime or a wait for a DataLoader is open.
Between these, it runs Python, or it waits for another thread: the training thread for autograd's,
autograd's for the training thread, both for the threads of gloo. A pause is such a wait if another
thread stopped in it, and stays idle until the pause is over. The rest of the pause is Python. A
collective of gloo begins when a thread has called it.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from byteprophet.timeline.kineto_calls import Track
from byteprophet.timeline.kineto_events import Category
from byteprophet.traces.messages import Message
from byteprophet.traces.profile import Profile, Span

_WAITS = re.compile(r"(^|[:._ ])wait(_tensor)?$")
"""Operators that do nothing but wait for other threads."""

_SHORTEST_PAUSE_NS = 50_000
"""In shorter pauses, another thread may well stop by chance."""

_WAKING_NS = 300_000
"""What a thread may need to go on after a short wait."""

_LATE_NS = 200_000
"""How late a thread of gloo may note the end of a collective, after others went on."""


class Busy(NamedTuple):
    """A time in which a thread is busy, named after the outermost call."""

    begin_ns: int
    end_ns: int
    name: str
    is_loading: bool
    message: Message | None


class ThreadWait(NamedTuple):
    """A wait for another thread.

    The thread does nothing from ``begin_ns`` to ``end_ns``, and does not go on at ``end_ns`` before
    ``track`` has come to ``until_ns``.
    """

    begin_ns: int
    end_ns: int
    track: Track
    until_ns: int


def busy_times(profile: Profile) -> dict[Track, list[Busy]]:
    """The times in which each thread is busy, disjoint and in order."""
    found: dict[Track, list[Busy]] = {}
    spans: dict[Track, list[Span]] = {track: list(of) for track, of in profile.spans.items()}
    for launch in profile.launches:
        call = Span(launch.begin_ns, launch.end_ns, launch.name, Category.LAUNCH)
        spans.setdefault(launch.track, []).append(call)
    for step in profile.steps:
        spans.setdefault(step.track, [])
    for track, of_thread in spans.items():
        times: list[Busy] = []
        for span in sorted(of_thread, key=lambda one: (one.begin_ns, -one.end_ns)):
            if not _is_busy(span) or (times and span.end_ns <= times[-1].end_ns):
                continue
            begin_ns = span.begin_ns
            if times and begin_ns < times[-1].end_ns:  # the two overlap
                begin_ns = times[-1].end_ns
            times.append(Busy(begin_ns, span.end_ns, span.name, span.is_loading, span.message))
        found[track] = times
    return found


def thread_waits(profile: Profile, busy: Mapping[Track, Sequence[Busy]]) -> dict[Track, list]:
    """The waits of each thread for other threads, in order."""
    found = {}
    calls = _communication_calls(profile)
    first_ns = min((times[0].begin_ns for times in busy.values() if times), default=0)
    first_ns = min(first_ns, *(step.begin_ns for step in profile.steps))
    main = {step.track for step in profile.steps}
    others = _Others(busy)
    for track, times in busy.items():
        waits = []
        ended_ns = first_ns
        for place, one in enumerate(times):
            wait = None
            if one.message is not None:
                wait = calls.before(one, track, ended_ns)
            elif one.begin_ns - ended_ns >= _SHORTEST_PAUSE_NS and (place or track not in main):
                wait = others.stopped(track, ended_ns, one.begin_ns)
            if wait is not None:
                waits.append(wait)
            ended_ns = one.end_ns
        found[track] = waits
    return found


def _is_busy(span: Span) -> bool:
    if span.category is Category.ANNOTATION:
        return span.is_loading or span.message is not None
    return not _WAITS.search(span.name)


class _Others:
    """Finds threads that stopped during another thread's pause."""

    def __init__(self, busy: Mapping[Track, Sequence[Busy]]) -> None:
        self._busy = {track: times for track, times in busy.items() if times}
        self._ends = {track: [one.end_ns for one in of] for track, of in self._busy.items()}
        self._begins = {track: [one.begin_ns for one in of] for track, of in self._busy.items()}

    def stopped(self, track: Track, begin_ns: int, end_ns: int) -> ThreadWait | None:
        """The wait of ``track`` in a pause; None if no other thread explains it."""
        best: tuple[int, Track] | None = None
        for other, ends in self._ends.items():
            if other == track:
                continue
            stopped_ns = self._stop(other, ends, begin_ns, end_ns)
            if stopped_ns is not None and (best is None or stopped_ns > best[0]):
                best = stopped_ns, other
        if best is None:
            return None
        stopped_ns, other = best
        is_long = 2 * (stopped_ns - begin_ns) >= end_ns - begin_ns
        if not is_long and end_ns - stopped_ns > _WAKING_NS:
            return None
        return ThreadWait(begin_ns, stopped_ns, other, stopped_ns)

    def _stop(
        self, other: Track, ends: Sequence[int], begin_ns: int, end_ns: int
    ) -> int | None:
        """When ``other`` stopped within the pause, and was idle at its end; None: it did not."""
        running = bisect_right(ends, end_ns)  # the first that ends behind the pause
        times = self._busy[other]
        if running < len(times) and times[running].begin_ns < end_ns:
            one = times[running]
            late = one.message is not None and one.end_ns - end_ns <= _LATE_NS
            return end_ns if late and one.begin_ns > begin_ns else None
        stopped_ns = ends[running - 1] if running else None
        return stopped_ns if stopped_ns is not None and stopped_ns > begin_ns else None


class _CommunicationCalls:
    """Calls of collectives, which other threads carry out, in order of time."""

    def __init__(self, calls: Sequence[tuple[int, int, Track]]) -> None:
        self._calls = list(calls)
        self._begins = [begin_ns for begin_ns, _, _ in self._calls]
        self._taken: set[int] = set()

    def before(self, one: Busy, track: Track, ended_ns: int) -> ThreadWait | None:
        """The wait of a thread of gloo for the call of the collective ``one``.

        It is the first call that is not taken yet: they are carried out in order.
        """
        until = bisect_left(self._begins, one.begin_ns)
        for place in range(until):
            if place in self._taken or self._calls[place][2] == track:
                continue
            self._taken.add(place)
            _, end_ns, caller = self._calls[place]
            called_ns = min(end_ns, one.begin_ns)
            if called_ns >= ended_ns:
                return ThreadWait(ended_ns, called_ns, caller, called_ns)
            return ThreadWait(one.begin_ns, one.begin_ns, caller, called_ns)
        return None


def _communication_calls(profile: Profile) -> _CommunicationCalls:
    calls: list[tuple[int, int, Track]] = []
    for track, spans in profile.spans.items():
        names = [span for span in spans if span.name.startswith("c10d::")]
        names = names or [span for span in spans if span.name == "record_param_comms"]
        calls += [(span.begin_ns, span.end_ns, track) for span in names]
    return _CommunicationCalls(sorted(calls))
