"""The iteration time of a recorded job, replayed as it was or with changes, beside simpler answers.

A prediction is the median of the replayed iterations of the slowest worker. The first ones, in
which policies do not know job and network yet, are left out, in the measured job too. Its interval
holds nine in ten replayed iterations, and is wider by the error that the replay of the unchanged
job has: who could not say what was will not know better what would be.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from byteprophet.graph.measured import Measured
from byteprophet.graph.ps_job import PsJob
from byteprophet.graph.ring_job import RingJob
from byteprophet.replay.kinds import JobKind
from byteprophet.replay.ps import PS
from byteprophet.replay.ring import RING
from byteprophet.replay.what_if import Changes

_WARMUP = 5  # iterations, but at most half of them
_LOW, _HIGH = 0.05, 0.95


@dataclass(frozen=True)
class Prediction:
    """``median_ns`` of an iteration, and the interval in which nine in ten are.

    ``measured_ns``, ``error``: of the job as it was recorded; None where anything was changed.
    ``replay_error``: that of the unchanged job. ``daydream_ns``: each tensor alone on the link, as
    Daydream (Zhu et al., ATC 2020) has it. ``bound_ns``: no schedule is faster.
    """

    job: PsJob | RingJob
    median_ns: int
    low_ns: int
    high_ns: int
    measured_ns: int | None
    replay_error: float
    daydream_ns: int
    bound_ns: int

    @property
    def error(self) -> float | None:
        """Predicted over measured, less 1."""
        return None if self.measured_ns is None else self.replay_error

    def as_json(self) -> dict[str, Any]:
        """As ``byteprophet replay --json`` prints it (docs/formats.md)."""
        return {
            "schema": 1,
            "iteration_ns": {"median": self.median_ns, "low": self.low_ns, "high": self.high_ns},
            "measured_ns": self.measured_ns,
            "error": self.error,
            "replay_error": self.replay_error,
            "daydream_ns": self.daydream_ns,
            "bound_ns": self.bound_ns,
            "assumptions": _kind_of(self.job).assumptions(self.job),
        }


def predict(measured: Measured, changes: Changes) -> Prediction:
    """How long iterations of the measured job take with ``changes``."""
    kind = _kind_of(measured.job)
    warmup = max(min(_WARMUP, measured.job.iterations // 2), measured.settled_from)
    was_ns = int(np.median(measured.iteration_ns[warmup:]))
    same_ns = kind.iterations_ns(measured.job)[warmup:]
    replay_error = float(np.median(same_ns)) / was_ns - 1
    job = kind.change(measured.job, changes)
    times_ns = same_ns if changes == Changes() else kind.iterations_ns(job)[warmup:]
    low_ns, high_ns = np.quantile(times_ns, (_LOW, _HIGH))
    unsure = abs(replay_error)
    return Prediction(
        job=job,
        median_ns=int(np.median(times_ns)),
        low_ns=max(0, int(low_ns * (1 - unsure))),
        high_ns=int(high_ns * (1 + unsure)),
        measured_ns=was_ns if changes == Changes() else None,
        replay_error=replay_error,
        daydream_ns=kind.daydream_ns(job),
        bound_ns=kind.bound_ns(job),
    )


def _kind_of(job: PsJob | RingJob) -> JobKind[Any]:
    return RING if isinstance(job, RingJob) else PS
