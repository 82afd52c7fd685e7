"""The search on functions whose minimum is known by trying everything."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from byteprophet.tune.search import CONFIRMING_TRIALS, RANDOM_TRIALS, Search
from byteprophet.tune.space import SPACES, Settings, candidates

ALL = candidates("bytescheduler", ("partition_bytes", "credit_bytes"), {})
TRIALS = 25


def bowl(partition: float, credit: float, steep: float) -> Callable[[Settings], float]:
    """A time with its minimum near these logarithms to the base 2, as schedulers' look."""

    def time(settings: Settings) -> float:
        p, c = (math.log2(settings[n]) for n in ("partition_bytes", "credit_bytes"))
        return 1.0 + steep * ((p - partition) ** 2 + 0.7 * (c - credit) ** 2)

    return time


def run(time: Callable[[Settings], float], search: Search) -> list[tuple[str, Settings, float]]:
    trials = []
    while (asked := search.ask()) is not None:
        assert search.ask() == asked  # until it is told
        phase = search.phase
        value = time(asked)
        search.tell(value)
        trials.append((phase, asked, value))
    return trials


@given(st.floats(16, 22), st.floats(16, 26), st.floats(0.001, 0.2), st.integers(0, 99))
@settings(max_examples=25)
def test_ends_in_time_with_the_best_that_was_measured(
    partition: float, credit: float, steep: float, seed: int
) -> None:
    time = bowl(partition, credit, steep)
    search = Search(ALL, TRIALS, seed)
    trials = run(time, search)
    assert len(trials) == TRIALS
    assert [phase for phase, _, _ in trials] == (
        ["random"] * RANDOM_TRIALS
        + ["model"] * (TRIALS - RANDOM_TRIALS - CONFIRMING_TRIALS)
        + ["confirm"] * CONFIRMING_TRIALS
    )
    tried = [tuple(asked.values()) for phase, asked, _ in trials if phase != "confirm"]
    assert len(set(tried)) == len(tried)
    assert time(search.best()) == min(value for _, _, value in trials)
    # A fifth of the candidates is tried; the best is among the best few of all.
    assert sorted(map(time, ALL)).index(time(search.best())) <= 4


def test_better_than_trying_at_random_when_it_is_noisy() -> None:
    """By the truth about what is kept, over many seeds."""
    ours, random_ones = [], []
    for seed in range(20):
        noise = np.random.default_rng(seed)
        time = bowl(16.5 + seed % 5, 18.0 + seed % 7, 0.03)
        search = Search(ALL, TRIALS, seed)
        run(lambda s, t=time, n=noise: t(s) * math.exp(0.02 * n.standard_normal()), search)
        least = min(map(time, ALL))
        ours.append(time(search.best()) / least)
        picked = noise.permutation(len(ALL))[:TRIALS]
        noisy = [time(ALL[i]) * math.exp(0.02 * noise.standard_normal()) for i in picked]
        random_ones.append(time(ALL[picked[int(np.argmin(noisy))]]) / least)
    assert np.mean(ours) < np.mean(random_ones)
    assert max(ours) < 1.05


def test_the_same_seed_and_measurements_give_the_same_trials() -> None:
    time = bowl(18, 20, 0.02)
    assert run(time, Search(ALL, TRIALS, 4)) == run(time, Search(ALL, TRIALS, 4))
    assert run(time, Search(ALL, TRIALS, 4)) != run(time, Search(ALL, TRIALS, 5))


def test_a_lucky_measurement_is_not_believed() -> None:
    """One that was far too fast once is measured again; something else is kept."""
    time = bowl(18, 20, 0.02)
    search = Search(ALL, TRIALS, 1)
    lucky: list[Settings] = []

    def measured(settings: Settings) -> float:
        if len(lucky) == 0:
            lucky.append(settings)
            return 0.8
        return 1.5 if settings == lucky[0] else time(settings)

    run(measured, search)
    assert search.best() != lucky[0]


@pytest.mark.parametrize("count", [1, 2, 5, 12])
def test_few_candidates_are_all_tried(count: int) -> None:
    time = bowl(18, 20, 0.02)
    search = Search(ALL[:count], TRIALS, 0)
    trials = run(time, search)
    assert len(trials) == TRIALS
    assert len({tuple(asked.values()) for _, asked, _ in trials}) == count
    assert time(search.best()) == min(map(time, ALL[:count]))


def test_what_is_no_time_is_refused() -> None:
    search = Search(ALL, TRIALS)
    with pytest.raises(ValueError, match="without ask"):
        search.tell(1.0)
    search.ask()
    for value in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="must be positive"):
            search.tell(value)


@pytest.mark.parametrize("scheduler", SPACES)
def test_every_space_can_be_searched(scheduler: str) -> None:
    choices = candidates(scheduler, tuple(SPACES[scheduler].values), {})
    search = Search(choices, TRIALS)
    run(lambda settings: float(sum(settings.values())), search)
    assert search.best() == min(choices, key=lambda each: sum(each.values()))


def test_candidates_that_are_named_come_first() -> None:
    named = [ALL[5], ALL[0], ALL[20]]
    trials = run(bowl(18, 20, 0.02), Search(ALL, 10, first=named))
    assert [asked for _, asked, _ in trials[:3]] == named
    assert [phase for phase, _, _ in trials] == ["given"] * 3 + ["model"] * 5 + ["confirm"] * 2
