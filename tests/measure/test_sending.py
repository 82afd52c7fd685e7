"""What is told of a worker's sending: known lags, seen through a connection that they stand in."""

from __future__ import annotations

import numpy as np
import pytest

from byteprophet.measure.sending import LAGS, acknowledgement_ns, request_lags_ns

PUSH_NS = 40_000_000
DELAY_NS = 500_000


def arrivals(handed_ns: np.ndarray, lags_ns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of pushes and of their requests, in one connection in the order in which they were made."""
    things = sorted(
        [(at, PUSH_NS, n) for n, at in enumerate(handed_ns.tolist())]
        + [(at, 0, n) for n, at in enumerate((handed_ns + lags_ns).tolist())]
    )
    arrived_ns, asked_ns = np.zeros((2, len(handed_ns)), np.int64)
    free_ns = 0
    for at, takes_ns, number in things:
        free_ns = max(free_ns, at) + takes_ns
        (arrived_ns if takes_ns else asked_ns)[number] = free_ns + DELAY_NS
    return arrived_ns, asked_ns


@pytest.mark.parametrize("seed", range(5))
def test_lags_are_found_as_well_as_pushes_tell(seed: int) -> None:
    """Bursts of ten pushes, 15 us apart: that is what a lag of less than 150 us is told by."""
    noise = np.random.default_rng(seed)
    handed_ns = (np.arange(400)[:, None] * 10**9 + np.arange(10) * 15_000).ravel()
    lags_ns = noise.choice([5_000, 40_000, 90_000], len(handed_ns), p=[0.5, 0.25, 0.25])
    found_ns = request_lags_ns(handed_ns, *arrivals(handed_ns, lags_ns))
    assert len(found_ns) == LAGS
    told_ns = np.quantile(found_ns, (0.25, 0.6, 0.9))
    assert (np.abs(told_ns - (5_000, 40_000, 90_000)) <= 15_000).all()


def test_without_transfers_there_are_no_lags() -> None:
    nothing = np.zeros(0, np.int64)
    assert not len(request_lags_ns(nothing, nothing, nothing))


def test_acknowledgements_are_timed_where_no_answer_is_in_front_of_them() -> None:
    arrived_ns = np.arange(10) * 10_000_000
    acked_ns = arrived_ns + 700_000
    acked_ns[5:] += 4_000_000  # behind answers
    answered_ns = arrived_ns[5:] - 1_000_000
    pulled_ns = answered_ns + 5_000_000
    assert acknowledgement_ns(arrived_ns, acked_ns, answered_ns, pulled_ns) == 700_000
    assert acknowledgement_ns(arrived_ns[5:], acked_ns[5:], answered_ns, pulled_ns) is None
