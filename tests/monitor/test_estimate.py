"""The estimate against links whose rate, delay and message cost are known."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from byteprophet.monitor.estimate import DirectionEstimate, Estimate

from .simulated_link import Link, S, Transfers, bursts, run

MIXED = (262_144, 65_536, 4_096, 1_000_000)
RATES = st.floats(3e8, 1e10)


def traffic(
    link: Link,
    *,
    seed: int,
    rate: float,
    seconds: float = 1.5,
    iterations: int = 6,
    sizes: tuple[int, ...] = MIXED,
    servers: int = 1,
    window: int = 1000,
) -> Transfers:
    """Iterations with pauses that together keep a link of ``rate`` busy for ``seconds``."""
    random_ = random.Random(seed)
    size_bytes = int(rate / 8 * seconds / iterations)
    if size_bytes > 100_000_000:  # fewer messages, so that simulating takes no longer
        sizes = tuple(size * 16 for size in sizes)
    return run(
        link,
        [
            (random_.randrange(S), bursts(random_, size_bytes, sizes, servers))
            for _ in range(iterations)
        ],
        window,
    )


def feed(estimate: DirectionEstimate, transfers: Transfers, chunk: int = 40) -> None:
    for start in range(0, len(transfers), chunk):
        part = transfers[start : start + chunk]
        estimate.add(part["sent_ns"], part["acked_ns"], part["size_bytes"].astype(np.int64))


def observe(transfers: Transfers, chunk: int = 40) -> Estimate:
    estimate = DirectionEstimate()
    feed(estimate, transfers, chunk)
    return estimate.estimate()


@settings(max_examples=25)
@given(
    rate=RATES,
    delay_ns=st.integers(0, 5_000_000),
    cost_ns=st.integers(0, 300_000),
    chunk=st.integers(1, 500),
    seed=st.integers(0, 1000),
)
def test_rate_and_message_cost_of_a_link_with_pauses(
    rate: float, delay_ns: int, cost_ns: int, chunk: int, seed: int
) -> None:
    link = Link([(0, rate)], delay_ns, cost_ns)
    found = observe(traffic(link, seed=seed, rate=rate), chunk)
    assert found.bandwidth_bps == pytest.approx(rate, rel=0.02)
    assert found.message_cost_ns == pytest.approx(cost_ns, abs=2_000)


@settings(max_examples=25)
@example(rate=333488960.0, delay_ns=8753796, window=2, seed=0)
@given(
    rate=st.floats(5e7, 3e9),
    delay_ns=st.integers(100_000, 10_000_000),
    window=st.integers(2, 8),
    seed=st.integers(0, 1000),
)
def test_a_window_that_is_too_small_does_not_hide_the_rate(
    rate: float, delay_ns: int, window: int, seed: int
) -> None:
    link = Link([(0, rate)], delay_ns)
    transfers = traffic(link, seed=seed, rate=rate, sizes=(262_144,), window=window, iterations=20)
    assert observe(transfers).bandwidth_bps == pytest.approx(rate, rel=0.02)


def test_one_message_at_a_time_tells_by_sizes_that_differ_or_not_at_all() -> None:
    link = Link([(0, 1e9)], delay_ns=300_000, cost_ns=50_000)
    mixed = observe(traffic(link, seed=1, rate=1e9, window=1))
    assert mixed.bandwidth_bps == pytest.approx(1e9, rel=0.02)
    assert mixed.delay_ns == pytest.approx(350_000, rel=0.02)  # with the cost, which is not known
    assert mixed.message_cost_ns is None
    alike = observe(run(link, [(S // 10, [(262_144, 0)] * 50) for _ in range(6)], window=1))
    assert (alike.bandwidth_bps, alike.delay_ns, alike.message_cost_ns) == (None, None, None)


def test_large_ones_that_take_no_longer_tell_no_rate() -> None:
    """Pulls that were waited for on another worker's account."""
    sizes = np.array([1_000_000, 10_000] * 20)
    sent_ns = np.arange(len(sizes)) * S
    for longer_ns in (-900_000, 0):
        taken_ns = 2_000_000 + longer_ns * (sizes > 10_000)
        estimate = DirectionEstimate()
        estimate.add(sent_ns, sent_ns + taken_ns, sizes)
        assert estimate.estimate().bandwidth_bps is None


def test_delay_beside_cost() -> None:
    link = Link([(0, 1e9)], delay_ns=700_000, cost_ns=50_000)
    random_ = random.Random(5)
    ones = [(10_000_000, [(random_.choice(MIXED), 0)]) for _ in range(30)]
    many = [(10_000_000, bursts(random_, 10_000_000, MIXED)) for _ in range(10)]
    found = observe(run(link, [*many, *ones]))
    assert found.delay_ns == pytest.approx(700_000, rel=0.02)
    assert found.message_cost_ns == pytest.approx(50_000, rel=0.02)


