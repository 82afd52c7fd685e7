"""The profiler of a worker: an observer's consumer that keeps the job's profile up to date.

It profiles: takes every iteration and the forward times, until ready times are known well enough
(``estimate.py``), after 5 to 50 iterations, and saves. Should the job change meanwhile, it starts
anew. Then it watches: one iteration in 4, compared with the profile (``drift.py``), no forward
times. On drift it profiles again, starting from the iterations that showed it, for at most 6, and
saves the next number. The job does not stop for any of it.

The first iteration with a set of tensors is left out: BytePS makes the keys on the servers then. So
is, of the second, the forward, as forward order is agreed at the end of the first.

All in the observer's thread. Forward times come from the training thread, through ``Stopwatch``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from byteprophet.observe.observer import Job
from byteprophet.profile.drift import CONFIRMATIONS, DriftDetector
from byteprophet.profile.estimate import Forward, Sample, detector, estimate, is_enough
from byteprophet.profile.iterations import Collector, Iteration
from byteprophet.profile.model import Profile
from byteprophet.timeline.tables import Transfers

LEAST, MOST = 5, 50
LEAST_FORWARDS = 3
MOST_AGAIN = 6  # after drift: soon rather than exact
WATCHED = 4  # every so many iterations


class Stopwatch(Protocol):
    """Measures forward passes in the training thread; see torch/recording/stopwatch.py."""

    def set_enabled(self, on: bool) -> None:
        """Measure from the next iteration on, or no longer."""

    def drain(self) -> Sequence[Forward]:
        """The forward passes measured since the last call."""


@dataclass
class Profiler:
    """Profiles ``job``; ``current`` tells the number of the current iteration.

    ``found`` is called with every new profile.
    """

    job: Job
    scheduler: str
    current: Callable[[], int]
    stopwatch: Stopwatch | None
    found: Callable[[Profile], None]

    def __post_init__(self) -> None:
        self.every = 1
        self._collector = Collector()
        self._forwards: dict[int, Forward] = {}
        self._samples: list[Sample] = []
        self._last: Iteration | None = None
        self._detector: DriftDetector | None = None
        self._number = 0
        self._switched = -2  # the current iteration when ``every`` was last changed
        self._measure(True)

    def take(self, transfers: Transfers) -> None:
        """Learn from ``transfers``."""
        if self.stopwatch is not None:
            for forward in self.stopwatch.drain():
                self._forwards[forward.iteration] = forward
        before, current = self.every, self.current()
        for iteration in self._collector.take(transfers, current):
            if self._is_partial(iteration):
                continue
            if self._detector is None:
                self._profile(iteration)
            elif self._detector.drifted(iteration):
                self._begin_again(self._detector.suspects)
            else:
                self.every = 1 if self._detector.suspects else WATCHED
        if self.every != before:
            self._switched = current

    def _is_partial(self, iteration: Iteration) -> bool:
        """Whether ``every`` was changed in the midst of it, as far as can be known here.

        It comes into force a little after ``take``, maybe in the next iteration. What both take is
        whole.
        """
        return 0 <= iteration.number - self._switched <= 1 and iteration.number % WATCHED != 0

    def close(self) -> None:
        """The job was too short for a full profile: save what there is."""
        if self._detector is None and self._samples:
            self._finish()
        self._measure(False)

    def _begin_again(self, seen: Sequence[Iteration]) -> None:
        self.every = 1
        self._detector = None
        self._measure(True)
        for iteration in seen:
            self._profile(iteration)

    def _profile(self, iteration: Iteration) -> None:
        last, self._last = self._last, iteration
        forward = self._forwards.pop(iteration.number, None)
        for number in [n for n in self._forwards if n < iteration.number]:
            del self._forwards[number]
        if last is None or not np.array_equal(last.tensors, iteration.tensors):
            self._samples = []
            return
        if not np.array_equal(last.priority, iteration.priority):
            forward = None
        self._samples.append(Sample(iteration, forward))
        self._drop_if_changed()
        if self._is_known():
            self._finish()

    def _is_known(self) -> bool:
        """Whether the samples will do, also for forward where the front measures that."""
        count = len(self._samples)
        forwards = sum(sample.forward is not None for sample in self._samples)
        if count >= MOST:
            return True
        if count < LEAST or (self.stopwatch is not None and forwards < LEAST_FORWARDS):
            return False
        return is_enough(self._samples) or (self._number > 0 and count >= MOST_AGAIN)

    def _drop_if_changed(self) -> None:
        """Forget what was before the last iterations, if these are unlike it."""
        before, latest = self._samples[:-CONFIRMATIONS], self._samples[-CONFIRMATIONS:]
        if len(before) >= LEAST:
            known = detector(before)
            if not any(known.fits(sample.gradients) for sample in latest):
                self._samples = latest

    def _finish(self) -> None:
        self._number += 1
        profile = estimate(
            self._samples,
            self.job.names,
            number=self._number,
            scheduler=self.scheduler,
            workers=self.job.size,
            rank=self.job.rank,
        )
        self._detector = detector(self._samples)
        self._samples = []
        self.every = WATCHED
        self._measure(False)
        self.found(profile)

    def _measure(self, on: bool) -> None:
        if self.stopwatch is not None:
            self.stopwatch.set_enabled(on)
