"""The rate that a link has been seen to carry is one that it has."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from byteprophet.measure.network import _message_cost_ns, _sustained_bps, _Worker
from byteprophet.monitor.estimate import Estimate
from byteprophet.network.namespaces import BURST_BYTES

RATE_BPS = 200_000_000
NS_PER_BYTE = 8e9 / RATE_BPS
SIZE_BYTES = 1 << 18


def sent(pauses_ns: list[int], sizes: list[int]) -> list[int]:
    """When messages have passed a limiter that saves up BURST_BYTES while nothing comes."""
    finished_ns, now, full_at = [], 0.0, 0.0  # when the bucket is, or will be, full again
    for pause_ns, size_bytes in zip(pauses_ns, sizes, strict=True):
        now += pause_ns
        full_at = max(full_at, now) + size_bytes * NS_PER_BYTE
        now = max(now, full_at - BURST_BYTES * NS_PER_BYTE)
        finished_ns.append(round(now))
    return finished_ns


@given(st.data())
def test_never_above_the_limit(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 120))
    times = {"min_size": count, "max_size": count}
    pauses_ns = data.draw(st.lists(st.integers(0, 50_000_000), **times))
    sizes = data.draw(st.lists(st.integers(1, 8 * SIZE_BYTES), **times))
    iterations = np.sort(data.draw(st.lists(st.integers(2, 4), **times)))
    found = _sustained_bps(iterations, np.array(sizes), np.array(sent(pauses_ns, sizes)))
    assert found <= RATE_BPS * (1 + 1e-6)


def test_a_link_that_is_busy_for_half_the_bytes_tells_its_rate() -> None:
    """Half of each iteration comes slowly, so that the whole says little."""
    per_iteration = 160
    pauses_ns = ([0] * 80 + [3 * round(SIZE_BYTES * NS_PER_BYTE)] * 80) * 3
    sizes = [SIZE_BYTES] * len(pauses_ns)
    iterations = np.repeat([2, 3, 4], per_iteration)
    found = _sustained_bps(iterations, np.array(sizes), np.array(sent(pauses_ns, sizes)))
    assert found == pytest.approx(RATE_BPS, rel=0.03)


def test_little_says_nothing() -> None:
    assert _sustained_bps(np.array([2]), np.array([1000]), np.array([5])) == 0


@pytest.mark.parametrize("fitted_bps", [RATE_BPS // 2, RATE_BPS, 2 * RATE_BPS, 20 * RATE_BPS])
def test_whatever_rate_was_fitted_pushes_take_as_long_at_the_limit(fitted_bps: int) -> None:
    """Pushes of one size: any rate fits with its own cost. A slower one than the limit may be."""
    took_ns = SIZE_BYTES * NS_PER_BYTE + 300_000
    cost_ns = round(took_ns - SIZE_BYTES * 8e9 / fitted_bps)
    fitted = Estimate(fitted_bps, 0, 10**9, 10**8, cost_ns, 0)
    worker = _Worker(fitted, SIZE_BYTES, fitted, True, True, None, (), (), np.zeros(0, np.int64), 0)
    at_limit = _message_cost_ns(worker, RATE_BPS)
    assert at_limit is not None
    if fitted_bps >= RATE_BPS:
        assert at_limit == pytest.approx(300_000, abs=2)
    else:
        assert at_limit == max(0, cost_ns)
    assert _message_cost_ns(worker, None) == cost_ns
