"""Tells when a profile is out of date: the job's batch size, model or frozen layers have changed.

Each iteration looked at is compared with the profile: the same tensors, and half of them no further
from their profiled ready time than a tolerance: 5% of the time from the first to the last gradient,
and no less than four spreads and a millisecond. Two such iterations in a row are drift; one is an
accident (a page fault, an evaluation, a busy machine).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from byteprophet.profile.iterations import Iteration

_SHARE = 0.05
_SPREADS = 4.0
_LEAST_NS = 1_000_000
CONFIRMATIONS = 2


@dataclass
class DriftDetector:
    """Compares iterations with what a profile says: ready times and spreads, by tensor number.

    ``suspects``: the iterations in a row, up to now, that did not fit.
    """

    tensors: npt.NDArray[np.uint64]  # ascending
    ready_ns: npt.NDArray[np.float64]
    spread_ns: npt.NDArray[np.float64]
    suspects: list[Iteration] = field(default_factory=list)

    @property
    def tolerance_ns(self) -> float:
        """How far half of the tensors may be off."""
        span_ns = float(self.ready_ns.max() - self.ready_ns.min())
        return max(_SHARE * span_ns, _SPREADS * float(np.median(self.spread_ns)), _LEAST_NS)

    def fits(self, iteration: Iteration) -> bool:
        """Whether ``iteration`` is as profiled."""
        if not np.array_equal(self.tensors, iteration.tensors):
            return False
        return float(np.median(np.abs(iteration.ready_ns - self.ready_ns))) <= self.tolerance_ns

    def drifted(self, iteration: Iteration) -> bool:
        """Whether, with ``iteration``, the profile is out of date."""
        if self.fits(iteration):
            self.suspects.clear()
        else:
            self.suspects.append(iteration)
        return len(self.suspects) >= CONFIRMATIONS
