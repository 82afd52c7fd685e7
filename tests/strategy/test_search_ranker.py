"""The ranker: it finds a planted error of the engine, and says how far it is off."""

from __future__ import annotations

import numpy as np
import pytest

from byteprophet.strategy.search.ranker import LEAST_ERROR, fitted

LOT = np.random.default_rng(3)


def candidates(count: int) -> tuple[np.ndarray, np.ndarray]:  # type: ignore[type-arg]
    """Features, and what the engine says."""
    features = np.stack(
        [LOT.integers(0, 2, count), LOT.random(count), LOT.random(count) * 10], axis=1
    )
    return features, 1e8 * np.exp(0.1 * LOT.standard_normal(count))


def test_without_trials_the_engine_decides() -> None:
    features, engine_ns = candidates(20)
    none = np.zeros(0)
    ranker = fitted(features, np.zeros((0, 3)), none, none)
    assert np.array_equal(np.argsort(ranker.log_ns(features, engine_ns)), np.argsort(engine_ns))


def test_one_trial_moves_all_alike() -> None:
    features, engine_ns = candidates(20)
    ranker = fitted(features, features[:1], engine_ns[:1], 1.3 * engine_ns[:1])
    assert ranker.log_ns(features, engine_ns) == pytest.approx(np.log(1.3 * engine_ns))


def test_a_planted_error_is_found() -> None:
    """Strategies of the first kind take 30% longer than the engine thinks."""
    features, engine_ns = candidates(60)
    truth_ns = 2.0 * engine_ns * np.exp(0.3 * features[:, 0] - 0.02 * features[:, 2])
    tried = slice(0, 10)
    ranker = fitted(features, features[tried], engine_ns[tried], truth_ns[tried])
    learned = ranker.log_ns(features, engine_ns)[10:]
    rest = np.log(truth_ns)[10:]

    def wrong(found: np.ndarray) -> int:  # type: ignore[type-arg]
        """How many pairs stand in the wrong order."""
        pairs = np.subtract.outer(found, found) * np.subtract.outer(rest, rest)
        return int((pairs < 0).sum())

    assert wrong(learned) < 0.5 * wrong(np.log(engine_ns)[10:])
    assert ranker.error < 0.1


def test_the_unit_of_measurements_does_not_matter() -> None:
    features, engine_ns = candidates(12)
    truth_ns = engine_ns * np.exp(0.2 * features[:, 1])
    one, other = (fitted(features, features, engine_ns, scale * truth_ns) for scale in (1, 1e-9))
    assert one.weights == pytest.approx(other.weights)
    assert one.error == pytest.approx(other.error)


def test_noise_is_its_error() -> None:
    features, engine_ns = candidates(40)
    noisy_ns = engine_ns * np.exp(0.1 * LOT.standard_normal(40))
    assert 0.07 < fitted(features, features, engine_ns, noisy_ns).error < 0.15
    assert fitted(features, features, engine_ns, 3 * engine_ns).error == LEAST_ERROR
