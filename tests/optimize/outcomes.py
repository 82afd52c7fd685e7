"""Outcomes of searches of jobs that were never run: their measured times are those of a replay."""

from __future__ import annotations

import numpy as np
from small_jobs import random_job, with_runtime

from byteprophet.job import Job
from byteprophet.measure.servers import Measured
from byteprophet.optimize.moves import Pass
from byteprophet.optimize.outcome import Outcome, outcome_of
from byteprophet.optimize.passes.policy import Policy
from byteprophet.optimize.passes.runtime import Runtime
from byteprophet.optimize.passes.tensor_fusion import TensorFusion
from byteprophet.optimize.search import search
from byteprophet.replay.predict import kind_of

from ..measure.test_servers import a_job


def without_servers() -> tuple[Outcome, tuple[Pass, ...]]:
    """One bucket holds all gradients; the search may do better."""
    return _outcome(
        with_runtime(random_job(3, 8), "allreduce", 100_000_000), (TensorFusion(), Runtime())
    )


def with_servers() -> tuple[Outcome, tuple[Pass, ...]]:
    """Under ``fifo``; the search may choose another policy."""
    return _outcome(a_job("fifo"), (Policy(),))


def no_better() -> tuple[Outcome, tuple[Pass, ...]]:
    """No pass, so nothing better."""
    return _outcome(random_job(3, 8), ())


def _outcome(job: Job, passes: tuple[Pass, ...]) -> tuple[Outcome, tuple[Pass, ...]]:
    """A budget of nothing: the starts of the passes are all that is looked at."""
    times_ns = kind_of(job).iterations_ns(job)
    starts_ns = np.tile(np.append(0, np.cumsum(times_ns)), (job.workers, 1))
    found = search(job, passes, budget_s=1e-6 if not passes else 2.0)
    return outcome_of(Measured(job, starts_ns), found), passes
