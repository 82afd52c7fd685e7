"""How busy the whole machine was while a job was measured.

One thread samples the machine's CPU times from the bench's own process, which is idle meanwhile:
nothing is added to the job's processes. The samples are read by the caller's thread after ``stop``,
which joins the sampler; until then only the sampler touches them.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from itertools import pairwise
from types import TracebackType

import psutil

INTERVAL_S = 0.1
"""Ten of the ticks in which the kernel counts."""

SATURATED = 0.95
"""A core share from which there was nothing left to have in a slice of time."""


@dataclass(frozen=True)
class CpuShare:
    """Of all cores: ``mean`` share in use, and share of the time in which all of it was."""

    mean: float
    saturated: float


class CpuWatch:
    """Samples from entry to exit."""

    def __init__(self) -> None:
        self._samples: list[tuple[int, float, float]] = []  # monotonic ns, busy and all seconds
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="cpu-watch", daemon=True)

    def __enter__(self) -> CpuWatch:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join(timeout=10 * INTERVAL_S + 5)

    def share(self, begin_ns: int, end_ns: int) -> CpuShare:
        """Between two moments of the monotonic clock, up to a sample before and after.

        Zeros where nothing was sampled.
        """
        slices = [
            (after[1] - before[1], after[2] - before[2])
            for before, after in pairwise(self._samples)
            if after[0] > begin_ns and before[0] < end_ns and after[2] > before[2]
        ]
        if not slices:
            return CpuShare(0.0, 0.0)
        total = sum(whole for _, whole in slices)
        full = sum(whole for busy, whole in slices if busy >= SATURATED * whole)
        return CpuShare(sum(busy for busy, _ in slices) / total, full / total)

    def _sample(self) -> None:
        while True:
            times = psutil.cpu_times()
            total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
            unused = times.idle + getattr(times, "iowait", 0.0)
            self._samples.append((time.monotonic_ns(), total - unused, total))
            if self._ended.wait(INTERVAL_S):
                return
