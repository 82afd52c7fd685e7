"""Times a job under both exchanges of gradients: DistributedDataParallel's own, then ours.

Both phases have a fixed number of iterations, so that ranks change between the same two iterations.
An iteration counts only if gradients were exchanged since the last one, because one rank alone may
run further forward passes. The first iterations of a phase are not counted:
DistributedDataParallel makes its buckets anew after its first iteration, and ours plans its own
from eight iterations and adopts them some iterations later.

Each model counts its own iterations, and the first one that completes a phase ends it for all. An
iteration is the time between two forward passes whose gradients are exchanged, so micro-batches
under ``no_sync()`` belong to it. What else the script does now and then, such as an evaluation,
does not change the median.
"""

from __future__ import annotations

import functools
import time
import weakref
from collections.abc import Sequence
from itertools import pairwise
from statistics import median

_TIMED = 12
_OWN_UNCOUNTED, _OURS_UNCOUNTED = 4, 24


class Trial:
    """``is_ours``: who exchanges gradients, in this phase or, when ``is_over``, from now on."""

    def __init__(self) -> None:
        self.is_ours = False
        self.is_over = False
        self.outcome = ""
        self._own_ns = 0.0
        self._began_ns: weakref.WeakKeyDictionary[object, list[int]] = weakref.WeakKeyDictionary()
        self._progress: weakref.WeakKeyDictionary[object, int] = weakref.WeakKeyDictionary()

    def begin_iteration(self, model: object, progress: int) -> float | None:
        """Note that an iteration of ``model`` begins now, if ``progress`` is another than before.

        Returns how long an iteration takes, in nanoseconds, if it completes the phase.
        """
        if self._progress.get(model) == progress:
            return None
        self._progress[model] = progress
        began_ns = self._began_ns.setdefault(model, [])
        began_ns.append(time.monotonic_ns())
        return took_ns(began_ns, _OURS_UNCOUNTED if self.is_ours else _OWN_UNCOUNTED)

    def try_ours(self, own_ns: float) -> None:
        """Begin the second phase. In the first one, an iteration took ``own_ns``."""
        self._own_ns, self.is_ours = own_ns, True
        self._began_ns.clear()

    def times_ns(self, ours_ns: float) -> tuple[float, float]:
        """What an iteration takes on this rank: under DistributedDataParallel's own, and ours."""
        return self._own_ns, ours_ns

    def decide(self, own_ns: float, ours_ns: float, *, must_stay: bool = False) -> None:
        """End the trial. The arguments are the same on all ranks.

        With ``must_stay``, ours is kept, because a model needs it for its next backward pass.
        """
        self.is_over, self.is_ours = True, must_stay or ours_ns < own_ns
        own, ours = f"{own_ns / 1e6:.1f} ms", f"{ours_ns / 1e6:.1f} ms"
        self.outcome = f"an iteration takes {own} this way and {ours} with dear-planned"
        if self.is_ours:
            self.outcome = f"an iteration takes {ours} this way and {own} without byteprophet"
            if ours_ns >= own_ns:
                self.outcome += ", but a model has yet to run backward"
        self._began_ns.clear()

    def give_up(self, reason: str) -> None:
        """End the trial without a result: DistributedDataParallel exchanges gradients."""
        self.is_over, self.is_ours, self.outcome = True, False, reason
        self._began_ns.clear()


@functools.cache
def process_trial() -> Trial:
    """The trial of all models of this process whose faster exchange is to be kept."""
    return Trial()


def took_ns(began_ns: Sequence[int], uncounted: int) -> float | None:
    """The median iteration after the first ``uncounted``; None if there are not yet enough."""
    if len(began_ns) <= uncounted + _TIMED:
        return None
    return float(median(end - begin for begin, end in pairwise(began_ns[uncounted:])))
