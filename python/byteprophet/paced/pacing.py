"""Timed waits that stand for the compute of an accelerator, without drift.

Every sleep ends late, by about 50 us, and by much more on a busy machine. Over hundreds of layers,
this would add up to several percent. So the pacer keeps the time line of the device that it stands
for. A layer ends at a deadline. If the thread overshoots the deadline, the next wait is shorter by
that time. The next wait is also shorter by the CPU time that the thread used between the two
layers, because an accelerator continues while the host runs hooks and submits gradients. Time in
which the thread was blocked does not shorten the next wait. The rules differ between directions:

- forward: a layer starts when the previous one has ended *and* its parameters are up to date. The
  thread may have been blocked until then. The accelerator would have finished its queued work and
  waited, too. So lateness and CPU time are carried over only as far as they exceed the blocked
  time. As the host of an accelerator does, the thread may run ahead of the device a little
  (``AHEAD_NS``). The device then starts a layer when it has ended the previous one. Before the
  thread may have to wait for parameters, it catches up, so waits begin when the device is idle.
  It does not run ahead while somebody measures layers by the thread's own time (``ahead_ns``).
- backward: layers do not wait for parameters. Anything else that blocks the thread (other programs,
  the GIL) delays the device.

So a layer never ends earlier than its stated time after the previous one, and a pass never takes
less than the sum of its layers. Everything from ``begin_forward`` or ``begin_backward`` to ``end``
is part of the layer's time. The GIL is free during the sleep.

One thread at a time may use a pacer; there are no locks.
"""

from __future__ import annotations

import time
from collections.abc import Callable

SPARE_NS = 2_000_000
"""A wait does a piece of work only if more than this time is left."""
AHEAD_NS = 1_000_000
"""How far the thread may run ahead of the device in forward. It wakes up that much less often."""


class Clock:
    """The clock of this machine: its monotonic clock, and the CPU time of the calling thread.

    Tests use another one.
    """

    monotonic_ns: Callable[[], int] = staticmethod(time.monotonic_ns)
    thread_time_ns: Callable[[], int] = staticmethod(time.thread_time_ns)
    sleep: Callable[[float], None] = staticmethod(time.sleep)


class Pacer:
    """The time line of one paced device. All times are nanoseconds of the monotonic clock.

    ``ahead_ns``: how far the thread may run ahead in this forward pass, at most ``AHEAD_NS``.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or Clock()
        self.ahead_ns = AHEAD_NS
        self.restart()

    def restart(self) -> None:
        """Forget earlier lateness, so that the next layer starts when it begins, not earlier."""
        self._late_ns = 0
        self._left_ns = self._clock.monotonic_ns()
        self._left_cpu_ns = self._clock.thread_time_ns()
        self._start_ns = self._deadline_ns = self._left_ns

    def begin_forward(self) -> None:
        """Begin a forward layer whose parameters are up to date."""
        if self._clock.monotonic_ns() <= self._deadline_ns:
            self._start_ns = self._deadline_ns  # the device still runs the previous layer
            return
        now_ns, cpu_ns = self._since_last_layer()
        blocked_ns = now_ns - self._left_ns - cpu_ns
        start_ns = now_ns - max(0, self._late_ns + cpu_ns - blocked_ns)
        self._start_ns = max(start_ns, self._deadline_ns)  # the previous layer may still run

    def begin_backward(self) -> None:
        """Begin a backward layer."""
        now_ns, cpu_ns = self._since_last_layer()
        self._start_ns = now_ns - self._late_ns - cpu_ns

    def wait(self, duration_ns: int, meanwhile: Callable[[], bool], ahead_ns: int = 0) -> None:
        """Wait until the current layer has taken ``duration_ns``.

        If at most ``ahead_ns`` of it is left, leave that to a later wait. While enough time is
        left, calls ``meanwhile`` repeatedly, which does a short piece of work, until it returns
        False.
        """
        self._deadline_ns = self._start_ns + duration_ns
        clock = self._clock
        left_ns = self._deadline_ns - clock.monotonic_ns()
        while left_ns > SPARE_NS and meanwhile():
            left_ns = self._deadline_ns - clock.monotonic_ns()
        if left_ns > ahead_ns:
            self._sleep(left_ns)

    def catch_up(self) -> None:
        """Wait until the device has run what the thread is ahead of it."""
        left_ns = self._deadline_ns - self._clock.monotonic_ns()
        if left_ns > 0:
            self._sleep(left_ns)
            self.end()

    def end(self) -> tuple[int, int]:
        """End the current layer, and note by how much it overshot its deadline.

        Returns when the device ran the layer: begin and end, which differ by its stated time.
        """
        self._left_ns = self._clock.monotonic_ns()
        self._left_cpu_ns = self._clock.thread_time_ns()
        self._late_ns = self._left_ns - self._deadline_ns
        return self._start_ns, self._deadline_ns

    def _sleep(self, left_ns: int) -> None:
        while left_ns > 0:
            self._clock.sleep(left_ns / 1e9)
            left_ns = self._deadline_ns - self._clock.monotonic_ns()

    def _since_last_layer(self) -> tuple[int, int]:
        """The current time, and the CPU time since the last layer (at most the elapsed time)."""
        cpu_ns = self._clock.thread_time_ns() - self._left_cpu_ns
        now_ns = self._clock.monotonic_ns()
        return now_ns, min(max(0, cpu_ns), now_ns - self._left_ns)
