"""How busy the cores are that this process may use, from the system's counters.

A worker's bandwidth alone does not say what limits it: where all cores are busy, messages wait for
a core and not for the link. The controller needs both (``control/arrival_order.py``).

All processes of the machine count, also servers and other workers on it, because they share the
cores. Limits of control groups are not seen: a container that may use half of its cores counts as
half idle at most.

Threads: one thread calls ``share``, the observer's.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable

import psutil

WINDOW_NS = 5_000_000_000
_LEAST_NS = 500_000_000
"""Counters tick every 10 ms, so a shorter time says little."""

Counters = Callable[[], tuple[float, float]]


def core_seconds() -> tuple[float, float]:
    """The seconds that this process' cores have computed, and all their seconds, since the boot."""
    busy_s = all_s = 0.0
    times = psutil.cpu_times(percpu=True)
    for core in os.sched_getaffinity(0):
        if core < len(times):
            own = times[core]
            # The system counts the time of virtual machines in "user", too.
            total_s = sum(own) - getattr(own, "guest", 0.0) - getattr(own, "guest_nice", 0.0)
            all_s += total_s
            busy_s += total_s - own.idle - getattr(own, "iowait", 0.0)
    return busy_s, all_s


class ProcessorUse:
    """The share of core time that was used during the last seconds."""

    def __init__(
        self,
        counters: Counters = core_seconds,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._counters = counters
        self._clock_ns = clock_ns
        self._looks: deque[tuple[int, float, float]] = deque()
        self.share()

    def share(self) -> float | None:
        """The share since the oldest look within ``WINDOW_NS``, 0 to 1.

        None until enough time has passed since the first look.
        """
        now_ns = self._clock_ns()
        self._looks.append((now_ns, *self._counters()))
        while len(self._looks) > 2 and now_ns - self._looks[1][0] >= WINDOW_NS:
            self._looks.popleft()
        (first_ns, first_busy_s, first_s), (_, busy_s, all_s) = self._looks[0], self._looks[-1]
        if now_ns - first_ns < _LEAST_NS or all_s <= first_s:
            return None
        return min(1.0, max(0.0, (busy_s - first_busy_s) / (all_s - first_s)))
