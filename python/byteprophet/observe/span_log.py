"""Spans of this process: many threads add them, one takes them away and saves them.

Memory is bounded: if nobody takes spans in time, new ones are lost, and counted. Adding one takes
a microsecond or two; who adds looks first whether spans are wanted (``on``).

Threads. ``add`` anywhere; ``begin_iteration`` in the thread that trains; ``take`` in one thread.
There is no lock, as a signal handler may end the recording in the midst of ``add``: a deque, a
dictionary and a counter do each step at once under the interpreter's own. Each thread counts what
it has lost by itself.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

from byteprophet.observe.windows import Windows
from byteprophet.timeline.tables import Kind

CAPACITY = 1 << 16
_Fields = tuple[int, int, int, int, str, int, int]
"""Of a ``Span``, which takes longer to make."""
_LARGEST_LANE = (1 << 16) - 1
_NOTHING = nullcontext()


class Span(NamedTuple):
    """One row of ``timeline.tables.SPAN``, its name as text."""

    begin_ns: int
    end_ns: int
    size_bytes: int
    iteration: int
    name: str
    lane: int
    kind: int


class _Done(AbstractContextManager[None]):
    """Adds a span when it is left, also by an exception."""

    def __init__(self, log: SpanLog, kind: Kind, name: str, iteration: int | None) -> None:
        self._log, self._kind, self._name, self._iteration = log, kind, name, iteration

    def __enter__(self) -> None:
        self._begin_ns = self._log.clock()

    def __exit__(self, *_exception: object) -> None:
        log = self._log
        log.add(self._kind, self._name, self._begin_ns, log.clock(), iteration=self._iteration)


class SpanLog:
    """The spans that were added and not yet taken.

    ``on``: whether spans of the iteration under way, or of the one before, are wanted.
    ``iteration``: the number of the one under way, as in transfers; 0 before the first.
    ``told_by_model``: the model itself tells its iterations and layers; hooks leave them to it.
    """

    def __init__(
        self, capacity: int = CAPACITY, clock: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self.clock = clock
        self.on = False
        self.iteration = 0
        self.told_by_model = False
        self.windows = Windows()
        self._capacity = capacity
        self._wanted = False  # spans of the iteration under way
        self._spans: deque[_Fields] = deque()
        self._lost: dict[int, int] = {}  # by thread
        self._lanes: dict[Hashable, int] = {}
        self._new_lanes = itertools.count()
        self._begun_ns = 0

    def start(self, windows: Windows, iteration: int) -> None:
        """Want the spans of ``windows`` from now on; ``iteration`` is under way."""
        self.windows = windows
        self.skip_to(iteration)

    def stop(self) -> None:
        """Want none."""
        self.windows = Windows()
        self.on = self._wanted = False
        self._begun_ns = 0

    def expects(self) -> bool:
        """Whether spans of the iteration under way or of the next one are wanted."""
        return self.iteration in self.windows or self.iteration + 1 in self.windows

    def begin_iteration(self, iteration: int) -> None:
        """``iteration`` begins here and now, and the one before it ends."""
        now_ns = self.clock()
        if self._begun_ns:
            self.add(Kind.ITERATION, "iteration", self._begun_ns, now_ns)
        self.skip_to(iteration)
        self._begun_ns = now_ns

    def skip_to(self, iteration: int) -> None:
        """``iteration`` is under way; nobody has seen it begin."""
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
        """Something was done. Default: in the iteration under way, by the calling thread."""
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
        """So many spans are not known, or there is no room for them."""
        thread = threading.get_ident()
        self._lost[thread] = self._lost.get(thread, 0) + count

    def span(
        self, kind: Kind, name: str, iteration: int | None = None
    ) -> AbstractContextManager[None]:
        """What is done within it is a span, if spans are wanted."""
        return _Done(self, kind, name, iteration) if self.on else _NOTHING

    def lane(self, of: Hashable) -> int:
        """The lane of a thread, by its identity, or of whatever else has one."""
        lane = self._lanes.get(of)
        if lane is None:
            lane = self._lanes.setdefault(of, min(next(self._new_lanes), _LARGEST_LANE))
        return lane

    def take(self, most: int) -> list[_Fields]:
        """The fields of the oldest spans, at most so many, which are no longer here then."""
        return [self._spans.popleft() for _ in range(min(most, len(self._spans)))]

    def lost(self) -> int:
        """Spans lost so far, all of them younger than any that was taken since."""
        return sum(list(self._lost.values()))


process_spans = SpanLog()
"""What this process records as a worker of a job."""
