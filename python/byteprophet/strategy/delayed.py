"""A job some of whose averages are delayed, because its user says so.

No builder and no search does this by itself: delayed averages change what a job computes
(``job/staleness.py``).

There are two ways to buckets. Either those of the job are divided, or its runtime plans the
gradients that are not delayed as if there were no others. The latter is often better, because a
plan for all gradients leaves time for the one that is now out of the way. But it does not know that
the others share the link with it. So both are replayed, and the faster one is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from byteprophet.allreduce.strategies import best_strategy, timing_of
from byteprophet.errors import UserError
from byteprophet.input_files import whole_number
from byteprophet.job import Bucket, Job, Strategy
from byteprophet.job.staleness import divided, read_staleness, steps_by_name, with_staleness
from byteprophet.job.strategy import OURS, Delay
from byteprophet.replay.all_reduce import replay_job, with_strategy

OPTION = "--staleness"


def delayed(job: Job, wishes: Sequence[str]) -> Job:
    """``job`` with the delays of ``wishes``, each of which is "NAME=STEPS" or "PATTERN=STEPS".

    Raises ``UserError`` if delays under the job's runtime cannot be predicted, or a wish is none.
    """
    if not wishes:
        return job
    if job.strategy.runtime not in OURS:
        able = ", ".join(OURS)
        raise UserError(
            f"{OPTION}: of {job.strategy.runtime}, delays cannot be predicted; of {able}, they can"
        )
    table: dict[str, int] = {}
    for wish in wishes:
        name, _, text = wish.rpartition("=")
        steps = whole_number(text)
        if not name or steps is None:
            raise UserError(f"{OPTION} {wish!r:.100}: must be NAME=STEPS or PATTERN=STEPS")
        if table.setdefault(name, steps) != steps:
            raise UserError(
                f"{OPTION} {wish!r:.100}: {table[name]} was given before: give one of the two"
            )
    try:
        delays = read_staleness(table, job.model)
        strategies = [with_staleness(job.strategy, delays)]
    except ValueError as error:
        raise UserError(f"--{error}") from None
    alone = {each.parameter for each in delays} | job.strategy.compressor_of.keys()
    if delays and len(alone) < len(job.model) and not job.strategy.bucket_bytes:
        strategies.append(_planned_around(job, delays))
    jobs = [with_strategy(job, strategy) for strategy in strategies]
    return jobs[0] if len(jobs) == 1 else min(jobs, key=_iteration_ns)


def _iteration_ns(job: Job) -> int:
    """The mean time of an iteration."""
    return int(np.mean(replay_job(job).iterations_ns))


def _planned_around(job: Job, delays: Sequence[Delay]) -> Strategy:
    """The runtime's plan for the other gradients; in front of it what is delayed, in its buckets.

    Compressed gradients are in no bucket.

    A delayed bucket's halves come before those of the first bucket that forward needs later.
    """
    steps = steps_by_name(delays)
    others = steps.keys() | job.strategy.compressor_of.keys()
    timing = timing_of(job)
    timing = timing.replaced([[each] * (each.name not in others) for each in timing.parameters])
    planned = best_strategy(timing, job.strategy.runtime)
    parts = divided(job.strategy.buckets, steps)
    late = [part for part in parts if part.parameters[0] in steps]
    places = job.model.places

    def needed(bucket: Bucket) -> int:
        return min(places[name] for name in bucket.parameters)

    halves: list[tuple[int, int, int, int, bool]] = []  # place, late first, need, bucket, gathers
    for number, bucket in enumerate(planned.buckets):
        halves.append((bucket.reduce_place, 1, 0, number, False))
        halves.append((bucket.gather_place, 1, 0, number, True))
    last = 2 * len(planned.buckets)
    for number, bucket in enumerate(late, start=len(planned.buckets)):
        need = needed(bucket)
        later = [each for each in planned.buckets if needed(each) > need]
        reduce_place = min((each.reduce_place for each in later), default=last)
        gather_place = min((each.gather_place for each in later), default=last)
        halves.append((reduce_place, 0, need, number, False))
        halves.append((max(reduce_place, gather_place), 0, need, number, True))
    place_of = {half[3:]: place for place, half in enumerate(sorted(halves))}
    buckets = tuple(
        replace(bucket, reduce_place=place_of[number, False], gather_place=place_of[number, True])
        for number, bucket in enumerate([*planned.buckets, *late])
    )
    return replace(job.strategy, buckets=buckets, staleness=tuple(delays))
