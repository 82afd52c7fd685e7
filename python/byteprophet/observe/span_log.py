"""Collects the spans of this process: many threads add them, one thread takes and saves them.

Memory is bounded: if nobody takes spans in time, new ones are lost and counted. Adding a span takes
a microsecond or two. Callers first check whether spans are recorded (``on``).

Threads. Any thread may call ``add``. The training thread calls ``begin_iteration``. One thread
calls ``take``. There is no lock, because a signal handler may end the recording in the middle of
``add``: a deque, a dictionary and a counter make each step atomic under the interpreter's lock.
Each thread counts its own lost spans.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

from byteprophet.observe.processor_log import ProcessorLog
from byteprophet.observe.windows import Windows
from byteprophet.timeline.tables import Kind

CAPACITY = 1 << 16
_Fields = tuple[int, int, int, int, str, int, int]
"""The fields of a ``Span``. Creating a plain tuple is faster."""
_LARGEST_LANE = (1 << 16) - 1
_NOTHING = nullcontext()


class Span(NamedTuple):
    """One row of ``timeline.tables.SPAN``, with its name as text."""

    begin_ns: int
    end_ns: int
    size_bytes: int
    iteration: int
    name: str
    lane: int
    kind: int


class _Done(AbstractContextManager[None]):
    """A context manager that adds a span on exit, also after an exception."""

    def __init__(self, log: SpanLog, kind: Kind, name: str, iteration: int | None) -> None:
        self._log, self._kind, self._name, self._iteration = log, kind, name, iteration

    def __enter__(self) -> None:
        self._begin_ns = self._log.clock()

    def __exit__(self, *_exception: object) -> None:
        log = self._log
        log.add(self._kind, self._name, self._begin_ns, log.clock(), iteration=self._iteration)


class SpanLog:
    """The spans that were added and not yet taken.

    ``on``: spans of the current iteration or of the one before are recorded. ``iteration``: the
    number of the current iteration, as in transfers; 0 before the first. ``told_by_model``: the
    model itself reports its iterations and layers, so hooks do not.
    """

    def __init__(
        self, capacity: int = CAPACITY, clock: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self.clock = clock
        self.on = False
        self.iteration = 0
        self.told_by_model = False
        self.windows = Windows()
        self.processors = ProcessorLog()
        self._capacity = capacity
        self._wanted = False  # spans of the current iteration
        self._spans: deque[_Fields] = deque()
        self._lost: dict[int, int] = {}  # by thread
        self._lanes: dict[Hashable, int] = {}
        self._new_lanes = itertools.count()
        self._begun_ns = 0

    def start(self, windows: Windows, iteration: int) -> None:
        """Records the spans in ``windows`` from now on. ``iteration`` is the current one."""
        self.windows = windows
        self.skip_to(iteration)

    def stop(self) -> None:
        """Stops recording."""
        self.windows = Windows()
        self.on = self._wanted = False
        self._begun_ns = 0

    def expects(self) -> bool:
        """Whether spans of the current iteration or of the next one are recorded."""
        return self.iteration in self.windows or self.iteration + 1 in self.windows

    def begin_iteration(self, iteration: int) -> None:
        """Ends the previous iteration, which becomes a span, and begins ``iteration``."""
        now_ns = self.clock()
        if self._begun_ns:
            self.add(Kind.ITERATION, "iteration", self._begun_ns, now_ns)
        self.skip_to(iteration)
        self._begun_ns = now_ns
        if self.on:
            self.processors.note(iteration, now_ns)

    def skip_to(self, iteration: int) -> None:
        """Makes ``iteration`` the current one. It gets no span, as its start is not known."""
        self.iteration = iteration
        self._wanted = iteration in self.windows
        self.on = self._wanted or iteration - 1 in self.windows
        self._begun_ns = 0

    def add(
        self,
        kind: Kind,
        name: str,
        begin_ns: int,
        end_ns: int,
        *,
        iteration: int | None = None,
        size_bytes: int = 0,
        lane: int | None = None,
    ) -> None:
        """Adds a span. By default, it belongs to the current iteration and the calling thread."""
        if iteration is None:
            if not self._wanted:
                return
            iteration = self.iteration
        elif iteration not in self.windows:
            return
        if len(self._spans) >= self._capacity:
            self.lose(1)
            return
        if lane is None:
            lane = self.lane(threading.get_ident())
        self._spans.append((begin_ns, end_ns, size_bytes, iteration, name, lane, kind))

    def lose(self, count: int) -> None:
        """Counts ``count`` spans as lost."""
        thread = threading.get_ident()
        self._lost[thread] = self._lost.get(thread, 0) + count

    def span(
        self, kind: Kind, name: str, iteration: int | None = None
    ) -> AbstractContextManager[None]:
        """A context manager whose body becomes a span, if spans are recorded."""
        return _Done(self, kind, name, iteration) if self.on else _NOTHING

    def lane(self, of: Hashable) -> int:
        """The lane of a thread (given by its identity) or of anything else that has a lane."""
        lane = self._lanes.get(of)
        if lane is None:
            lane = self._lanes.setdefault(of, min(next(self._new_lanes), _LARGEST_LANE))
        return lane

    def take(self, most: int) -> list[_Fields]:
        """Removes the oldest spans, at most ``most``, and returns their fields."""
        return [self._spans.popleft() for _ in range(min(most, len(self._spans)))]

    def lost(self) -> int:
        """The number of spans lost so far. Each was newer than all spans that waited then."""
        return sum(list(self._lost.values()))


process_spans = SpanLog()
"""The spans that this process records as a worker of a job."""
