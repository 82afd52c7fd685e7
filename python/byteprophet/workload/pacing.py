"""Timed waits that stand for the compute of an accelerator, without drift.

Every sleep ends late, by some 50 us and by much more on a busy machine; over hundreds of layers
that would be percents. So the pacer keeps the time line of the device it stands for: a layer ends
at a deadline, and what the thread overshot it by is taken off the next wait, and so is the CPU
time it used between two layers: an accelerator runs on while the host handles hooks and hands
gradients over. Time it was blocked is not taken off. What follows depends on what blocked it:

- forward: a layer starts when the one before has ended *and* its parameters are there. The thread
  may have been blocked for them, and the accelerator with it, after what it had to do was done. So
  lateness and CPU time are carried over only as far as they exceed the time blocked.
- backward: layers wait for no parameters. Whatever else blocked the thread (other programs, the
  interpreter's lock) delays the device.

Hence a layer never ends before its stated time after the one before, and a pass never takes less
than the sum of its layers. All that happens from ``begin`` to ``end`` is inside the layer's time.
The interpreter lock is free during the sleep.

One thread at a time; no locks.
"""

from __future__ import annotations

import time
from collections.abc import Callable

SPARE_NS = 2_000_000
"""A wait has time to spare for a piece of work while it lasts longer than this."""


class Clock:
    """The clock of this machine; tests have another."""

    def monotonic_ns(self) -> int:
        """Nanoseconds of a clock that never jumps."""
        return time.monotonic_ns()

    def thread_time_ns(self) -> int:
        """CPU nanoseconds that the calling thread has used."""
        return time.thread_time_ns()

    def sleep(self, seconds: float) -> None:
        """Return after ``seconds`` or later."""
        time.sleep(seconds)


class Pacer:
    """The time line of one paced device. All times are nanoseconds of the monotonic clock."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or Clock()
        self.restart()

    def restart(self) -> None:
        """Forget what was overshot: the next layer starts when it begins, not earlier."""
        self._late_ns = 0
        self._left_ns = self._clock.monotonic_ns()
        self._left_cpu_ns = self._clock.thread_time_ns()
        self._start_ns = self._deadline_ns = self._left_ns

    def begin_forward(self) -> None:
        """A forward layer whose parameters are there begins."""
        now_ns, cpu_ns = self._since_last_layer()
        blocked_ns = now_ns - self._left_ns - cpu_ns
        self._start_ns = now_ns - max(0, self._late_ns + cpu_ns - blocked_ns)

    def begin_backward(self) -> None:
        """A backward layer begins."""
        now_ns, cpu_ns = self._since_last_layer()
        self._start_ns = now_ns - self._late_ns - cpu_ns

    def wait(self, duration_ns: int, meanwhile: Callable[[], bool]) -> None:
        """Wait until the layer begun last has taken ``duration_ns``.

        While there is time to spare, ``meanwhile`` is called to do a short piece of work, until it
        returns False.
        """
        self._deadline_ns = self._start_ns + duration_ns
        while self._deadline_ns - self._clock.monotonic_ns() > SPARE_NS and meanwhile():
            pass
        while (left_ns := self._deadline_ns - self._clock.monotonic_ns()) > 0:
            self._clock.sleep(left_ns / 1e9)

    def end(self) -> tuple[int, int]:
        """The layer hands over to whatever comes next; what it overshot is noted here.

        When the device ran it: begin and end, as far apart as it is stated to take.
        """
        self._left_ns = self._clock.monotonic_ns()
        self._left_cpu_ns = self._clock.thread_time_ns()
        self._late_ns = self._left_ns - self._deadline_ns
        return self._start_ns, self._deadline_ns

    def _since_last_layer(self) -> tuple[int, int]:
        """Now, and the CPU time the thread used since the last layer (never more than passed)."""
        cpu_ns = self._clock.thread_time_ns() - self._left_cpu_ns
        now_ns = self._clock.monotonic_ns()
        return now_ns, min(max(0, cpu_ns), now_ns - self._left_ns)
