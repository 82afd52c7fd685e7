"""Checkpoints and failures, against the figures of Daly's paper and against failures drawn."""

from __future__ import annotations

import random
from math import sqrt

import pytest

from byteprophet.errors import UserError
from byteprophet.simulate.execute.failures import Failures

_HOUR, _MINUTE = 3600.0, 60.0


@pytest.mark.parametrize(
    ("mtbf_s", "minutes"), [(24 * _HOUR, 117), (6 * _HOUR, 57), (15 * _MINUTE, 9.1)]
)
def test_the_best_intervals_are_those_of_the_paper(mtbf_s: float, minutes: float) -> None:
    """Daly 2006, figures 3 to 5: restarts of 10 minutes, checkpoints of 5."""
    failures = Failures(mtbf_s, 5 * _MINUTE, 10 * _MINUTE)
    assert failures.best_interval_s / _MINUTE == pytest.approx(minutes, rel=0.006)


def test_youngs_interval_is_the_limit_for_rare_failures() -> None:
    failures = Failures(1e9, 60, 600)
    assert failures.best_interval_s == pytest.approx(sqrt(2 * 60 * 1e9), rel=1e-3)


@pytest.mark.parametrize("mtbf_s", [24 * _HOUR, 2 * _HOUR])
def test_no_other_interval_is_much_better(mtbf_s: float) -> None:
    failures = Failures(mtbf_s, 5 * _MINUTE, 10 * _MINUTE)
    best = failures.goodput(failures.best_interval_s)
    others = [failures.goodput(mtbf_s * at / 200) for at in range(1, 400)]
    assert best >= 0.999 * max(others)


def _drawn(failures: Failures, interval_s: float, intervals: int, seed: int) -> float:
    """The goodput if failures are drawn one by one."""
    pick = random.Random(seed)
    now_s, next_s = 0.0, pick.expovariate(1 / failures.mtbf_s)
    for _ in range(intervals):
        wanted_s = interval_s + failures.checkpoint_s
        while now_s + wanted_s > next_s:
            now_s = next_s
            next_s = now_s + pick.expovariate(1 / failures.mtbf_s)
            wanted_s = failures.restart_s + interval_s + failures.checkpoint_s
        now_s += wanted_s
    return intervals * interval_s / now_s


@pytest.mark.parametrize("interval_s", [10 * _MINUTE, 57 * _MINUTE, 4 * _HOUR])
def test_goodput_is_that_of_failures_one_by_one(interval_s: float) -> None:
    failures = Failures(6 * _HOUR, 5 * _MINUTE, 10 * _MINUTE)
    drawn = _drawn(failures, interval_s, 40_000, seed=1)
    assert failures.goodput(interval_s) == pytest.approx(drawn, rel=0.02)


def test_more_gpus_fail_more_often() -> None:
    """Llama 3 (Dubey et al. 2024, section 3.3.4): 419 failures in 54 days on 16,384 GPUs."""
    hours = 16_384 * 54 * 24 / 419
    job = Failures.of_gpus(16_384, gpu_mtbf_hours=hours, checkpoint_s=60, restart_s=600)
    assert job.mtbf_s == pytest.approx(54 * 24 * _HOUR / 419)
    small = Failures.of_gpus(1024, gpu_mtbf_hours=hours, checkpoint_s=60, restart_s=600)
    assert small.goodput(small.best_interval_s) > job.goodput(job.best_interval_s)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(UserError, match="time between failures of the job is 0 s: must be"):
        Failures(0, 1, 1)
    assert Failures(1e-3, 1e3, 1e3).goodput(10) == 0
