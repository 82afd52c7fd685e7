"""A search: candidates by builders, a formula and local search; then real trials, and a choice.

1. Every builder that knows such a job makes a strategy. The routes' engine compares a dozen
   routings of a formula, and local search improves their best. The fastest become candidates.
2. Rounds of real trials: the most promising and most different candidates run. After each round,
   the ranker learns what is wrong with the engine, and orders the others anew. It ends early if
   the best is within the engine's error of the bound, or if nothing faster is expected.
3. The best ones run again. The best median is the result.

Without trials, the fastest candidate by the engine is the result.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from byteprophet.bench.grid_jobs import code_version
from byteprophet.bound import bound_of_predicted_ns
from byteprophet.digests import digest_of
from byteprophet.errors import UserError
from byteprophet.job.assumed_costs import UNSURE
from byteprophet.job.predicted import Predicted
from byteprophet.job.strategy import MIXED
from byteprophet.machine import describe_machine
from byteprophet.optimize.critical_path import shares
from byteprophet.order_statistics import median
from byteprophet.replay.predict import kind_of
from byteprophet.strategy.explanation import (
    Explanation,
    compute_ns,
    interval_of,
    loads,
    unrecorded,
)
from byteprophet.strategy.routed import on_its_share
from byteprophet.strategy.search.bases import Bases
from byteprophet.strategy.search.candidates import (
    RECORDED,
    Candidate,
    Predictor,
    distinct,
    table_of,
)
from byteprophet.strategy.search.choosing import (
    batch_size,
    confirming,
    first_batch,
    next_batch,
    to_confirm,
)
from byteprophet.strategy.search.engine import Routing
from byteprophet.strategy.search.kept import Kept
from byteprophet.strategy.search.local import Known, best_routings
from byteprophet.strategy.search.outcome import (
    BUDGET,
    NEAR_BOUND,
    NO_TRIALS,
    NOTHING_BETTER,
    Outcome,
)
from byteprophet.strategy.search.ranker import Ranker, fitted
from byteprophet.strategy.search.trials import Runner, Trial, Trials

_ROUTINGS = 8
"""So many of the engine's best routings become candidates."""
_TOLD = 0.005
"""Gains that are smaller are not worth a line of their own."""


def search(
    bases: Bases,
    directory: Path,
    *,
    of: str,
    trials: int,
    budget_s: float,
    seed: int,
    runner: Runner | None,
    say: Callable[[str], None],
    allowed: Sequence[str] = (),
) -> Outcome:
    """The best strategy for ``bases`` that is found within ``trials`` runs.

    Args:
        bases: the job.
        directory: where everything is kept; a search of the same job goes on there.
        of: a digest of the job and the resources. What is left of a search on another machine, or
            with other code in its jobs, is not taken up.
        trials: how many runs of candidates there may be, baselines not counted.
        budget_s: how long the engine may search, in seconds.
        seed: of its lots.
        runner: runs a candidate; None: ``trials`` must be 0.
        say: is told of progress.
        allowed: rules by which gradients may travel compressed, as users type them.
    """
    if trials and runner is None:
        raise UserError(f"--trials {trials}: there is nothing that runs them")
    predictor = Predictor(bases, allowed)
    if not predictor.bound_ns:
        raise UserError(
            "nothing takes time in this job: no layer computes, and no link has a rate, so all "
            "strategies are equally fast"
        )
    of = digest_of(of, code_version(), json.dumps(describe_machine(), sort_keys=True))
    kept = Kept(directory, f"{of}-{seed}-{budget_s:g}", bases)
    begun_s = time.monotonic()
    left = kept.left()
    if left is None:
        candidates = candidates_of(predictor, budget_s=budget_s, seed=seed, kept=kept, say=say)
        replays, search_s = predictor.engine.replays, time.monotonic() - begun_s
        kept.keep(candidates, replays, search_s)
        kept.keep_best(candidates[0])
    else:
        candidates, replays, search_s = left
        say(f"goes on with {len(candidates)} candidates of an earlier search")
    ran = Trials(kept.rounds, of, runner, kept.file_of, say)
    ended, ranker = _tried(candidates, ran, trials, predictor.bound_ns, kept, say)
    ordered = sorted(ran.all, key=lambda trial: trial.ratio)
    best, iteration_ns = _chosen(candidates, ran, predictor.baseline)
    kept.keep_best(best)
    return Outcome(
        best=best,
        iteration_ns=iteration_ns,
        bound_ns=min(predictor.bound_ns, iteration_ns),
        engine_error=ranker.error,
        candidates=candidates,
        trials=ordered,
        baseline_ns=ran.baseline_ns or predictor.baseline().engine_ns,
        ended=ended,
        replays=replays,
        search_s=search_s,
        explanation=_explained(best, bases, ranker.error),
    )


def candidates_of(
    predictor: Predictor,
    *,
    budget_s: float,
    seed: int,
    kept: Kept,
    say: Callable[[str], None],
) -> list[Candidate]:
    """All candidates, the fastest by the engine first. The best builder is ``kept`` meanwhile."""
    found = distinct(list(predictor.of_builders(say)))
    if not found:
        raise UserError("no builder knows such a job")
    kept.keep_best(found[0])
    say(f"{len(found)} builders, the fastest is {found[0].name}: {_ms(found[0].engine_ns)}")

    told_ns = float("inf")

    def progress(known: Known) -> None:
        nonlocal told_ns
        if known.iteration_ns < (1 - _TOLD) * told_ns:
            told_ns = known.iteration_ns
            say(f"{known.how}: {_ms(known.iteration_ns)} on the engine")

    routings = best_routings(
        predictor.engine, predictor.job, budget_s=budget_s, seed=seed, progress=progress
    )
    for number, known in enumerate(routings[:_ROUTINGS]):
        name = known.how if known.how.startswith("x=") else f"{known.how} {number + 1}"
        found += _of_routing(predictor, name, known.routing, say)
    return distinct([*found, *predictor.compressed(found)])


