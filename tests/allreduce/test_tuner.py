"""The tuner on the model's own curves of the paper's networks, and on noise."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

from byteprophet.allreduce.groups import BUCKET_BYTES, fixed_size
from byteprophet.allreduce.order import RUNTIMES, iteration_ns
from byteprophet.allreduce.tuner import ITERATIONS_PER_TRIAL, SETTLING, TRIALS, BucketTuner

from .timings import MODELS, SWEEP, of_model

CELLS = ((2, 0.7, 100_000), (4, 1.0, 300_000), (4, 1.4, 3_000_000))
"""Ranks, all-reduce over compute, cost of a message."""


def tune(tuner: BucketTuner, time_ns: Callable[[int], int]) -> list[int]:
    """Train until it is done; the size of every iteration."""
    sizes = []
    while not tuner.done:
        sizes.append(tuner.current)
        changed = tuner.observe(time_ns(tuner.current))
        assert changed == (tuner.current != sizes[-1])
    return sizes


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_within_3_percent_of_a_sweep_after_ten_trials(
    model: str, cell: tuple[int, float, int], runtime: str
) -> None:
    ranks, share, cost_ns = cell
    timing = of_model(model, share, ranks=ranks, message_cost_ns=cost_ns)

    @cache
    def time_ns(size: int) -> int:
        return iteration_ns(runtime, timing, fixed_size(timing, size))

    best_ns = min(map(time_ns, SWEEP))
    tuner = BucketTuner(iterations_per_trial=SETTLING + 1)
    assert len(tune(tuner, time_ns)) == TRIALS * (SETTLING + 1)
    assert time_ns(tuner.current) <= 1.03 * best_ns


def test_noisy_times_and_settling_iterations_do_not_mislead() -> None:
    """3% of noise, and the first iterations after each change ten times too long."""
    timing = of_model("resnet50", 1.0, message_cost_ns=1_000_000)
    truth = {size: iteration_ns("dear", timing, fixed_size(timing, size)) for size in BUCKET_BYTES}
    ratios = []
    for seed in range(4):
        random = np.random.default_rng(seed)
        calls = 0

        def noisy(size: int, random: np.random.Generator = random) -> int:
            nonlocal calls
            calls += 1
            settling = (calls - 1) % ITERATIONS_PER_TRIAL < SETTLING
            return int(truth[size] * (10 if settling else np.exp(0.03 * random.standard_normal())))

        tuner = BucketTuner()
        tune(tuner, noisy)
        ratios.append(truth[tuner.current] / min(truth.values()))
    assert np.median(ratios) <= 1.015
    assert max(ratios) <= 1.03


@pytest.mark.parametrize("scale", [3, 1000])
def test_the_scale_of_the_times_does_not_matter(scale: int) -> None:
    timing = of_model("resnet50", 0.9, message_cost_ns=200_000)

    @cache
    def time_ns(size: int) -> int:
        return iteration_ns("dear", timing, fixed_size(timing, size))

    assert tune(BucketTuner(), time_ns) == tune(BucketTuner(), lambda s: scale * time_ns(s))


def test_done_means_done() -> None:
    tuner = BucketTuner([1 << 20, 1 << 22], trials=3, iterations_per_trial=3)
    sizes = tune(tuner, lambda size: size)
    assert set(sizes) == {1 << 20, 1 << 22}
    assert tuner.current == 1 << 20
    assert not any(tuner.observe(time_ns) for time_ns in (1, 10**12) * 10)
    assert (tuner.current, tuner.done) == (1 << 20, True)


def test_one_candidate_stays() -> None:
    tuner = BucketTuner([4096], trials=2, iterations_per_trial=3)
    assert set(tune(tuner, lambda _: 5)) == {4096}
    assert tuner.current == 4096


@pytest.mark.parametrize("wrong", [([], 1, 3), ([4], 0, 3), ([4], 1, SETTLING)])
def test_nothing_to_choose_or_measure_is_refused(wrong: tuple[list[int], int, int]) -> None:
    with pytest.raises(ValueError, match="are the least"):
        BucketTuner(*wrong)
