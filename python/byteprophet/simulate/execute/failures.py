"""How much of the time of a long job is lost to failures, and how often it is best to save it.

J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", Future
Generation Computer Systems 22 (2006), for failures that come at random (exponentially). A failure
loses what was computed since the last checkpoint. It may come at any time, also during a checkpoint
or a restart. For rare failures, the best interval is that of J. W. Young, "A first order
approximation to the optimum checkpoint interval", CACM 17 (1974): sqrt(2 checkpoint x MTBF).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, expm1, sqrt

from byteprophet.errors import UserError

_LONGEST = 700.0
"""exp of more is beyond a float."""
_MOST_S = 1e12


@dataclass(frozen=True)
class Failures:
    """Failures of a job, and what they cost. All times are in seconds.

    Attributes:
        mtbf_s: the mean time between failures of the whole job.
        checkpoint_s: the time of a checkpoint, in which nothing is computed.
        restart_s: the time from a failure until the job computes again.
    """

    mtbf_s: float
    checkpoint_s: float
    restart_s: float

    def __post_init__(self) -> None:
        """Raises ``UserError`` for times that cannot be."""
        for what, value in (
            ("time between failures of the job", self.mtbf_s),
            ("time of a checkpoint", self.checkpoint_s),
            ("time of a restart", self.restart_s),
        ):
            if not 0 < value < _MOST_S:
                raise UserError(
                    f"the {what} is {value:g} s: must be more than 0 and less than {_MOST_S:g} s"
                )

    @staticmethod
    def of_gpus(
        gpus: int, *, gpu_mtbf_hours: float, checkpoint_s: float, restart_s: float
    ) -> Failures:
        """Those of a job on ``gpus`` GPUs, each of which ends it after ``gpu_mtbf_hours``."""
        return Failures(gpu_mtbf_hours * 3600 / gpus, checkpoint_s, restart_s)

    @property
    def best_interval_s(self) -> float:
        """The time between checkpoints with which least is lost (Daly 2006, eq. 37)."""
        if self.checkpoint_s >= 2 * self.mtbf_s:
            return self.mtbf_s
        ratio = self.checkpoint_s / (2 * self.mtbf_s)
        first = sqrt(2 * self.checkpoint_s * self.mtbf_s)
        return first * (1 + sqrt(ratio) / 3 + ratio / 9) - self.checkpoint_s

    def goodput(self, interval_s: float) -> float:
        """The part of all time that is computed and kept (Daly 2006, eq. 20)."""
        mtbf_s = self.mtbf_s
        exponents = self.restart_s / mtbf_s, (interval_s + self.checkpoint_s) / mtbf_s
        if sum(exponents) > _LONGEST:
            return 0.0
        return interval_s / (mtbf_s * exp(exponents[0]) * expm1(exponents[1]))
