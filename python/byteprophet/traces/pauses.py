"""What threads waited for in the pauses between the times in which they were busy.

autograd's thread waits for the training thread, the training thread for autograd's, both for the
threads of gloo, and queues make threads wait for each other. A pause is such a wait if

- another thread stopped in it and is idle until its end, or
- another thread did one thing, and began the next, just before the end of most pauses of its kind,
  which would hardly happen by chance (a queue was filled, and the thread went on), or
- a device ran out of work just before its end (profiles may lack the call that waited).

The rest of a pause, and any other pause, is Python. A collective of gloo begins when it was called.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from byteprophet.timeline.kineto_calls import Track
from byteprophet.traces.profile import Profile
from byteprophet.traces.threads import Busy, ThreadTimes

SHORTEST_NS = 50_000
"""In shorter pauses, another thread may well stop by chance."""

WAKING_NS = 300_000
"""What a thread may need to go on after a wait."""

_LATE_NS = 200_000
_LATE_SHARE = 20
"""How late a thread of gloo may note the end of a collective that began in a pause, after others
went on. Of any collective, it is also the pause's length over ``_LATE_SHARE``."""

_FEWEST, _MOST_PAUSES, _MOST_CHANCE = 3, 0.7, 0.2
"""For pauses of a kind: how many must agree, which part, and how likely it may be by chance."""


_Kind = tuple[Track, str, str]
"""A kind of pauses: of a thread, between calls of these names."""


class Pause(NamedTuple):
    """A time between two calls. ``before`` and ``after``: their names."""

    track: Track
    begin_ns: int
    end_ns: int
    before: str
    after: str


class ThreadWait(NamedTuple):
    """A wait for another thread.

    The thread does nothing from ``begin_ns`` to ``end_ns``, and does not go on at ``end_ns`` before
    ``track`` has come to ``until_ns``.
    """

    begin_ns: int
    end_ns: int
    track: Track
    until_ns: int


def thread_waits(
    profile: Profile, threads: Mapping[Track, ThreadTimes]
) -> tuple[dict[Track, list[ThreadWait]], list[Pause]]:
    """The waits of each thread for other threads, and the pauses that they do not explain."""
    first_ns = min(step.begin_ns for step in profile.steps)
    for times in threads.values():
        first_ns = min([first_ns, *(one.begin_ns for one in times.busy[:1])])
    main = {step.track for step in profile.steps}
    calls = _CommunicationCalls(profile, threads)
    others = _Others(threads)
    waits: dict[Track, list[ThreadWait]] = {track: [] for track in threads}
    unexplained = []
    for track, times in threads.items():
        ended_ns, before = first_ns, ""
        for place, one in enumerate(times.busy):
            pause = Pause(track, ended_ns, one.begin_ns, before, one.name)
            ended_ns, before = one.end_ns, one.name
            if one.message is not None:
                found = calls.before(one, pause) or others.stopped(pause)
            elif one.begin_ns - pause.begin_ns < SHORTEST_NS or (not place and track in main):
                continue
            else:
                found = others.stopped(pause)
                if found is None:
                    unexplained.append(pause)
            if found is not None:
                waits[track].append(found)
    left = []
    recurring = others.recurring(unexplained)
    for pause in unexplained:
        wait = recurring.get(pause)
        if wait is None:
            left.append(pause)
        else:
            waits[pause.track].append(wait)
    return waits, left


