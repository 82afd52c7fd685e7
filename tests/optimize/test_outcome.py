"""What trials change of an outcome: the prediction, its interval, and the bound."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from small_jobs import random_job, with_runtime

from byteprophet.bound import bound_ns
from byteprophet.measure.servers import Measured
from byteprophet.optimize.outcome import outcome_of
from byteprophet.optimize.passes.tensor_fusion import TensorFusion
from byteprophet.optimize.plain import plain
from byteprophet.optimize.search import Decision, Found, search
from byteprophet.optimize.trials import Trial
from byteprophet.replay.predict import kind_of


@pytest.fixture(scope="module")
def searched() -> tuple[Measured, Found]:
    """One bucket holds all gradients, and the search does better. The replay is right."""
    job = with_runtime(random_job(3, 8), "allreduce", 100_000_000)
    times_ns = kind_of(job).iterations_ns(job)
    starts_ns = np.tile(np.append(0, np.cumsum(times_ns)), (job.workers, 1))
    return Measured(job, starts_ns), search(job, (TensorFusion(),), budget_s=2.0)


def test_the_bound_is_never_above_the_prediction(searched: tuple[Measured, Found]) -> None:
    """Trials say that the job takes half of what the replay says: so do all its costs."""
    measured, found = searched
    replayed = outcome_of(measured, found)
    assert replayed.bound_ns == bound_ns(found.best.job) <= replayed.predicted_ns
    ratio = replayed.predicted_ns / replayed.baseline_ns / 2
    tried = outcome_of(measured, found, Trial(found.best, (ratio,) * 9))
    assert tried.predicted_ns < 0.7 * replayed.predicted_ns
    assert tried.bound_ns <= tried.predicted_ns
    shrunk = tried.predicted_ns / replayed.predicted_ns
    assert tried.bound_ns == pytest.approx(replayed.bound_ns * shrunk, rel=0.01)


def test_an_interval_is_positive_however_wrong_the_replay_is(
    searched: tuple[Measured, Found],
) -> None:
    """The replay takes three times as long as the job did."""
    measured, found = searched
    outcome = outcome_of(Measured(measured.job, measured.start_ns // 3), found)
    assert outcome.replay_error == pytest.approx(2, rel=0.01)
    low_ns, high_ns = outcome.interval_ns
    assert 0 < low_ns < outcome.predicted_ns < high_ns


def test_more_rounds_count_more(searched: tuple[Measured, Found]) -> None:
    measured, found = searched
    replayed = outcome_of(measured, found)
    ratio = 0.95 * replayed.predicted_ns / replayed.baseline_ns
    outcomes = [outcome_of(measured, found, Trial(found.best, (ratio,) * n)) for n in (1, 9)]
    predicted = [outcome.predicted_ns / outcome.baseline_ns for outcome in outcomes]
    assert ratio < predicted[1] < predicted[0] < ratio / 0.95
    widths = [high - low for low, high in (each.interval_ns for each in (replayed, *outcomes))]
    assert widths[0] > widths[1] > widths[2]


def test_fewer_rounds_may_measure_more_else(searched: tuple[Measured, Found]) -> None:
    intervals_ns = [outcome_of(*searched, rounds=rounds).interval_ns for rounds in (1, 2, 9)]
    widths = [high_ns - low_ns for low_ns, high_ns in intervals_ns]
    assert widths[0] > widths[1] > widths[2]


def test_moves_are_kept_one_by_one_and_told_by_pass(searched: tuple[Measured, Found]) -> None:
    measured, found = searched
    moves = *found.best.decisions, Decision("tensor-fusion", "merge", 7, "Theorem 2")
    best = replace(found.best, decisions=moves)
    outcome = outcome_of(measured, replace(found, best=best))
    assert outcome.moves == moves
    (together,) = outcome.decisions
    assert together.gain_ns == sum(each.gain_ns for each in moves)


def test_what_was_slower_when_it_was_tried_is_not_used(searched: tuple[Measured, Found]) -> None:
    measured, found = searched
    outcome = outcome_of(measured, found, Trial(found.best, (1.01,)))
    assert not outcome.gains
    assert outcome.predicted_ns == outcome.baseline_ns


@pytest.mark.parametrize(("compiled_ns", "after"), [(1_000, 2100), (19_000, 111), (-1_000, None)])
def test_compiling_is_paid_by_what_it_gains_itself(
    compiled_ns: int, after: int | None, searched: tuple[Measured, Found]
) -> None:
    """``after``: iterations, with compiling in 2.1 ms."""
    outcome = replace(
        outcome_of(*searched),
        moves=(
            Decision("tensor-fusion", "merge", 20_000 - compiled_ns),
            Decision("compile", "compile 0", compiled_ns),
        ),
        baseline_ns=100_000,
        predicted_ns=80_000,
        compile_ns=2_100_000,
    )
    assert outcome.pays_after == after
    assert replace(outcome, predicted_ns=100_000).pays_after is None


def test_no_trial_is_called_chosen_where_the_job_stays(searched: tuple[Measured, Found]) -> None:
    measured, found = searched
    trials = [Trial(found.best, (1.01,)), Trial(found.start, (1.02,))]
    outcome = outcome_of(measured, found, trials[0])
    told = plain("run", outcome, (), (), trials, None)
    assert [each["chosen"] for each in told["trials"]] == [False, False]
