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
import re
import time
from collections import deque
from collections.abc import Callable, Collection
from pathlib import Path

WINDOW_NS = 5_000_000_000
_LEAST_NS = 500_000_000
"""Counters tick every 10 ms, so a shorter time says little."""

_STAT = Path("/proc/stat")
_CORE_LINE = re.compile(r"^cpu(\d+) ([\d ]+)$", re.MULTILINE)
_IDLE, _IOWAIT, _WITHOUT_GUESTS = 3, 4, 8  # columns
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")

Counters = Callable[[], tuple[float, float]]


def core_seconds() -> tuple[float, float]:
    """The seconds that this process' cores have computed, and all their seconds, since the boot."""
    return _seconds_of(os.sched_getaffinity(0), _STAT.read_text())


def _seconds_of(cores: Collection[int], stat: str) -> tuple[float, float]:
    """Those of ``cores``. ``stat``: the text of ``/proc/stat``.

    It has a line per core that is online, with its number: some numbers may be missing. Where it
    lacks one of ``cores``, a container shows its own cores only, numbered anew, and all count.
    """
    listed = {
        int(number): list(map(int, ticks.split())) for number, ticks in _CORE_LINE.findall(stat)
    }
    own = cores if listed.keys() >= set(cores) else listed.keys()
    busy = total = 0
    for core in own:
        # The time of virtual machines, behind these, is in "user", too.
        every = listed[core][:_WITHOUT_GUESTS]
        total += sum(every)
        busy += sum(every) - sum(every[_IDLE : _IOWAIT + 1])
    return busy / _TICKS_PER_S, total / _TICKS_PER_S


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