def _waking_ns(pause: Pause) -> int:
    """What a thread may need to go on after a wait of this length: it needs a processor."""
    return max(WAKING_NS, (pause.end_ns - pause.begin_ns) // 50)


class _Others:
    """Finds what other threads did in a thread's pause."""

    def __init__(self, threads: Mapping[Track, ThreadTimes]) -> None:
        self._busy = {track: times.busy for track, times in threads.items() if times.busy}
        self._ends = {track: [one.end_ns for one in of] for track, of in self._busy.items()}
        ends = [of[-1] for of in self._ends.values()]
        begins = [of[0].begin_ns for of in self._busy.values()]
        self._length_ns = max(ends, default=0) - min(begins, default=0)

    def stopped(self, pause: Pause) -> ThreadWait | None:
        """The wait for a thread that stopped in the pause; None if there is none."""
        best: tuple[int, Track] | None = None
        for other in self._ends:
            stopped_ns = None if other == pause.track else self._stop(other, pause)
            if stopped_ns is not None and (best is None or stopped_ns > best[0]):
                best = stopped_ns, other
        if best is None:
            return None
        stopped_ns, other = best
        is_long = 2 * (stopped_ns - pause.begin_ns) >= pause.end_ns - pause.begin_ns
        if not is_long and pause.end_ns - stopped_ns > WAKING_NS:
            return None
        return ThreadWait(pause.begin_ns, stopped_ns, other, stopped_ns)

    def recurring(self, pauses: Sequence[Pause]) -> dict[Pause, ThreadWait]:
        """The waits for threads that went on, if most pauses of a kind agree on them."""
        kinds = Counter((pause.track, pause.before, pause.after) for pause in pauses)
        agree: dict[tuple[_Kind, Track, tuple[str, str]], list[tuple[Pause, int]]] = {}
        for pause in pauses:
            for other, ends in self._ends.items():
                at = bisect_right(ends, pause.end_ns) - 1
                if other == pause.track or not 0 <= at < len(ends) - 1:
                    continue
                ended_ns = ends[at]
                if ended_ns <= pause.begin_ns or pause.end_ns - ended_ns > _waking_ns(pause):
                    continue
                pair = self._busy[other][at].name, self._busy[other][at + 1].name
                kind = pause.track, pause.before, pause.after
                agree.setdefault((kind, other, pair), []).append((pause, ended_ns))
        found: dict[Pause, ThreadWait] = {}
        for (kind, other, pair), together in agree.items():
            if len(together) < max(_FEWEST, _MOST_PAUSES * kinds[kind]):
                continue
            window_ns = max(_waking_ns(pause) for pause, _ in together)
            if self._chance(other, pair, window_ns) > _MOST_CHANCE:
                continue
            for pause, ended_ns in together:
                wait = ThreadWait(pause.begin_ns, ended_ns, other, ended_ns)
                if pause not in found or found[pause].end_ns < ended_ns:
                    found[pause] = wait
        return found

    def _chance(self, track: Track, pair: tuple[str, str], window_ns: int) -> float:
        """How likely a time is so shortly behind the end of the first of ``pair``, by chance."""
        busy = self._busy[track]
        count = sum((one.name, other.name) == pair for one, other in pairwise(busy))
        return count * window_ns / max(1, self._length_ns)

    def _stop(self, other: Track, pause: Pause) -> int | None:
        """When ``other`` stopped within the pause, and was idle at its end; None: it did not."""
        ends, busy = self._ends[other], self._busy[other]
        running = bisect_right(ends, pause.end_ns)  # the first that ends behind the pause
        if running < len(busy) and busy[running].begin_ns < pause.end_ns:
            one = busy[running]
            late_ns = (pause.end_ns - pause.begin_ns) // _LATE_SHARE
            if one.begin_ns > pause.begin_ns:
                late_ns = max(late_ns, _LATE_NS)
            is_late = one.message is not None and one.end_ns - pause.end_ns <= late_ns
            return pause.end_ns if is_late else None
        stopped_ns = ends[running - 1] if running else None
        if stopped_ns is None or stopped_ns <= pause.begin_ns:
            return None
        goes_on = running < len(busy) and busy[running].begin_ns - pause.end_ns < WAKING_NS
        # A thread that is about to go on was not waiting for this one to do something.
        return None if goes_on and pause.end_ns - stopped_ns > WAKING_NS else stopped_ns


class _CommunicationCalls:
    """The calls of collectives that other threads carry out, in order."""

    def __init__(self, profile: Profile, threads: Mapping[Track, ThreadTimes]) -> None:
        calls: list[tuple[int, int, Track]] = []
        for track, spans in profile.spans.items():
            named = [span for span in spans if span.name.startswith("c10d::")]
            named = named or [span for span in spans if span.name == "record_param_comms"]
            calls += [(span.begin_ns, span.end_ns, track) for span in named]
        calls.sort()
        begun = sorted(
            (one.begin_ns, track)
            for track, times in threads.items()
            for one in times.busy
            if one.message is not None
        )
        self._calls: dict[tuple[int, Track], tuple[int, Track]] = {}
        at = 0
        for begin_ns, track in begun:
            if at < len(calls) and calls[at][0] <= begin_ns and calls[at][2] != track:
                self._calls[begin_ns, track] = calls[at][1:]
                at += 1

    def before(self, one: Busy, pause: Pause) -> ThreadWait | None:
        """The wait of a thread of gloo for the call of the collective ``one``."""
        found = self._calls.get((one.begin_ns, pause.track))
        if found is None:
            return None
        end_ns, caller = found
        called_ns = min(end_ns, one.begin_ns)
        if called_ns >= pause.begin_ns:
            return ThreadWait(pause.begin_ns, called_ns, caller, called_ns)
        return ThreadWait(one.begin_ns, one.begin_ns, caller, called_ns)
