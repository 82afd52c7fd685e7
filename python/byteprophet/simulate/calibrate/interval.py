"""The interval that holds the iteration time in nine jobs of ten.

It has two causes. The constants of the cluster are known only so well; their uncertainties are
carried through by simulating with others (``sensitivity.py``). And the simulator itself is wrong,
even with the right constants: what it leaves out makes jobs slower more often than faster, so this
part is wider above than below.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from byteprophet.simulate.calibrate.sensitivity import log_slopes
from byteprophet.simulate.clusters.constants import covariance, uncertain
from byteprophet.simulate.clusters.description import Cluster
from byteprophet.simulate.execute.conditions import ALIKE, Conditions
from byteprophet.simulate.execute.result import Simulated

LEVEL = 0.9
"""The share of jobs that are in the interval."""
_DEVIATIONS = 1.6449
"""Half the width of such an interval of a normal distribution, in standard deviations."""
MODEL_FASTER, MODEL_SLOWER = 0.03, 0.08
"""The simulator's own error, as a part of the time: standard deviations of jobs that are faster,
and slower, than predicted (``experiments/groundtruth_intervals.py``)."""


@dataclass(frozen=True)
class Influence:
    """A constant's part in the interval.

    Attributes:
        name: the constant.
        value: its value.
        uncertainty: its relative standard deviation.
        source: where it comes from, in words.
        slope: by how many percent the time changes if the constant does by one.
    """

    name: str
    value: float
    uncertainty: float
    source: str
    slope: float

    @property
    def part(self) -> float:
        """The relative standard deviation of the time that this constant alone causes."""
        return abs(self.slope) * self.uncertainty


@dataclass(frozen=True)
class Interval:
    """From when to when nine jobs in ten end an iteration.

    Attributes:
        low_ns: the shortest time.
        high_ns: the longest time.
        of_constants: the relative standard deviation that all constants cause together.
        influences: each constant's part, the largest first.
    """

    low_ns: int
    high_ns: int
    of_constants: float
    influences: tuple[Influence, ...]

    def as_json(self) -> dict[str, Any]:
        """The figures as plain data."""
        return {
            "low_ns": self.low_ns,
            "high_ns": self.high_ns,
            "level": LEVEL,
            "of_constants": self.of_constants,
            "of_model": [MODEL_FASTER, MODEL_SLOWER],
            "constants": [{**asdict(one), "part": one.part} for one in self.influences],
        }


def interval(result: Simulated, cluster: Cluster, conditions: Conditions = ALIKE) -> Interval:
    """The interval of a result's iteration time. ``conditions``: those of the result."""
    some = uncertain(cluster)
    names = [one.name for one in some]
    base = float(np.log(result.iteration_ns))
    slopes = log_slopes(result.program, cluster, base, names, conditions)
    variance = float(slopes @ covariance(cluster, some) @ slopes)
    down, up = (
        _DEVIATIONS * np.sqrt(variance + model**2) for model in (MODEL_FASTER, MODEL_SLOWER)
    )
    influences = [
        Influence(one.name, one.value, one.uncertainty, one.source, float(slope))
        for one, slope in zip(some, slopes, strict=True)
    ]
    return Interval(
        round(result.iteration_ns * np.exp(-down)),
        round(result.iteration_ns * np.exp(up)),
        float(np.sqrt(max(0.0, variance))),
        tuple(sorted(influences, key=lambda one: -one.part)),
    )