def _of_routing(
    predictor: Predictor, name: str, routing: Routing, say: Callable[[str], None]
) -> Iterator[Candidate]:
    """The candidates of ``routing``: a mix is tried with a paced mesh, too."""
    is_mix = bool(routing.served.any() and not routing.served.all())
    for own, paced in ((name, False), (f"{name}, paced", True))[: 1 + is_mix]:
        try:
            yield predictor.of_routing(own, routing, paced)
        except UserError as error:  # noqa: PERF203 (there are two)
            say(f"without {own}: {error}")


def _tried(
    candidates: Sequence[Candidate],
    ran: Trials,
    trials: int,
    bound_of_all_ns: int,
    kept: Kept,
    say: Callable[[str], None],
) -> tuple[str, Ranker]:
    """Run up to ``trials`` candidates. Returns why it ended, and what was learned."""
    candidates = [each for each in candidates if each.by != RECORDED]  # it is the baseline
    ranker = learned(candidates, ran.all, ran.baseline_ns)
    if not trials:
        return NO_TRIALS, ranker
    ended, exploring = BUDGET, trials - confirming(trials)
    while ran.count < exploring:
        size = min(batch_size(trials), exploring - ran.count)
        if not ran.count:
            batch = first_batch(candidates, size)
        else:
            batch = next_batch(candidates, ranker, ran.all, size)
        if not batch:
            ended = NOTHING_BETTER
            break
        ran.run(batch)
        ranker = learned(candidates, ran.all, ran.baseline_ns)
        best = min(ran.all, key=lambda trial: trial.ratio)
        kept.keep_best(best.candidate)
        say(
            f"best of {ran.count} trials: {best.candidate.name}, {_ms(best.iteration_ns)}, "
            f"{best.iteration_ns / bound_of_all_ns - 1:.1%} above the bound; predictions are "
            f"{ranker.error:.1%} off"
        )
        if best.iteration_ns <= bound_of_all_ns * (1 + ranker.error):
            ended = NEAR_BOUND
            break
        if _nothing_better(candidates, ran, ranker):
            ended = NOTHING_BETTER
            break
    for _ in range(confirming(trials) // 2):
        ran.run(to_confirm(ran.all))
    return ended, learned(candidates, ran.all, ran.baseline_ns)


def learned(
    candidates: Sequence[Candidate], tried: Sequence[Trial], baseline_ns: int | None
) -> Ranker:
    """What trials teach, by times that are free of what changed from round to round."""
    pool = table_of(candidates)
    return fitted(
        pool,
        table_of([trial.candidate for trial in tried]).reshape(len(tried), pool.shape[1]),
        np.array([trial.candidate.engine_ns for trial in tried], np.float64),
        np.array([trial.ratio * (baseline_ns or 1) for trial in tried], np.float64),
    )


def _nothing_better(candidates: Sequence[Candidate], ran: Trials, ranker: Ranker) -> bool:
    """Whether all candidates that are left are expected to be slower, by more than the error."""
    digests = {trial.candidate.digest for trial in ran.all}
    left = [each for each in candidates if each.digest not in digests]
    if not left:
        return True
    engine_ns = np.array([each.engine_ns for each in left], np.float64)
    best_ns = min(trial.ratio for trial in ran.all) * (ran.baseline_ns or 1)
    expected = ranker.log_ns(table_of(left), engine_ns)
    return bool(expected.min() > np.log(best_ns) + ranker.error)


def _chosen(
    candidates: Sequence[Candidate], ran: Trials, baseline: Callable[[], Candidate]
) -> tuple[Candidate, int]:
    """The result, and its time: the best median of those that ran most often, if any did.

    It is the ``baseline`` if none was faster than that.
    """
    if not ran.count:
        return candidates[0], candidates[0].engine_ns
    most = max(len(trial.ratios) for trial in ran.all)
    best = min(
        (trial for trial in ran.all if len(trial.ratios) == most), key=lambda trial: trial.ratio
    )
    if best.ratio < 1 or ran.baseline_ns is None:
        return best.candidate, best.iteration_ns
    start = baseline()
    known = (each for each in candidates if each.digest == start.digest)
    return next(known, start), ran.baseline_ns


def _explained(best: Candidate, bases: Bases, engine_error: float) -> Explanation:
    """``best``, as ``explain`` does it; ``engine_error``: of predictions, as trials told it."""
    job, engine_ns = best.job, best.engine_ns
    played = kind_of(job).replay(on_its_share(job) if job.strategy.runtime == MIXED else job)
    times_ns = played.iterations_ns[job.iterations // 2 :]
    assumed = unrecorded(job, bases.recorded)
    unsure = abs(bases.replay_error) + UNSURE * len(assumed) + engine_error
    least_ns = bound_of_predicted_ns(job, engine_ns)
    interval_ns = interval_of(times_ns * (engine_ns / median(times_ns)), unsure)
    return Explanation(
        predicted=Predicted(engine_ns, interval_ns, least_ns),
        bound_ns=least_ns,
        compute_ns=compute_ns(job),
        loads=loads(played),
        path=shares(played.replayed),
        replay_error=bases.replay_error,
        assumed=" and ".join(assumed),
    )


def _ms(time_ns: int) -> str:
    return f"{time_ns / 1e6:.1f} ms"