def test_sizes_that_do_not_differ_tell_no_message_cost() -> None:
    link = Link([(0, 1e9)], cost_ns=100_000)
    found = observe(run(link, [(S // 10, [(262_144, 0)] * 80) for _ in range(6)]))
    assert found.message_cost_ns is None
    # What such messages get, their cost included.
    assert found.bandwidth_bps == pytest.approx(262_144 * 8e9 / (262_144 * 8 + 100_000), rel=0.01)


def test_noise_that_hides_the_message_cost_is_said_to() -> None:
    noise = random.Random(3)
    link = Link([(0, 1e9)], cost_ns=20_000, noise=lambda: abs(noise.gauss(0, 5e6)))
    found = observe(traffic(link, seed=3, rate=1e9))
    assert found.message_cost_ns is None
    assert found.bandwidth_bps == pytest.approx(1e9, rel=0.1)


@settings(max_examples=20)
@example(before=4402341479.0, factor=5.0, noise_ns=2_000_379, window=4, seed=0)
@example(before=2826892231.0, factor=5.0, noise_ns=3_000_000, window=8, seed=857)
@given(
    before=st.floats(1e7, 5e9),
    factor=st.floats(0.2, 5.0),
    noise_ns=st.integers(0, 3_000_000),
    window=st.integers(4, 100),
    seed=st.integers(0, 1000),
)
def test_a_stepped_link_is_followed_within_two_seconds_of_traffic(
    before: float, factor: float, noise_ns: int, window: int, seed: int
) -> None:
    after = max(1e7, before * factor)
    noise = random.Random(seed)
    step_ns = 3 * S
    link = Link([(0, before), (step_ns, after)], noise=lambda: abs(noise.gauss(0, noise_ns)))
    size = 131_072 if max(before, after) < 1e9 else 2_097_152
    random_ = random.Random(seed)
    pieces = int(max(before, after) * 2 / 8 / size) + 4
    iteration = [(size, 0)] * max(4, pieces // 4)
    transfers = run(link, [(random_.randrange(S // 2), iteration) for _ in range(12)], window)
    estimate = DirectionEstimate()
    feed(estimate, transfers[transfers["acked_ns"] <= step_ns], 20)
    busy_before_ns = estimate.busy_ns
    later = transfers[transfers["acked_ns"] > step_ns]
    for start in range(0, len(later), 10):
        feed(estimate, later[start : start + 10])
        if estimate.busy_ns - busy_before_ns >= 2 * S:
            break
    found_bps = estimate.bandwidth_bps()
    assert found_bps is not None
    assert found_bps <= 1.1 * after
    if window * size * 8e9 / after >= 2 * noise_ns:  # else the link idles: see estimate.py
        assert found_bps >= 0.9 * after


@settings(max_examples=20)
@example(starts_ms=[500], stall_ms=486, seed=251)
@example(starts_ms=[591, 1307], stall_ms=595, seed=0)
@example(starts_ms=[619, 4905, 2150], stall_ms=808, seed=275)
@given(
    starts_ms=st.lists(st.integers(500, 8000), min_size=1, max_size=3),
    stall_ms=st.integers(20, 900),
    seed=st.integers(0, 1000),
)
def test_stalls_are_not_followed(starts_ms: list[int], stall_ms: int, seed: int) -> None:
    """A process that is not scheduled for a while, and the bunch of acknowledgements after it.

    Once half a second of traffic is known, by its bytes: to busy time a stall is traffic, too.
    """
    stalls = [(start * 1_000_000, (start + stall_ms) * 1_000_000) for start in starts_ms]
    link = Link([(0, 1e9)], stalls=stalls)
    transfers = traffic(link, seed=seed, rate=1e9, seconds=4, iterations=10)
    estimate = DirectionEstimate()
    seen = []
    for start in range(0, len(transfers), 20):
        feed(estimate, transfers[start : start + 20])
        if int(transfers["size_bytes"][: start + 20].sum()) * 8 > 1e9 / 2:
            seen.append(estimate.bandwidth_bps())
    assert min(filter(None, seen)) > 0.9e9
    assert max(filter(None, seen)) < 1.1e9


@settings(max_examples=15)
@given(rate=st.floats(1e8, 3e9), seed=st.integers(0, 1000))
def test_two_servers_share_a_link(rate: float, seed: int) -> None:
    random_ = random.Random(seed)
    count = int(rate / 8 * 2 / 12 / 262_144) + 2
    both = [(262_144, server) for server in (0, 1)] * count
    transfers = run(Link([(0, rate)]), [(random_.randrange(S), both) for _ in range(6)])
    assert observe(transfers).bandwidth_bps == pytest.approx(rate, rel=0.05)
    for server in (0, 1):
        share = observe(transfers[transfers["server"] == server]).bandwidth_bps
        assert share == pytest.approx(rate / 2, rel=0.05)


def test_counters_are_totals_and_late_messages_count_as_bytes_only() -> None:
    transfers = traffic(Link([(0, 1e9)]), seed=4, rate=1e9)
    estimate = DirectionEstimate()
    feed(estimate, transfers)
    before = estimate.estimate()
    feed(estimate, transfers[:30])
    after = estimate.estimate()
    assert before.bytes == transfers["size_bytes"].sum()
    assert after.bytes == before.bytes + transfers["size_bytes"][:30].sum()
    assert (after.busy_ns, after.bandwidth_bps) == (before.busy_ns, before.bandwidth_bps)


def test_nothing_is_known_of_nothing() -> None:
    nothing = Estimate(None, None, 0, 0, None, None)
    assert DirectionEstimate().estimate() == nothing
    estimate = DirectionEstimate()
    feed(estimate, np.zeros(0, traffic(Link([(0, 1e9)]), seed=1, rate=1e7).dtype))
    assert estimate.estimate() == nothing
