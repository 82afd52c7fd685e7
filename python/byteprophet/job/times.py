"""Times of the workers' computation, as arrays: W workers, I iterations, P parameters in order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]


def iteration_times_ns(begins_ns: Int64Array, ends_ns: Int64Array) -> Int64Array:
    """How long each iteration of a job takes, shape (iterations,).

    ``begins_ns``, ``ends_ns``: of each worker's iterations, (workers, iterations). An iteration
    lasts from when the last worker begins it to when the last one ends it, and so begins the next.
    The sum of all is then what training takes. The slowest of all workers' own times would add up
    to more, because workers are late in turn.
    """
    times_ns: Int64Array = ends_ns.max(axis=0) - begins_ns.max(axis=0)
    return times_ns


@dataclass(frozen=True, eq=False)
class Times:
    """Nanoseconds of computation. Waits are left out.

    ``forward_ns`` (W, I, P): from where the forward pass needs parameter p to where it needs the
    next one. ``ready_ns`` (W, I, P): when the gradient of p is complete, from the start of the
    backward pass. ``backward_ns`` (W, I): from there to the start of the next iteration.
    ``update_ns`` (W, I, P): the optimizer's update of p, or of this worker's shard of p.

    An iteration may have several forward and backward passes. ``ready_ns`` and ``backward_ns`` are
    those of the last one. All that lies between the first forward pass and the last backward pass
    is part of the ``forward_ns`` of the last parameter, because the first forward pass alone waits
    for updates. ``between_ns`` (W, I) says how much that is if the script itself accumulates
    gradients; None: it does not. ``passes``: how many passes the strategy makes of one.
    ``waits_for_all``: the script needs all averages of an iteration before it updates, as
    ``clip_grad_norm_`` does, so what is behind the last gradient begins when all have arrived.
    """

    forward_ns: Int64Array
    ready_ns: Int64Array
    backward_ns: Int64Array
    update_ns: Int64Array
    passes: int = 1
    between_ns: Int64Array | None = None
    waits_for_all: bool = False

    def __post_init__(self) -> None:
        shape = self.forward_ns.shape
        if len(shape) != 3 or self.ready_ns.shape != shape or self.update_ns.shape != shape:
            raise ValueError(
                f"times of shapes {shape}, {self.ready_ns.shape}, {self.update_ns.shape}: must all "
                "be (workers, iterations, parameters)"
            )
        if self.backward_ns.shape != shape[:2]:
            raise ValueError(f"backward_ns of shape {self.backward_ns.shape}: must be {shape[:2]}")
        if self.between_ns is not None and self.between_ns.shape != shape[:2]:
            raise ValueError(f"between_ns of shape {self.between_ns.shape}: must be {shape[:2]}")

    @property
    def workers(self) -> int:
        """W."""
        return int(self.forward_ns.shape[0])

    @property
    def iterations(self) -> int:
        """I."""
        return int(self.forward_ns.shape[1])

    def scaled(self, factor: float) -> Times:
        """All times multiplied by ``factor``, rounded."""
        return self._each(lambda times_ns: np.rint(times_ns * factor).astype(np.int64))

    def of_workers(self, workers: int) -> Times:
        """The times of ``workers`` workers; beyond the recorded ones they repeat.

        A worker that is there twice would never be late or early against itself, so its iterations
        are taken in another order the second time.
        """
        recorded = self.workers
        return self._each(
            lambda times_ns: np.stack(
                [np.roll(times_ns[n % recorded], n // recorded, axis=0) for n in range(workers)]
            )
        )

    def only_workers(self, chosen: Int64Array) -> Times:
        """The times of the workers with these indices."""
        return self._each(lambda times_ns: times_ns[chosen])

    def only_iterations(self, chosen: Int64Array) -> Times:
        """The times of the iterations with these indices."""
        return self._each(lambda times_ns: times_ns[:, chosen])

    def medians(self, worker: int) -> tuple[Int64Array, Int64Array, int, Int64Array]:
        """Medians over a worker's iterations: forward, ready (P,), backward, update (P,)."""
        forward_ns, ready_ns, update_ns = (
            np.median(times_ns[worker], axis=0).astype(np.int64)
            for times_ns in (self.forward_ns, self.ready_ns, self.update_ns)
        )
        return forward_ns, ready_ns, int(np.median(self.backward_ns[worker])), update_ns

    def between_median(self, worker: int) -> Int64Array | None:
        """The median of a worker's ``between_ns``, (1, 1)."""
        if self.between_ns is None:
            return None
        return np.array([[np.median(self.between_ns[worker])]]).astype(np.int64)

    def _each(self, change: Callable[[Int64Array], Int64Array]) -> Times:
        return replace(
            self,
            forward_ns=change(self.forward_ns),
            ready_ns=change(self.ready_ns),
            backward_ns=change(self.backward_ns),
            update_ns=change(self.update_ns),
            between_ns=None if self.between_ns is None else change(self.between_ns),
        )
