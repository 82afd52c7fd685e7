"""Records when the gradients of an iteration became ready on this rank, by the host's clock.

On a GPU, the host submits a gradient before the GPU has computed it.

Threads: the synchroniser's lock guards everything here. ``last`` is replaced as a whole.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Iteration:
    """When each gradient was submitted and ``flush`` was called, relative to the first gradient.

    ``first_ns``: when that was submitted, on the monotonic clock.
    """

    ready_ns: Mapping[str, int]
    backward_ns: int
    first_ns: int


class Readiness:
    """The ready times of one optimizer; ``last`` is the iteration that was flushed last."""

    def __init__(self) -> None:
        self.last = Iteration({}, 0, 0)
        self._seen_ns: dict[str, int] = {}

    def note(self, parameter: str) -> None:
        """Note that the gradient of ``parameter`` is submitted now."""
        self._seen_ns[parameter] = time.monotonic_ns()

    def flush(self) -> None:
        """Note the end of backward. Does nothing if no gradient was submitted since the last."""
        if self._seen_ns:
            first_ns, now_ns = min(self._seen_ns.values()), time.monotonic_ns()
            ready_ns = {name: ns - first_ns for name, ns in self._seen_ns.items()}
            self.last = Iteration(ready_ns, now_ns - first_ns, first_ns)
            self._seen_ns = {}
