"""Steps are found where there are some, in any order, under noise, and not where there are none."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st

from byteprophet.profile.bursts import RESOLUTION_NS, find_bursts, noise_ns, robust_spread

MS = 1e6


def same_partition(found: npt.NDArray[np.int64], real: npt.NDArray[np.int64]) -> bool:
    return found.tolist() == real.tolist()


@given(
    sizes=st.lists(st.integers(1, 12), min_size=1, max_size=30),
    gaps=st.data(),
    seed=st.integers(0, 2**32 - 1),
)
def test_generated_steps_are_found(sizes: list[int], gaps: st.DataObject, seed: int) -> None:
    random = np.random.default_rng(seed)
    starts = np.cumsum([gaps.draw(st.floats(6 * MS, 200 * MS)) for _ in sizes])
    real = np.repeat(np.arange(len(sizes)), sizes)
    # Within a burst: one after the other, up to a noise apart in all, and jitter.
    within = np.concatenate([np.linspace(0, 0.5 * MS, size) for size in sizes])
    ready = starts[real] + within + random.normal(0, 0.1 * MS, len(real))
    order = random.permutation(len(real))
    found = find_bursts(ready[order], RESOLUTION_NS)
    assert same_partition(found, real[order])


@given(count=st.integers(1, 60), seed=st.integers(0, 2**32 - 1))
def test_noise_alone_is_one_burst(count: int, seed: int) -> None:
    ready = np.random.default_rng(seed).normal(0, 0.3 * RESOLUTION_NS, count)
    assert find_bursts(ready, RESOLUTION_NS).max() == 0


def test_far_apart_is_each_its_own() -> None:
    ready = np.arange(100) * 5 * MS
    assert find_bursts(ready, RESOLUTION_NS).tolist() == list(range(100))


def test_a_slope_is_cut_into_short_steps() -> None:
    # 1,000 gradients evenly over 600 ms: no step may be longer than what cannot be told apart.
    ready = np.linspace(0, 600 * MS, 1000)
    found = find_bursts(ready, 1.2 * MS)
    lengths = [np.ptp(ready[found == number]) for number in range(found.max() + 1)]
    assert max(lengths) < 12 * MS


def test_noise_is_that_of_neighbours_not_of_the_whole_iteration() -> None:
    # Slower and faster iterations move all of it; what is in one burst stays together.
    random = np.random.default_rng(3)
    bursts = np.repeat(np.arange(6), 5) * 40 * MS
    ready = bursts * random.normal(1, 0.1, (20, 1)) + random.normal(0, 0.2 * MS, (20, 30))
    assert noise_ns(ready) < 1 * MS
    found = find_bursts(np.median(ready, axis=0), noise_ns(ready))
    assert same_partition(found, np.repeat(np.arange(6), 5))


def test_one_tensor() -> None:
    assert find_bursts(np.array([5.0]), noise_ns(np.array([[5.0], [6.0]]))).tolist() == [0]


def test_robust_spread_is_a_standard_deviation_that_outliers_do_not_move() -> None:
    values = np.random.default_rng(2).normal(7, 3, (2000, 2))
    values[:20] = 1e9
    assert np.all(np.abs(robust_spread(values) - 3) < 0.3)
