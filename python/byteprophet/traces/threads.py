"""When threads are busy, by the calls on them.

A thread is busy while an operator of a library, a call of the device's runtime, or a wait for a
DataLoader is open. Between these, it runs Python or its interpreter, or it waits for another thread
(``pauses.py``). Operators without a namespace are functions of TorchScript or of users, and nodes
of autograd; the thread is busy in what they call, not all the time. If they call nothing, they do
something by themselves.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from byteprophet.timeline.kineto_calls import Track
from byteprophet.timeline.kineto_events import Category
from byteprophet.traces.messages import Message
from byteprophet.traces.profile import Profile, Span

_LIBRARY = re.compile(r"(?!autograd::|torch::autograd::)[^:]*::")
_WAITS = re.compile(r"(^|[:._ ])wait(_tensor)?$")
"""Operators that do nothing but wait for other threads."""


class Busy(NamedTuple):
    """A time in which a thread is busy, or in which an outermost call is open."""

    begin_ns: int
    end_ns: int
    name: str
    is_loading: bool
    message: Message | None


@dataclass(frozen=True)
class ThreadTimes:
    """A thread's calls: the times in which it is ``busy``, and the ``outermost`` calls."""

    busy: tuple[Busy, ...]
    outermost: tuple[Busy, ...]


def thread_times(profile: Profile) -> dict[Track, ThreadTimes]:
    """The times of each thread, disjoint and in order."""
    spans: dict[Track, list[Span]] = {track: list(of) for track, of in profile.spans.items()}
    for launch in profile.launches:
        call = Span(launch.begin_ns, launch.end_ns, launch.name, Category.LAUNCH)
        spans.setdefault(launch.track, []).append(call)
    for step in profile.steps:
        spans.setdefault(step.track, [])
    return {track: _times(of_thread) for track, of_thread in spans.items()}


def _times(spans: Sequence[Span]) -> ThreadTimes:
    counted = [
        span
        for span in sorted(spans, key=lambda one: (one.begin_ns, -one.end_ns))
        if span.category is not Category.ANNOTATION or span.is_loading or span.message is not None
    ]
    callers = _callers(counted)
    busy = [span for place, span in enumerate(counted) if _is_busy(span, place in callers)]
    return ThreadTimes(tuple(_disjoint(busy)), tuple(_disjoint(counted)))


def _callers(spans: Sequence[Span]) -> set[int]:
    """Those of ``spans``, by index, that contain others."""
    found: set[int] = set()
    stack: list[int] = []
    for place, span in enumerate(spans):
        while stack and spans[stack[-1]].end_ns <= span.begin_ns:
            stack.pop()
        if stack:
            found.add(stack[-1])
        stack.append(place)
    return found


def _is_busy(span: Span, calls_others: bool) -> bool:
    if span.category is not Category.OPERATOR:
        return True
    if _WAITS.search(span.name):
        return False
    return not calls_others or _LIBRARY.match(span.name) is not None


def _disjoint(spans: Sequence[Span]) -> Iterator[Busy]:
    """The outermost of ``spans``; what two of them have in common is the first one's."""
    ended_ns = None
    for span in spans:
        begin_ns = span.begin_ns if ended_ns is None else max(span.begin_ns, ended_ns)
        if ended_ns is not None and span.end_ns <= ended_ns:
            continue
        ended_ns = span.end_ns
        yield Busy(begin_ns, span.end_ns, span.name, span.is_loading, span.message)
