"""A job some of whose averages are delayed, because its user says so.

No builder and no search does this by itself: delayed averages change what a job computes
(``job/staleness.py``).
"""

from __future__ import annotations

from collections.abc import Sequence

from byteprophet.errors import UserError
from byteprophet.job import Job
from byteprophet.job.staleness import read_staleness, with_staleness
from byteprophet.job.strategy import OURS
from byteprophet.replay.all_reduce import with_strategy

OPTION = "--staleness"


def delayed(job: Job, wishes: Sequence[str]) -> Job:
    """``job`` with the delays of ``wishes``, each of which is "NAME=STEPS" or "PATTERN=STEPS".

    Raises ``UserError`` if the job's runtime cannot delay averages, or a wish is none.
    """
    if not wishes:
        return job
    if job.strategy.runtime not in OURS:
        able = ", ".join(OURS)
        raise UserError(f"{OPTION}: {job.strategy.runtime} delays no averages; {able} do")
    table: dict[str, int] = {}
    for wish in wishes:
        name, _, steps = wish.rpartition("=")
        if not name or not steps.isdecimal():
            raise UserError(f"{OPTION} {wish!r}: must be NAME=STEPS or PATTERN=STEPS")
        table[name] = int(steps)
    try:
        strategy = with_staleness(job.strategy, read_staleness(table, job.model))
    except ValueError as error:
        raise UserError(f"--{error}") from None
    return with_strategy(job, strategy)
