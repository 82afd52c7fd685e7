"""Lets what a search has found travel compressed, as a user's rules say, if that is faster.

No pass compresses gradients, because passes change buckets, and compressed gradients are in none.
So it is the last decision: the best job of each family is replayed with compressors, too. It must
be asked for, because it changes the course of a training (docs/compression.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from byteprophet.errors import UserError
from byteprophet.job import Job
from byteprophet.job.strategy import OURS
from byteprophet.measure.run import Run
from byteprophet.optimize.evaluate import Evaluator
from byteprophet.optimize.gradient_changes import with_reduce_dtype
from byteprophet.optimize.recorded import OF_A_BENCH, why_not_distributed
from byteprophet.optimize.search import LEAST_GAIN, Candidate, Decision, Found
from byteprophet.replay.under import check_compresses

COMPRESSION = "compression"
"""What decisions call it, in the place of a pass."""


def check_may_compress(run: Run, job: Job, option: str, budget_bytes: int | None) -> None:
    """Raise ``UserError`` if the gradients of ``job``, which ``run`` recorded, mean nothing.

    Also if there is a memory budget, or if nothing compresses those of such a script or runtime.
    ``option`` names what asks for it.
    """
    if (run.directory / OF_A_BENCH).exists():
        raise UserError(f"{option}: {run.directory} is a paced job, whose gradients mean nothing")
    if budget_bytes is not None:
        raise UserError(f"{option}: what its errors take of a memory budget is not known")
    why_not = why_not_distributed(run, job)
    if why_not is not None:
        raise UserError(f"{option}: {why_not}")
    check_compresses(option, job.strategy.runtime)


def compressed_where_faster(
    found: Found, compress: Callable[[Job], Job], corrections: Mapping[str, float] | None = None
) -> Found:
    """``found``, with its candidates compressed by ``compress`` where the replay is faster.

    A strategy compresses gradients or lets them travel in a smaller type, and not both. So those of
    a candidate that has decided on such a type are compressed in their own. The best one stays if
    no other is faster by what a search takes for a gain. ``corrections``: as the search's evaluator
    has them.
    """
    evaluate = Evaluator(folds=False, corrections=corrections)

    def faster(candidate: Candidate) -> Candidate:
        if candidate.job.strategy.runtime not in OURS:
            return candidate
        reduce_dtype = candidate.job.strategy.reduce_dtype
        own = with_reduce_dtype(candidate.job, "") if reduce_dtype else candidate.job
        job = compress(own)
        iteration_ns = evaluate(job).iteration_ns
        gain_ns = evaluate(candidate.job).iteration_ns - iteration_ns
        if gain_ns <= 0:
            return candidate
        count = len(job.strategy.compressor_of)
        instead = f", in place of gradients as {reduce_dtype}" if reduce_dtype else ""
        what = f"compress {count} gradient(s) as allowed{instead}"
        decision = Decision(COMPRESSION, what, gain_ns)
        return Candidate(job, iteration_ns, (*candidate.decisions, decision))

    best, families = faster(found.best), tuple(map(faster, found.families))
    ordered = tuple(sorted(families, key=lambda each: each.iteration_ns))
    for first in ordered[:1]:
        if first.iteration_ns < (1 - LEAST_GAIN) * best.iteration_ns:
            best = first
    return replace(
        found,
        best=best,
        families=ordered,
        replays=found.replays + evaluate.replays,
    )
