"""Which candidates run next: the fastest by what is known, but not twice the same idea.

The first round looks at different architectures, because the engine compares those least well: the
fastest of each kind, then the fastest of all. Later rounds follow the ranker. In both, a candidate
counts as slower the more it resembles one that is already chosen, so that trials also teach the
ranker something. The last of the trials are kept for the best ones, which run again: the fastest
of several runs was also a lucky one. AutoDist's Algorithm 1 works so: a pool, a ranker, and a
budget in trials for a diverse choice of the best.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from byteprophet.job.strategy import BYTEPS, MIXED
from byteprophet.strategy.search.candidates import Candidate, table_of
from byteprophet.strategy.search.ranker import Floats, Ranker
from byteprophet.strategy.search.trials import Trial

BATCH = 4
"""So many candidates run in a round at least."""
_ROUNDS = 4
_ALIKE = 0.02
"""A candidate that is like a chosen one in all features counts as so much slower."""
_CONFIRMING = 0.25
"""The share of the trials in which the best ones run again."""


def kind_of_candidate(candidate: Candidate) -> str:
    """Its architecture: servers, both transports, or a mesh with equal or unequal owners."""
    runtime = candidate.job.strategy.runtime
    if runtime in (BYTEPS, MIXED):
        return runtime
    return "owners" if candidate.job.strategy.owners else "mesh"


def first_batch(candidates: Sequence[Candidate], size: int) -> list[Candidate]:
    """The fastest candidate of each kind by the engine, then others; ``size`` at most."""
    by_time = sorted(candidates, key=lambda each: (each.engine_ns, each.name))
    best = {kind_of_candidate(each): each for each in reversed(by_time)}
    chosen = sorted(best.values(), key=lambda each: each.engine_ns)[:size]
    log_ns: Floats = np.log(np.array([each.engine_ns for each in candidates], np.float64))
    return _diverse(candidates, log_ns, chosen, size)


def next_batch(
    candidates: Sequence[Candidate], ranker: Ranker, tried: Sequence[Trial], size: int
) -> list[Candidate]:
    """The fastest candidates by the ranker that have not been tried; ``size`` at most."""
    digests = {trial.candidate.digest for trial in tried}
    left = [each for each in candidates if each.digest not in digests]
    if not left:
        return []
    engine_ns = np.array([each.engine_ns for each in left], np.float64)
    log_ns = ranker.log_ns(table_of(left), engine_ns)
    return _diverse(left, log_ns, [], size)


def batch_size(trials: int) -> int:
    """How many candidates run in a round, so that they share jobs; ``trials``: in all rounds."""
    return max(BATCH, -(-trials // _ROUNDS))


def confirming(trials: int) -> int:
    """How many of ``trials`` are kept for the best two to run again."""
    return int(trials * _CONFIRMING) // 2 * 2


def to_confirm(tried: Sequence[Trial]) -> list[Candidate]:
    """The best two."""
    best = sorted(tried, key=lambda trial: trial.ratio)
    return [trial.candidate for trial in best[:2]]


def _diverse(
    candidates: Sequence[Candidate], log_ns: Floats, chosen: Sequence[Candidate], size: int
) -> list[Candidate]:
    """``chosen``, and further candidates up to ``size``: the fastest that resemble them least."""
    features = table_of(candidates)
    spread = features.std(axis=0)
    features = features / np.where(spread > 0, spread, 1.0)
    place = {each.digest: number for number, each in enumerate(candidates)}
    found = [place[each.digest] for each in chosen]
    while len(found) < min(size, len(candidates)):
        alike = np.zeros(len(candidates))
        for number in found:
            distance = np.abs(features - features[number]).sum(axis=1)
            alike = np.maximum(alike, np.exp(-distance))
        score = log_ns + _ALIKE * alike
        score[found] = np.inf
        found.append(int(score.argmin()))
    return [candidates[number] for number in found]
