"""The rows of experiments/ddp_buckets.py."""

from __future__ import annotations

import numpy as np
from ddp_buckets import row_of
from small_jobs import random_job, with_runtime

from byteprophet.job import Job
from byteprophet.job.strategy import DDP
from byteprophet.measure.servers import Measured
from byteprophet.replay.all_reduce import replay_job


def as_replayed(job: Job) -> Measured:
    """``job``, if it had run as its replay says."""
    times_ns = replay_job(job).iterations_ns
    return Measured(job, np.tile(np.append(0, np.cumsum(times_ns)), (job.workers, 1)))


def test_a_job_that_runs_as_replayed_is_predicted_exactly() -> None:
    job = random_job(3, 12)
    default = as_replayed(with_runtime(job, DDP, 25 << 20))
    small = as_replayed(with_runtime(job, DDP, 1 << 20))
    row = row_of("model", 1.0, default, small)
    buckets, predicted_buckets, predicted, measured, error, replay = row[2:8]
    assert buckets == predicted_buckets == str(len(small.job.strategy.buckets))
    assert predicted == measured
    assert float(error) == 0
    assert replay == "+0.0%"
    assert row_of("model", None, default, default)[4:6] == ["1.000", "1.000"]
