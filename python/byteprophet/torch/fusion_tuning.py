"""The buffer size of an optimizer's groups, searched while it trains (``allreduce/tuner.py``).

After every step all ranks tell each other how long it took; rank 0 has the tuner learn the longest
of these times, and tells all which size comes next. Each exchange has a whole iteration to arrive,
so nobody waits for it, and all ranks change the size between the same two steps. When the search is
over, nothing is exchanged any more.

Threads: all is called by the thread that trains.
"""

from __future__ import annotations

import time

from byteprophet.allreduce.tuner import BufferTuner
from byteprophet.torch.agreement import Announcement, Collection
from byteprophet.torch.collective_synchroniser import CollectiveSynchroniser


class FusionTuning:
    """Of one optimizer; the methods are ``BetweenSteps``'."""

    def __init__(
        self, synchroniser: CollectiveSynchroniser, tuner: BufferTuner, timeout_s: float
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
        """Names are not declared here."""

    def restart(self) -> None:
        """The search goes on."""

    def drain(self) -> None:
        """An exchange that nobody looks at is nobody's loss."""

    def after_step(self, owner: str, agreed: bool) -> None:
        """Take in what has arrived, and tell the next."""
        if agreed and not self.settled:
            with self._synchroniser.deferring():
                self._go_on(owner)

    def _go_on(self, owner: str) -> None:
        self._steps += 1
        now_ns = time.monotonic_ns()
        took_ns, self._stepped_ns = now_ns - self._stepped_ns, now_ns
        if self._steps == 1:
            self._synchroniser.use_buffers(self._tuner.current)
            return
        if self._choice is not None:
            told = self._choice.wait(self._timeout_s)
            assert told is not None
            buffer_bytes, self.settled = told[0], bool(told[1])
            if buffer_bytes != self._synchroniser.buffer_bytes:
                self._synchroniser.use_buffers(buffer_bytes)
            if self.settled:
                return
        label = f"byteprophet.fusion.{owner}.{self._steps}"
        if self._times is not None:
            slowest_ns = max(self._times.wait(self._timeout_s))
            if self._synchroniser.rank == 0:
                self._tuner.observe(slowest_ns)
            choice = [self._tuner.current, int(self._tuner.done)]
            self._choice = Announcement(
                self._synchroniser, f"{label}.choice", choice, 2, "buffer size"
            )
        self._times = Collection(self._synchroniser, f"{label}.times", took_ns, "times of a step")
