"""Waits of the host for a place in a stream's queue of launches.

CUDA lets a limited number of launches to a stream be outstanding, about 1,024, the number that
HolisticTraceAnalysis assumes. If there are as many, the call that launches returns when
the device has done another one. A job that never waits for its device otherwise has the device's
pace only by this. A call is such a wait if it takes far longer than others of its name, while the
stream has nearly as many launches outstanding as it ever had, and if it returns just after the
stream has done something. Records of events take places in queues, too, so the number of kernels
and copies that fit differs between traces and within them.

In a replay, every other launch waits until the launch is done that was made k before it, where k is
the largest number that was outstanding. In the trace, it did not have to wait.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple, TypeAlias

from byteprophet.timeline.kineto_calls import Track
from byteprophet.traces.profile import DeviceWork, Launch, Profile
from byteprophet.traces.streams import Streams
from byteprophet.traces.synchronise import DeviceWait
from byteprophet.traces.work import Use

_QUEUES = re.compile(
    r"(cuda|hip|cu)(\w*Launch\w*|Mem(cpy|set)\w*Async\w*|EventRecord\w*|StreamWaitEvent\w*)"
)
"""Calls that take a place in a queue, whether or not a kernel has their correlation id."""

_CUDA_PLACES = 1024
_SMALLEST = 128
"""A queue that never had so many launches outstanding was not full."""

_NEARLY_FULL = 0.8
_LONG = 2
"""A call that waits takes more than so many times what others of its name take."""

_USUAL_NS = 5_000
"""What a call takes if none is known that did not wait."""

_WAKING_NS = 20_000
"""What a call may need to return after there is a place."""

_FEWEST = 8
"""Fewer calls may be long by chance."""

_EARLIER = "launched before the trace"


class _Called(NamedTuple):
    """A call, the number of launches outstanding when it returned, and when one was done last.

    ``at`` is the index of the call's launch, or of the last one before it if the call is none.
    """

    call: Launch
    at: int
    is_launch: bool
    outstanding: int
    freed_ns: int


@dataclass(frozen=True)
class LaunchQueue:
    """The launches to one stream, in order.

    Attributes:
        last: the last work of each launch, by its index in ``Streams.kernels``.
        ends: when it was done.
        called: the calls that launched it, and those of events between them.
        begin_ns: when the first work began whose launch was recorded.
    """

    last: list[int]
    ends: list[int]
    called: list[_Called]
    begin_ns: int

    @property
    def most(self) -> int:
        """The largest number of launches that were outstanding when a call returned."""
        return max((one.outstanding for one in self.called), default=0)

    def waiting(self) -> list[_Called]:
        """The calls that waited for a place."""
        usual = self._usual()
        found = []
        for one in self.called:
            call, usual_ns = one.call, usual.get(one.call.name, _USUAL_NS)
            if (
                one.outstanding >= max(_SMALLEST, _NEARLY_FULL * self.most)
                and call.end_ns - call.begin_ns > _LONG * usual_ns
                and call.begin_ns < one.freed_ns
                and call.end_ns - one.freed_ns <= max(_WAKING_NS, _LONG * usual_ns)
            ):
                found.append(one)
        return found if len(found) >= _FEWEST else []

    def earlier_ends(self) -> list[int]:
        """When work was done that was launched before the trace, if the queue was full of it.

        For each launch that returned before any of the trace's work began, one of the earlier ones
        was done: when the call returned if it waited, else before the call. Empty: the queue was
        not full.
        """
        full = next((one for one in self.called if one.call.end_ns >= self.begin_ns), None)
        if full is None or full.outstanding < max(_SMALLEST, _NEARLY_FULL * self.most):
            return []
        usual = self._usual()
        ends: list[int] = []
        waiting = 0
        for one in self.called:
            call = one.call
            if not one.is_launch or call.end_ns >= self.begin_ns:
                continue
            usual_ns = usual.get(call.name, _USUAL_NS)
            is_long = call.end_ns - call.begin_ns > _LONG * usual_ns
            waiting += is_long
            ends.append(call.end_ns - usual_ns if is_long else call.begin_ns)
        return ends if waiting >= _FEWEST else []

    def _usual(self) -> dict[str, int]:
        """The median time of calls of each name, while at most half of the queue was taken."""
        times: dict[str, list[int]] = {}
        for one in self.called:
            if one.call.begin_ns >= self.begin_ns and 2 * one.outstanding <= self.most:
                times.setdefault(one.call.name, []).append(one.call.end_ns - one.call.begin_ns)
        return {name: sorted(of)[len(of) // 2] for name, of in times.items()}


Queues: TypeAlias = Sequence[tuple[Track, LaunchQueue]]
"""Streams and their queues."""


def earlier_work(queues: Queues, streams: Streams) -> list[DeviceWork]:
    """Work that was launched before the trace, and was not recorded.

    It is known by the calls that waited for it. A stream may have begun what was launched in the
    trace late for no other reason.
    """
    found: list[DeviceWork] = []
    for stream, queue in queues:
        if streams.kernels[queue.last[0]].launch is None:
            continue  # it was recorded
        ends = queue.earlier_ends()
        begin_ns = queue.called[0].call.begin_ns
        for end_ns in [*ends, queue.begin_ns] if ends else []:
            found.append(DeviceWork(begin_ns, end_ns, _EARLIER, stream, 0, Use.KERNEL, None))
            begin_ns = end_ns
    return found


def queue_waits(queues: Queues, streams: Streams) -> dict[Track, list[DeviceWait]]:
    """The waits of each thread for places in queues."""
    found: dict[Track, list[DeviceWait]] = {}

    def add(call: Launch, begin_ns: int, end_ns: int, place: int) -> None:
        found.setdefault(call.track, []).append(DeviceWait(begin_ns, end_ns, (place,)))

    for _, queue in queues:
        waiting = queue.waiting()
        for one in waiting:
            freed = bisect_right(queue.ends, one.freed_ns) - 1
            add(one.call, one.call.begin_ns, one.call.end_ns, queue.last[freed])
        places = queue.most
        if not waiting:
            is_cuda = all(one.call.name.startswith("cu") for one in queue.called)
            if not is_cuda or places > _CUDA_PLACES:
                continue  # how many there are is not known
            places = _CUDA_PLACES
        waited = {one.call.correlation for one in waiting}
        for one in queue.called:
            if one.at < places or one.call.correlation in waited:
                continue
            # In the trace, this was done when the call returned.
            call, place = one.call, queue.last[one.at - places]
            done_ns = streams.kernels[place].work.end_ns
            at_ns = call.begin_ns if done_ns <= call.begin_ns else call.end_ns
            add(call, at_ns, at_ns, place)
    return found


def launch_queues(profile: Profile, streams: Streams) -> Queues:
    """The queue of each stream to which something was launched."""
    queues: list[tuple[Track, LaunchQueue]] = []
    last: dict[Track, list[int]] = {}
    launched: dict[int, tuple[Track, int]] = {}
    by_thread: dict[Track, list[tuple[int, int]]] = {}  # when, and the correlation id
    for stream in streams.names:
        of_stream = last.setdefault(stream, [])
        previous: Launch | None = None
        for place in streams.work_on(stream):
            launch = streams.kernels[place].launch
            if launch is not None and launch is previous:
                of_stream[-1] = place
                continue
            previous = launch
            of_stream.append(place)
            if launch is not None:
                launched.setdefault(launch.correlation, (stream, len(of_stream) - 1))
                when = launch.begin_ns, launch.correlation
                by_thread.setdefault(launch.track, []).append(when)
    for of_thread in by_thread.values():
        of_thread.sort()
    ends = {
        stream: list(accumulate((streams.kernels[place].work.end_ns for place in of), max))
        for stream, of in last.items()
    }
    called: dict[Track, list[_Called]] = {}
    for call in sorted(profile.launches, key=lambda one: one.begin_ns):
        found = launched.get(call.correlation)
        is_launch = found is not None
        if found is None and _QUEUES.fullmatch(call.name):
            of_thread = by_thread.get(call.track, [])
            before = bisect_left(of_thread, (call.begin_ns, 0)) - 1
            found = launched[of_thread[before][1]] if before >= 0 else None
        if found is not None:
            stream, at = found
            done = bisect_right(ends[stream], call.end_ns)
            freed_ns = ends[stream][done - 1] if done else call.begin_ns
            one = _Called(call, at, is_launch, at + 1 - done, freed_ns)
            called.setdefault(stream, []).append(one)
    for stream, of in called.items():
        kernels = (streams.kernels[place] for place in streams.work_on(stream))
        begin_ns = next(one.work.begin_ns for one in kernels if one.launch is not None)
        queues.append((stream, LaunchQueue(last[stream], ends[stream], of, begin_ns)))
    return queues
