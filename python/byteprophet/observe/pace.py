"""When this process' iterations began, and for what its training waited: the live view's source.

Nothing here costs anything worth mentioning: an iteration's begin is one assignment, a wait that
blocked is one append, and both structures keep only the newest entries. So they are always filled,
and nobody has to ask for them beforehand.

Threads. Whoever counts iterations calls ``begin``, in the training thread or in autograd's. Any
thread calls ``waited``. The observer's thread calls ``starts`` and ``take_waits``. There is no
lock, because a signal handler may end the observer in the middle of either call: an element of a
list, and a deque, change atomically under the interpreter's lock, and ``starts`` copies the list in
one such step.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

_STARTS = 512
_WAITS = 4096

Start = tuple[int, int]
"""The number of an iteration, and when it began, in ns of the monotonic clock."""

Wait = tuple[str, int]
"""What was waited for (a parameter), and for how long, in ns."""


class Pace:
    """The latest iterations and waits of a process.

    ``tells_waits``: whether somebody calls ``waited``; without, nothing is known of waits.
    """

    def __init__(self, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self.tells_waits = False
        self._clock = clock
        self._starts: list[Start | None] = [None] * _STARTS
        self._waits: deque[Wait] = deque(maxlen=_WAITS)
        self._count = 0
        self._leader: int | None = None
        self._followers: set[int] = set()  # who has begun an iteration since the leader's last one

    @property
    def count(self) -> int:
        """Iterations begun so far."""
        return self._count

    def begin(self, iteration: int, by: int = 0) -> None:
        """Notes that ``iteration`` begins now.

        ``by``: who counts; 0: nobody else does. If several optimizers take turns, the iterations of
        one of them count, and are numbered here, as each may count its own or all of them. Another
        one takes its place by beginning two while it begins none.
        """
        if self._leader not in (by, None) and by not in self._followers:
            self._followers.add(by)
            return
        self._leader = by
        self._followers.clear()
        number = self._count + 1 if by else iteration
        self._starts[self._count % _STARTS] = (number, self._clock())
        self._count += 1

    def starts(self, most: int = _STARTS) -> list[Start]:
        """The latest iterations, at most ``most``, in order of time."""
        known = [start for start in self._starts.copy() if start is not None]
        return sorted(known, key=lambda start: start[1])[-most:]

    def waited(self, name: str, begin_ns: int) -> None:
        """Notes that a thread has waited for ``name`` since ``begin_ns``."""
        self._waits.append((name, self._clock() - begin_ns))

    def take_waits(self) -> list[Wait]:
        """Removes and returns the waits since the last call, as far as they were kept."""
        return [self._waits.popleft() for _ in range(len(self._waits))]


process_pace = Pace()
"""The iterations and waits of this process as a worker of a job."""
