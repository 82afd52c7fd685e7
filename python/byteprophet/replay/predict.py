"""Predicts the iteration time of a recorded job by replaying it, unchanged or with changes.

A prediction is the median of the replayed iterations. The first iterations,
in which policies do not know the job and the network yet, are excluded, both from the replay and
from the measurement. The interval of a prediction contains nine in ten replayed iterations. It is
widened by the replay's error for the unchanged job, because predictions of changes cannot be
expected to be more accurate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from byteprophet.bound import bound_of_predicted_ns
from byteprophet.job import Job
from byteprophet.job.strategy import BYTEPS, MIXED
from byteprophet.measure.servers import Measured
from byteprophet.order_statistics import median, quantile
from byteprophet.replay.kinds import JobKind
from byteprophet.replay.what_if import Changes

_WARMUP = 5  # iterations to exclude, but at most half of them
LOW, HIGH = 0.05, 0.95
"""The quantiles of iteration times between which an interval lies."""


@dataclass(frozen=True)
class Prediction:
    """The predicted iteration time of a job.

    Attributes:
        job: the job, with changes.
        median_ns: the median iteration time.
        low_ns: the lower end of the interval that contains nine in ten iterations.
        high_ns: its upper end.
        recorded_ns: the median of the recorded iterations.
        measured_ns: the same, or None if anything was changed.
        replay_error: the relative error of the replay of the unchanged job.
        daydream_ns: the time if each tensor were alone on the link, as in Daydream (Zhu et al.,
            ATC 2020).
        bound_ns: the time that no schedule is below.
        counted: the number of recorded iterations, the last ones, that ``recorded_ns`` is of.
    """

    job: Job
    median_ns: int
    low_ns: int
    high_ns: int
    recorded_ns: int
    measured_ns: int | None
    replay_error: float
    daydream_ns: int
    bound_ns: int
    counted: int

    @property
    def error(self) -> float | None:
        """Predicted over measured time, minus 1, or None if anything was changed."""
        return None if self.measured_ns is None else self.replay_error

    def as_json(self) -> dict[str, Any]:
        """The table that ``byteprophet replay --json`` prints (docs/formats.md)."""
        return {
            "schema": 1,
            "iteration_ns": {"median": self.median_ns, "low": self.low_ns, "high": self.high_ns},
            "recorded_ns": self.recorded_ns,
            "measured_ns": self.measured_ns,
            "error": self.error,
            "replay_error": self.replay_error,
            "daydream_ns": self.daydream_ns,
            "bound_ns": self.bound_ns,
            "assumptions": kind_of(self.job).assumptions(self.job),
        }


def predict(measured: Measured, changes: Changes) -> Prediction:
    """Predict how long iterations of the measured job would take with ``changes``."""
    kind = kind_of(measured.job)
    warmup = warmup_of(measured)
    was_ns = int(median(measured.iteration_ns[warmup:]))
    same_ns = kind.iterations_ns(measured.job)[warmup:]
    replay_error = median(same_ns) / was_ns - 1
    job = kind.change(measured.job, changes)
    times_ns = same_ns if changes == Changes() else kind.iterations_ns(job)[warmup:]
    low_ns, high_ns = quantile(times_ns, LOW), quantile(times_ns, HIGH)
    unsure = abs(replay_error)
    return Prediction(
        job=job,
        median_ns=int(median(times_ns)),
        low_ns=max(0, int(low_ns * (1 - unsure))),
        high_ns=int(high_ns * (1 + unsure)),
        recorded_ns=was_ns,
        measured_ns=was_ns if changes == Changes() else None,
        replay_error=replay_error,
        daydream_ns=kind.daydream_ns(job),
        bound_ns=bound_of_predicted_ns(job, int(median(times_ns)), warmup_in(job, measured)),
        counted=measured.job.iterations - warmup,
    )


def warmup_of(measured: Measured) -> int:
    """The number of recorded iterations at the start that are excluded."""
    return max(min(_WARMUP, measured.job.iterations // 2), measured.settled_from)


def warmup_in(job: Job, measured: Measured) -> int:
    """The same of ``job``, which may have fewer of the iterations that were recorded.

    As many iterations at the end count as of the recorded job, if there are as many.
    """
    counted = measured.job.iterations - warmup_of(measured)
    return max(min(_WARMUP, job.iterations // 2), job.iterations - counted)


def kind_of(job: Job) -> JobKind:
    """The functions for jobs like ``job``. Those for other kinds are not imported."""
    if job.strategy.runtime == BYTEPS:
        from byteprophet.replay.ps import PS

        return PS
    if job.strategy.runtime == MIXED:
        from byteprophet.replay.mixed import MIXED_KIND

        return MIXED_KIND
    from byteprophet.replay.all_reduce import ALL_REDUCE

    return ALL_REDUCE
