"""Searches for an optimizer's bucket size while it trains (``allreduce/tuner.py``).

After every step, all ranks tell each other how long it took. Rank 0's tuner learns the longest of
these times, and rank 0 broadcasts the next size. Each message has a whole iteration to arrive, so
no rank waits for it. All ranks change the size between the same two steps. After the search, no
messages are sent.

Threads: the training thread calls everything.
"""

from __future__ import annotations

import time

from byteprophet.allreduce.tuner import BucketTuner
from byteprophet.torch.sync.agreement import Announcement, Collection
from byteprophet.torch.sync.collective_synchroniser import CollectiveSynchroniser


class FusionTuning:
    """Tunes one optimizer. ``BetweenSteps`` describes the methods."""

    def __init__(
        self, synchroniser: CollectiveSynchroniser, tuner: BucketTuner, timeout_s: float
    ) -> None:
        self._synchroniser = synchroniser
        self._tuner = tuner
        self._timeout_s = timeout_s
        self._steps = 0
        self._stepped_ns = 0
        self._times: Collection | None = None
        self._choice: Announcement | None = None
        self.settled = False

    def declare(self) -> None:
        """Do nothing: the messages declare their names themselves."""

    def restart(self) -> None:
        """Do nothing: the search goes on."""

    def drain(self) -> None:
        """Do nothing: a message in flight may be lost without harm."""

    def after_step(self, owner: str, agreed: bool) -> None:
        """Process the messages that have arrived, and send the next ones."""
        if agreed and not self.settled:
            with self._synchroniser.deferring():
                self._go_on(owner)

    def _go_on(self, owner: str) -> None:
        self._steps += 1
        now_ns = time.monotonic_ns()
        took_ns, self._stepped_ns = now_ns - self._stepped_ns, now_ns
        if self._steps == 1:
            self._synchroniser.use_buckets_of(self._tuner.current)
            return
        if self._choice is not None:
            told = self._choice.wait(self._timeout_s)
            assert told is not None
            bucket_bytes, self.settled = told[0], bool(told[1])
            if bucket_bytes != self._synchroniser.bucketing.bucket_bytes:
                self._synchroniser.use_buckets_of(bucket_bytes)
            if self.settled:
                return
        label = f"byteprophet.fusion.{owner}.{self._steps}"
        if self._times is not None:
            slowest_ns = max(self._times.wait(self._timeout_s))
            if self._synchroniser.rank == 0:
                self._tuner.observe(slowest_ns)
            choice = [self._tuner.current, int(self._tuner.done)]
            self._choice = Announcement(
                self._synchroniser, f"{label}.choice", choice, 2, "bucket size"
            )
        self._times = Collection(self._synchroniser, f"{label}.times", took_ns, "times of a step")
