"""A job that averages parameters at times, because its user says so (local SGD).

No builder and no search does this by itself: it changes what a job computes (docs/staleness.md).
"""

from __future__ import annotations

from dataclasses import replace

from byteprophet.errors import UserError
from byteprophet.job import Job
from byteprophet.job.staleness import with_local_sgd
from byteprophet.job.strategy import OURS
from byteprophet.job.strategy_file import MOST_LOCAL_STEPS
from byteprophet.replay.all_reduce import with_updates

OPTION = "--local-sgd"


def local(job: Job, steps: int | None) -> Job:
    """``job`` with an average of parameters after so many steps; None: as it is.

    Raises ``UserError`` if the job's runtime averages none, or changes its gradients otherwise.
    """
    if steps is None:
        return job
    strategy = job.strategy
    if not 2 <= steps <= MOST_LOCAL_STEPS:
        raise UserError(f"{OPTION} {steps}: must be a number of steps from 2 to {MOST_LOCAL_STEPS}")
    if strategy.runtime not in OURS:
        able = ", ".join(OURS)
        raise UserError(f"{OPTION}: {strategy.runtime} averages no parameters; {able} do")
    if strategy.changes_gradients or strategy.staleness:
        raise UserError(
            f"{OPTION}: no gradients are averaged, so they cannot be cast, compressed, accumulated "
            "or delayed"
        )
    return with_updates(replace(job, strategy=with_local_sgd(strategy, steps)), job)
