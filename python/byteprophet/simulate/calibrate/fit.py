"""Sets a cluster's constants from measured runs.

What is known of the constants beforehand, their values and uncertainties, counts as much as what
the runs say. So one run moves those constants on which its time depends and that were known badly,
and leaves all others; every further run of another kind tells more of them apart. The result is the
most likely set of constants, and their uncertainties with correlations (a Gauss-Newton fit of
logarithms; a run that is far off counts less). If the runs contradict what is known, by more than
the uncertainties explain, these are taken to be larger.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np

from byteprophet.errors import UserError
from byteprophet.simulate.calibrate.sensitivity import Job, Vector, log_slopes, log_time
from byteprophet.simulate.clusters.beliefs import LARGEST_UNCERTAINTY, Beliefs, Source
from byteprophet.simulate.clusters.constants import (
    Constant,
    constants,
    covariance,
    uncertain,
    with_constants,
)
from byteprophet.simulate.clusters.description import Cluster
from byteprophet.simulate.compile.program import Program

NOISE = 0.03
"""The relative standard deviation of a measured time around the right prediction."""
LEARNT = 0.9
"""The runs say something about a constant if its uncertainty becomes less than this part of it."""
CONTRADICTED = 2.0
"""Runs contradict what is known if it is so many times as uncertain as stated."""
_FAR = 2.0
"""A run that is so many deviations off begins to count less."""
_WIDEST = 4.0
_MOST_STEPS = 10
_BEFORE_COUNTING = 2
"""Steps in which all runs count the same."""
_LARGEST_STEP = 1.0
"""Of the logarithm of a constant. A time may hardly depend on one that is small, and a step along
its slope would be a factor without bound; the slope grows with the constant."""
_ENOUGH = 1e-2
"""A step of constants, as a part of their uncertainties, after which there is no other."""


class Timed(Protocol):
    """What ran, and how long it took."""

    @property
    def program(self) -> Job:
        """What ran: a program, or a collective alone."""
        ...

    @property
    def measured_ns(self) -> float:
        """The time of an iteration, or of the collective."""
        ...


class Measured(Protocol):
    """A program, and how long an iteration of it took."""

    @property
    def program(self) -> Program:
        """What ran."""
        ...

    @property
    def measured_ns(self) -> float:
        """The time of an iteration."""
        ...


@dataclass(frozen=True)
class Calibrated:
    """The result.

    Attributes:
        cluster: with the constants that fit best, and what is known of them.
        before: the constants as they were, those that are not exact.
        after: the same constants, now.
        errors_before: predicted over measured time of each run, less 1, as it was.
        errors: the same, now.
        set_by_runs: the names of constants that the runs say something about.
        learnt: so many constants could be set freely by what the runs say.
        wider: what was known beforehand is taken to be so many times as uncertain as stated,
            because the runs contradict it.
    """

    cluster: Cluster
    before: tuple[Constant, ...]
    after: tuple[Constant, ...]
    errors_before: tuple[float, ...]
    errors: tuple[float, ...]
    set_by_runs: tuple[str, ...]
    learnt: float
    wider: float


def calibrate(runs: Sequence[Timed], cluster: Cluster, source: str) -> Calibrated:
    """Fit the constants of a cluster.

    Args:
        runs: measured runs on this cluster, and collectives that ran alone on it.
        cluster: its description, with what is known of its constants.
        source: what is stated as the source of constants that the runs say something about.

    Raises:
        UserError: all constants are exact.
    """
    before = uncertain(cluster)
    if not before:
        raise UserError(
            f"cluster {cluster.name}: all its constants have uncertainty = 0, so runs set none: "
            "state uncertainties of those that are not exact"
        )
    names = [one.name for one in before]
    start = np.log([one.value for one in before])
    spread = np.array([one.uncertainty for one in before])
    measured = np.log([run.measured_ns for run in runs])
    at, current = start, cluster
    first = found = _linearise(runs, current, names)
    stated = covariance(cluster, before)
    wider = _wider(measured - first.predicted, first.slopes, stated)
    known = wider**2 * stated
    counts = np.ones(len(runs))  # at first all the same: what is far off then may be the constants
    for number in range(_MOST_STEPS):
        errors = measured - found.predicted
        if number >= _BEFORE_COUNTING:
            counts = _counts(errors)
        gain = _gain(known, counts, found.slopes)
        step = start + gain @ (errors + found.slopes @ (at - start)) - at
        too_large = float(np.abs(step).max()) / _LARGEST_STEP
        step /= max(1.0, too_large)
        current = with_constants(current, dict(zip(names, np.exp(at + step), strict=True)))
        values = {one.name: one.value for one in constants(current)}
        before_at, at = at, np.log([values[name] for name in names])
        if number == _BEFORE_COUNTING - 1 or too_large > 1:
            found = _linearise(runs, current, names)
        else:  # slopes change little
            found = found._replace(predicted=_predicted(runs, current))
        settled = float(np.abs((at - before_at) / spread).max()) < _ENOUGH
        if settled and number >= _BEFORE_COUNTING:
            break
    counts = _counts(measured - found.predicted)
    posterior = known - _gain(known, counts, found.slopes) @ found.slopes @ known
    set_by_runs = _set_by_runs(before, at - start, known, posterior)
    beliefs = _beliefs(cluster.beliefs, before, posterior, set_by_runs, source)
    current = replace(current, beliefs=beliefs)
    return Calibrated(
        cluster=current,
        before=tuple(before),
        after=tuple(uncertain(current)),
        errors_before=tuple(np.expm1(first.predicted - measured).tolist()),
        errors=tuple(np.expm1(found.predicted - measured).tolist()),
        set_by_runs=set_by_runs,
        learnt=float(np.trace(posterior @ _information(counts, found.slopes))),
        wider=wider,
    )


class _Linear(NamedTuple):
    """Logarithms of the predicted times, (runs,), and slopes, (runs, constants)."""

    predicted: Vector
    slopes: Vector


def _linearise(runs: Sequence[Timed], cluster: Cluster, names: Sequence[str]) -> _Linear:
    predicted = _predicted(runs, cluster)
    slopes = [
        log_slopes(run.program, cluster, base, names)
        for run, base in zip(runs, predicted.tolist(), strict=True)
    ]
    return _Linear(predicted, np.stack(slopes))


def _predicted(runs: Sequence[Timed], cluster: Cluster) -> Vector:
    return np.array([log_time(run.program, cluster) for run in runs])


def _wider(errors: Vector, slopes: Vector, stated: Vector) -> float:
    """How many times as uncertain as stated the constants must be for errors of this size."""
    expected = np.einsum("rc,cd,rd->r", slopes, stated, slopes) + NOISE**2
    return float(np.clip(np.sqrt(np.median(errors**2 / expected)), 1.0, _WIDEST))


def _counts(errors: Vector) -> Vector:
    """How much each run counts: little if it is far off, compared with most others."""
    usual = max(NOISE, 1.48 * float(np.median(np.abs(errors))))
    counts: Vector = 1 / (1 + (errors / (_FAR * usual)) ** 2)
    return counts


def _gain(known: Vector, counts: Vector, slopes: Vector) -> Vector:
    """How far errors of runs move constants, shape (constants, runs).

    It needs no inverse of ``known``, a covariance: that of constants that are fully correlated has
    none.
    """
    spread = known @ slopes.T
    found: Vector = np.linalg.solve(slopes @ spread + np.diag(NOISE**2 / counts), spread.T).T
    return found


def _information(counts: Vector, slopes: Vector) -> Vector:
    """What runs say about constants: the inverse of a covariance."""
    found: Vector = slopes.T @ (slopes * (counts / NOISE**2)[:, None])
    return found


def _set_by_runs(
    before: Sequence[Constant], moved: Vector, prior: Vector, posterior: Vector
) -> tuple[str, ...]:
    """The constants that became less uncertain, or moved by a part of their uncertainty."""
    were, are = np.sqrt(np.diag(prior)), np.sqrt(np.diag(posterior))
    told = (are < LEARNT * were) | (np.abs(moved) > (1 - LEARNT) * were)
    return tuple(one.name for one, yes in zip(before, told.tolist(), strict=True) if yes)


def _beliefs(
    known: Beliefs,
    before: Sequence[Constant],
    posterior: Vector,
    set_by_runs: Sequence[str],
    source: str,
) -> Beliefs:
    spread = np.sqrt(np.diag(posterior))
    sources: Mapping[str, Source] = {
        one.name: Source(
            source if one.name in set_by_runs else one.source,
            min(LARGEST_UNCERTAINTY, float(now)),
        )
        for one, now in zip(before, spread, strict=True)
    }
    correlation = posterior / np.outer(spread, spread)
    pairs = {
        (one.name, other.name): float(correlation[row, column])
        for row, one in enumerate(before)
        for column, other in enumerate(before)
        if row != column
    }
    return Beliefs({**known.sources, **sources}, pairs)
