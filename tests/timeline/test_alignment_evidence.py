"""Evidence is checked, and pruned to the pieces that can bind, and to no fewer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from byteprophet.errors import UserError
from byteprophet.timeline.alignment_evidence import Evidence, binding

TIMES = np.array([1, 2, 3])


def ints(values: list[int]) -> Any:
    return np.array(values, np.int64)


POINTS = st.lists(st.tuples(st.integers(-50, 50), st.integers(0, 50)), min_size=1, max_size=60)


@settings(max_examples=300)
@given(POINTS, st.sampled_from([0.0, 0.25, 1.0, 8.0]), st.integers(1, 10**6))
def test_minima_on_every_slope_are_those_of_all_points(
    points: list[tuple[int, int]], limit: float, scale: int
) -> None:
    times, delays = ints([t * scale for t, _ in points]), ints([d * scale for _, d in points])
    kept = binding(times, delays, limit)
    assert np.all(np.diff(times[kept]) > 0)
    for slope in np.linspace(-limit, limit, 33):
        assert (delays[kept] + slope * times[kept]).min() == (delays + slope * times).min()


@settings(max_examples=200)
@given(POINTS)
def test_each_point_kept_is_needed(points: list[tuple[int, int]]) -> None:
    # With a limit steeper than any edge, corners of the hull: each is below its neighbours' chord.
    times, delays = ints([t for t, _ in points]), ints([d for _, d in points])
    kept = binding(times, delays, 100.0)
    for a, b, c in zip(kept, kept[1:], kept[2:], strict=False):
        chord = (delays[a] * (times[c] - times[b]) + delays[c] * (times[b] - times[a])) / (
            times[c] - times[a]
        )
        assert delays[b] < chord


def test_edges_too_steep_for_any_drift_are_left_out() -> None:
    times, delays = ints([0, 10, 20]), ints([90, 5, 1])
    assert binding(times, delays, 1.0).tolist() == [1, 2]
    assert binding(times, delays, 0.1).tolist() == [2]
    assert binding(times, delays, 9.0).tolist() == [0, 1, 2]


def test_nanoseconds_count_in_long_recordings() -> None:
    # A corner one nanosecond below a chord of a month: float64 cross products would lose it.
    month = 30 * 24 * 3600 * 10**9
    times, delays = ints([0, month // 2, month]), ints([10**9, 10**9 - 1, 10**9])
    assert binding(times, delays, 1e-3).tolist() == [0, 1, 2]
    delays[1] += 1  # on the chord
    assert binding(times, delays, 1e-3).tolist() == [0, 2]


def test_sizes_of_small_messages_are_alike() -> None:
    assert Evidence("a", "b", "push", TIMES, TIMES).sizes().tolist() == [0, 0, 0]
    sized = Evidence("a", "b", "push", TIMES, TIMES, np.array([1, 4096, 4097]))
    assert sized.sizes().tolist() == [0, 0, 4097]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"cause_ns": np.array([1.0, 2.0, 3.0])}, "cause_ns: must be a row of integers"),
        ({"effect_ns": TIMES.reshape(1, 3)}, "effect_ns: must be a row of integers"),
        ({"effect_ns": TIMES[1:]}, "effect_ns: has 2 values, cause_ns 3"),
        ({"size_bytes": TIMES[1:]}, "size_bytes: has 2 values, cause_ns 3"),
        ({"size_bytes": -TIMES}, "size_bytes: must not be negative"),
        ({"cause_ns": np.array([0, 1, 2**63], np.uint64)}, "cause_ns: 0 to 9223372036854775808"),
        ({"effect_ns": np.array([0, 1, 2**60])}, "effect_ns: 0 to 1152921504606846976"),
        ({"minimum_ns": -1}, "minimum_ns -1: must not be negative"),
    ],
)
def test_what_does_not_fit_is_named(change: dict[str, Any], named: str) -> None:
    fields = {"cause_ns": TIMES, "effect_ns": TIMES, **change}
    with pytest.raises(UserError, match=named) as caught:
        Evidence("w0", "s0", "push", **fields)
    assert str(caught.value).startswith("push from w0 to s0: ")
    assert "\n" not in str(caught.value)
