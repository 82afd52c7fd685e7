"""What is told of a worker's sending: known lags, seen through a connection that they stand in."""

from __future__ import annotations

import numpy as np
import pytest

from byteprophet.measure.sending import (
    LAGS,
    acknowledgement_ns,
    request_lags_ns,
    standing_ns,
    usual,
)

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


def pushes(held_ns: int, active: list[int]) -> np.ndarray:
    """Of ten pushes an iteration, the third is held; the server does something at ``active``, too.

    Both iterations begin with a push that waits for nothing.
    """
    sent_ns = (np.arange(2)[:, None] * 10**9 + np.zeros(10, np.int64)).ravel()
    arrived_ns = (np.arange(2)[:, None] * 10**9 + np.arange(1, 11) * PUSH_NS).ravel()
    arrived_ns[2:10] += held_ns
    return standing_ns(
        np.repeat([1, 2], 10),
        sent_ns,
        arrived_ns,
        np.full(20, float(PUSH_NS)),
        np.unique(np.concatenate([arrived_ns, active])),
    )


def test_a_server_stands_still_while_it_does_nothing_for_what_has_been_sent() -> None:
    assert pushes(90_000_000, []).tolist() == [90_000_000, 0]


def test_a_server_that_works_for_others_does_not_stand_still() -> None:
    """The third push should have come after 120 ms, and came 90 ms later."""
    assert pushes(90_000_000, [140_000_000]).tolist() == [70_000_000, 0]
    assert pushes(90_000_000, [*range(120_000_000, 210_000_000, 8_000_000)]).tolist() == [0, 0]


def test_what_fair_sharing_explains_is_no_standing_still() -> None:
    assert pushes(9_000_000, []).tolist() == [0, 0]


def test_rare_standing_still_does_not_count() -> None:
    often, rare = np.array([0, 50, 60, 70] * 20), np.array([0, 0, 0, 70] * 20)
    assert np.median(usual([often])) == pytest.approx(55, abs=5)
    assert usual([rare]) == usual([]) == ()
