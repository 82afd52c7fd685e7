"""From transfers to iterations: when each tensor became ready, as the profiler wants it.

Only gradients count: what has a place in the forward order (priority below 0). A tensor is ready
when its first partition is. An iteration is complete when something of a later one was pulled, or
when two more have begun: the one in between has run its forward with all that came back.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from byteprophet.timeline.tables import TRANSFER, Transfers, tensor_of


@dataclass(frozen=True)
class Iteration:
    """The gradients of one iteration; arrays have an entry per tensor, by ascending number.

    ``ready_ns`` counts from ``first_ready_ns``, which is on the monotonic clock.
    """

    number: int
    first_ready_ns: int
    tensors: npt.NDArray[np.uint64]
    ready_ns: npt.NDArray[np.int64]
    size_bytes: npt.NDArray[np.int64]
    priority: npt.NDArray[np.int32]

    @property
    def last_ready_ns(self) -> int:
        """On the monotonic clock."""
        return self.first_ready_ns + int(self.ready_ns.max())


def summarize(number: int, transfers: Transfers) -> Iteration | None:
    """The iteration that all of ``transfers`` belong to; None if no gradient is among them."""
    ranked = transfers[transfers["priority"] < 0]
    if not len(ranked):
        return None
    tensors, first, inverse = np.unique(tensor_of(ranked), return_index=True, return_inverse=True)
    ready_ns = np.full(len(tensors), np.iinfo(np.int64).max)
    np.minimum.at(ready_ns, inverse, ranked["ready_ns"])
    size_bytes = np.zeros(len(tensors), np.int64)
    np.add.at(size_bytes, inverse, ranked["size_bytes"].astype(np.int64))
    begin_ns = int(ready_ns.min())
    return Iteration(
        number=number,
        first_ready_ns=begin_ns,
        tensors=tensors,
        ready_ns=ready_ns - begin_ns,
        size_bytes=size_bytes,
        priority=ranked["priority"][first],
    )


class Collector:
    """Sorts transfers, as they come, into iterations, and hands those out that are complete."""

    def __init__(self) -> None:
        self._open = np.empty(0, TRANSFER)
        self._done = -1  # the last iteration handed out; what comes late for it is left out

    def take(self, transfers: Transfers, current: int) -> Iterator[Iteration]:
        """Iterations that are complete now, in order; ``current``: the one that has begun last."""
        kept = np.concatenate([self._open, transfers[transfers["iteration"] > max(0, self._done)]])
        latest = int(kept["iteration"].max(initial=0))
        numbers = kept["iteration"].astype(np.int64)
        complete = (numbers < latest) | (numbers + 2 <= current)
        self._open = kept[~complete]
        for number in np.unique(numbers[complete]).tolist():
            self._done = number
            iteration = summarize(number, kept[numbers == number])
            if iteration is not None:
                yield iteration
