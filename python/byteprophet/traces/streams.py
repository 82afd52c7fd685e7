"""The work on a device's streams, and what it waited for.

A stream does its work in order. A kernel needs the previous one, its launch, and the work of other
streams for which its stream was told to wait. If the trace has records of these waits (category
``cuda_sync``), they are used. Otherwise, a kernel that began late waited for the work of another
stream that ended just then; and a collective waits for what had been launched before it on the
streams that compute, as process groups have it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from byteprophet.errors import UserError
from byteprophet.timeline.kineto_calls import Track
from byteprophet.traces.profile import DeviceWork, Launch, Profile
from byteprophet.traces.work import Use

_GAP_NS = 10_000
"""The longest time between two kernels of a stream that needs no reason."""

_NEAR_NS = 20_000
"""The longest time from the end of a kernel to the begin of one of another stream, if one waits."""


_LONGEST_LATENCY_NS = 20_000
"""A device starts sooner than this after a launch if it has nothing to wait for."""


@dataclass(slots=True)
class Kernel:
    """Work on a device. ``previous`` and ``waits`` are indices of other work.

    Attributes:
        work: what was recorded.
        launch: the call that launched it; None: it was not recorded.
        latency_ns: the time from the begin of the call until the device can start.
        begin_ns: when it began; later than recorded if clocks disagree.
        lead_ns: the time before it in which its stream is held.
        previous: the previous one on its stream; -1: none.
        waits: work of other streams.
        is_earlier: it was launched before the trace began.
        is_released: it does not begin before the time that was recorded.
    """

    work: DeviceWork
    launch: Launch | None
    latency_ns: int
    begin_ns: int
    lead_ns: int = 0
    previous: int = -1
    waits: list[int] = field(default_factory=list)
    is_earlier: bool = False
    is_released: bool = False


class Streams:
    """All work of a rank, in order of its begin."""

    def __init__(self, profile: Profile) -> None:
        self._calls = {one.correlation: one for one in profile.launches if one.correlation}
        self.kernels = [
            Kernel(work, self._calls.get(work.correlation), 0, work.begin_ns)
            for work in sorted(profile.work, key=lambda one: (one.begin_ns, one.end_ns))
        ]
        self.unexplained_ns = 0
        self._check_launches(profile)
        self._on: dict[Track, list[int]] = {}
        for place, kernel in enumerate(self.kernels):
            on_stream = self._on.setdefault(kernel.work.stream, [])
            kernel.previous = on_stream[-1] if on_stream else -1
            on_stream.append(place)
        self._launched = {stream: self._launch_times(places) for stream, places in self._on.items()}
        self._ends = sorted((k.work.end_ns, place) for place, k in enumerate(self.kernels))
        self._typical_ns = self._typical_latency()
        events = self._event_waits(profile)
        self._has_events = bool(events)
        self._first_launched = self._find_first_launched()
        for place, kernel in enumerate(self.kernels):
            self._explain(place, kernel, events.get(place, ()))

    def launched_before(self, stream: Track, time_ns: int) -> int | None:
        """The last work on ``stream`` that was launched before a time; None: there is none."""
        at = bisect_left(self._launched.get(stream, ()), time_ns) - 1
        return self._on[stream][at] if at >= 0 else None

    def call(self, correlation: int) -> Launch | None:
        """The call with this correlation id."""
        return self._calls.get(correlation)

    @property
    def calls(self) -> Iterable[Launch]:
        """All calls of the runtime that have a correlation id."""
        return self._calls.values()

    def work_on(self, stream: Track) -> Sequence[int]:
        """The work on a stream, in order, as indices."""
        return self._on[stream]

    @property
    def names(self) -> Sequence[Track]:
        """All streams."""
        return tuple(self._on)

    def _check_launches(self, profile: Profile) -> None:
        lost = sum(kernel.launch is None for kernel in self.kernels)
        if 2 * lost > len(self.kernels):
            raise UserError(
                f"{profile.path}: cannot be replayed: {lost} of {len(self.kernels)} kernels and "
                "copies have no launch with their correlation id: profile the CPU's activity, too"
            )

    def _find_first_launched(self) -> dict[Track, int]:
        """The first work of each stream whose launch was recorded. A stream may have none."""
        return {
            stream: next(place for place in places if self.kernels[place].launch is not None)
            for stream, places in self._on.items()
            if any(self.kernels[place].launch is not None for place in places)
        }

    def _launch_times(self, places: Sequence[int]) -> list[int]:
        """When each of a stream's work was launched, in its order."""
        times: list[int] = []
        for place in places:
            launch = self.kernels[place].launch
            time_ns = launch.begin_ns if launch else (times[-1] if times else -(2**62))
            times.append(max(time_ns, times[-1]) if times else time_ns)
        return times

    def _typical_latency(self) -> int:
        """The time from launch to begin, where the stream had nothing else to do.

        A tenth of them are shorter. Long ones waited for something else, which may be all of them.
        """
        found = []
        for kernel in self.kernels:
            launch = kernel.launch
            if launch is not None and self._end(kernel.previous) <= launch.begin_ns:
                found.append(max(0, kernel.work.begin_ns - launch.begin_ns))
        return min(sorted(found)[len(found) // 10], _LONGEST_LATENCY_NS) if found else 0

    def _end(self, place: int) -> int:
        return self.kernels[place].work.end_ns if place >= 0 else -(2**62)

    def _event_waits(self, profile: Profile) -> dict[int, list[int | None]]:
        """By the work that was told to wait for an event: what came before the event's record."""
        by_thread: dict[Track, tuple[list[int], list[int]]] = {}
        for place, kernel in enumerate(self.kernels):
            if kernel.launch is not None:
                by_thread.setdefault(kernel.launch.track, ([], []))[1].append(place)
        for times, places in by_thread.values():
            places.sort(key=self._launch_time)
            times += map(self._launch_time, places)
        found: dict[int, list[int | None]] = {}
        for correlation, said in profile.synchronisations.items():
            waiting, recording = self.call(correlation), self.call(said.recorded)
            launched = self._launched.get(said.stream)
            if waiting is None or recording is None or launched is None:
                continue
            at = bisect_left(launched, waiting.begin_ns)
            if at == len(launched):
                continue
            if said.on is not None:
                before = self.launched_before(said.on, recording.begin_ns)
            else:
                times, places = by_thread.get(recording.track, ([], []))
                place = bisect_left(times, recording.begin_ns) - 1
                before = places[place] if place >= 0 else None
            found.setdefault(self._on[said.stream][at], []).append(before)
        return found

    def _launch_time(self, place: int) -> int:
        launch = self.kernels[place].launch
        return launch.begin_ns if launch is not None else -(2**62)

    def _explain(self, place: int, kernel: Kernel, told: Sequence[int | None]) -> None:
        """Finds what the kernel waited for, and the time that nothing explains."""
        ready_ns = self._end(kernel.previous)
        launch = kernel.launch
        if launch is not None:
            kernel.begin_ns = max(kernel.begin_ns, launch.begin_ns)
        begin_ns = kernel.begin_ns
        if launch is not None and kernel.work.use is Use.COLLECTIVE and not self._has_events:
            told = self._computing_before(kernel, launch)
        for other in told:
            # What ended later was not waited for: the stream was not the one that was meant.
            if other is not None and self._end(other) <= begin_ns + _GAP_NS and other < place:
                kernel.waits.append(other)
                ready_ns = max(ready_ns, self._end(other))
        if launch is not None:
            took_ns = begin_ns - launch.begin_ns
            # Longer ones have another reason, which is to be found.
            is_own = ready_ns <= launch.begin_ns and took_ns <= 4 * self._typical_ns + _GAP_NS
            kernel.latency_ns = took_ns if is_own else min(took_ns, self._typical_ns)
            ready_ns = max(ready_ns, launch.begin_ns + kernel.latency_ns)
        kernel.is_earlier = place < self._first_launched.get(kernel.work.stream, 0)
        if begin_ns - ready_ns > _GAP_NS and (launch is not None or kernel.is_earlier):
            cause = self._ended_before(place, kernel)
            if cause is not None and self._end(cause) > ready_ns:
                kernel.waits.append(cause)
                ready_ns = self._end(cause)
        if launch is None and kernel.previous < 0:
            kernel.is_released = not kernel.waits
            return
        waited_ns = max(0, begin_ns - ready_ns)
        kernel.lead_ns = min(waited_ns, _GAP_NS)
        # What began late without a launch, and for no other reason, keeps its time.
        is_late = waited_ns > _GAP_NS or not kernel.is_earlier
        kernel.is_released = launch is None and is_late
        self.unexplained_ns += waited_ns - kernel.lead_ns

    def _computing_before(self, kernel: Kernel, launch: Launch) -> list[int]:
        """The last kernel on each other stream of the device that was launched before."""
        device = kernel.work.stream[0]
        found: list[int] = []
        for stream in self._on:
            if stream[0] == device and stream != kernel.work.stream:
                before = self.launched_before(stream, launch.begin_ns)
                if before is not None and self.kernels[before].work.use is Use.KERNEL:
                    found.append(before)
        return found

    def _ended_before(self, place: int, kernel: Kernel) -> int | None:
        """Work of another stream of the device that ended just before the kernel began."""
        begin_ns, (device, _) = kernel.begin_ns, kernel.work.stream
        at = bisect_right(self._ends, (begin_ns, len(self._ends)))
        while at > 0 and self._ends[at - 1][0] >= begin_ns - _NEAR_NS:
            at -= 1
            other = self._ends[at][1]
            stream = self.kernels[other].work.stream
            if stream[0] == device and stream != kernel.work.stream and other < place:
                return other
        return None
