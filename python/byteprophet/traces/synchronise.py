"""Waits of the host for a device: synchronisations, and copies that return when they are done.

Traces may lack all calls that waited, because these were filtered out, or are not CUDA's. A long
pause of a thread is such a wait if a stream had run out of work just before its end.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from byteprophet.timeline.kineto_calls import Track
from byteprophet.traces.pauses import Pause
from byteprophet.traces.profile import Launch, Profile
from byteprophet.traces.streams import Streams
from byteprophet.traces.work import Use

_SYNCHRONISES = re.compile(r"(cuda|hip|cu)(Stream|Device|Event|Ctx)Synchronize(_\w+)?")
_COPIES = re.compile(r"(cuda|hip|cu)Memcpy\w*")
_LATE_NS = 20_000
"""How much later than a wait for it, work may end: clocks of host and device differ a little."""

_SHORTEST_NS = 1_000_000
"""In shorter pauses, a device may well run out of work by chance: Python launches too slowly."""

_WAKING_NS = 100_000
"""What a thread may need to go on after a wait for a device."""


class DeviceWait(NamedTuple):
    """A call on a thread, from ``begin_ns`` to ``end_ns``, that waits for work on a device."""

    begin_ns: int
    end_ns: int
    work: tuple[int, ...]


def unrecorded_waits(
    pauses: Sequence[Pause], streams: Streams, known: Mapping[Track, Sequence[DeviceWait]]
) -> dict[Track, list[DeviceWait]]:
    """The pauses that are waits for a device, in a trace without any call that waits."""
    if any(_SYNCHRONISES.fullmatch(call.name) for call in streams.calls):
        return {}
    begins = {track: [wait.begin_ns for wait in waits] for track, waits in known.items()}
    found: dict[Track, list[DeviceWait]] = {}
    for pause in pauses:
        if pause.end_ns - pause.begin_ns < _SHORTEST_NS:
            continue
        of_thread = begins.get(pause.track, [])
        at = bisect_left(of_thread, pause.begin_ns)
        if at < len(of_thread) and of_thread[at] < pause.end_ns:
            continue
        ended = []
        for stream in streams.names:
            place = streams.launched_before(stream, pause.end_ns)
            if place is not None:
                ended.append((streams.kernels[place].work.end_ns, place))
        ended = [one for one in ended if pause.begin_ns < one[0] <= pause.end_ns]
        if ended and pause.end_ns - max(ended)[0] <= _WAKING_NS:
            work = (max(ended)[1],)
            found.setdefault(pause.track, []).append(DeviceWait(pause.begin_ns, pause.end_ns, work))
    return found


def device_waits(profile: Profile, streams: Streams) -> dict[Track, list[DeviceWait]]:
    """The waits of each thread for work on devices, in order."""
    found: dict[Track, list[DeviceWait]] = {}
    copies = {
        kernel.work.correlation: place
        for place, kernel in enumerate(streams.kernels)
        if kernel.work.use is Use.COPY
    }
    for call in profile.launches:
        called = _SYNCHRONISES.fullmatch(call.name)
        if called is not None:
            work = _waited_for(called[2], call, profile, streams)
        elif _COPIES.fullmatch(call.name) and call.correlation in copies:
            place = copies[call.correlation]
            ended_ns = streams.kernels[place].work.end_ns
            work = (place,) if ended_ns <= call.end_ns else ()
        else:
            continue
        if work:
            wait = DeviceWait(call.begin_ns, call.end_ns, work)
            found.setdefault(call.track, []).append(wait)
    for waits in found.values():
        waits.sort(key=lambda wait: wait.begin_ns)
    return found


def _waited_for(kind: str, call: Launch, profile: Profile, streams: Streams) -> tuple[int, ...]:
    """The work for which a synchronisation waited, as far as its end agrees with the call's."""
    said = profile.synchronisations.get(call.correlation)
    by_stream = {stream: streams.launched_before(stream, call.begin_ns) for stream in streams.names}
    if kind == "Event" and said is not None and said.recorded:
        recording = streams.call(said.recorded)
        stream = said.on or said.stream
        before = streams.launched_before(stream, recording.begin_ns) if recording else None
        candidates = [before]
    elif kind == "Stream" and said is not None and said.stream in by_stream:
        candidates = [by_stream[said.stream]]
    else:
        candidates = list(by_stream.values())
    ended = [
        (streams.kernels[place].work.end_ns, place)
        for place in candidates
        if place is not None and streams.kernels[place].work.end_ns <= call.end_ns + _LATE_NS
    ]
    if not ended:
        return ()
    if kind in ("Device", "Ctx"):
        return tuple(sorted(place for _, place in ended))
    # Which stream it is, is not always known: it may be the one that was done last.
    return (max(ended)[1],)
