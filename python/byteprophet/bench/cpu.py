"""Measures how busy the whole machine was during a job.

A thread of the bench's own process, which is idle meanwhile, samples the machine's CPU times. This
adds nothing to the job's processes. The caller's thread reads the samples after ``stop``, which
joins the sampler; until then only the sampler touches them.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from itertools import pairwise
from types import TracebackType

import psutil

INTERVAL_S = 0.1
"""Ten kernel ticks."""

SATURATED = 0.95
"""If this share of the cores is in use during a sample, the machine counts as saturated."""


@dataclass(frozen=True)
class CpuShare:
    """``mean``: mean share of the cores in use; ``saturated``: share of time with all in use."""

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
        """The share between two times of the monotonic clock, extended by up to one sample each.

        Zeros if nothing was sampled.
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
        # Times are rounded: where all cores are busy, the two sums may differ in the last digit.
        mean = min(1.0, sum(busy for busy, _ in slices) / total)
        return CpuShare(mean, full / total)

    def _sample(self) -> None:
        while True:
            times = psutil.cpu_times()
            total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
            unused = times.idle + getattr(times, "iowait", 0.0)
            self._samples.append((time.monotonic_ns(), total - unused, total))
            if self._ended.wait(INTERVAL_S):
                return
