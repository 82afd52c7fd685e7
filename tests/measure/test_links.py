"""The links of an all-reduce job, from times of collectives made up here."""

from __future__ import annotations

import numpy as np
import pytest

from byteprophet.job.times import Int64Array
from byteprophet.measure.links import measure_links
from byteprophet.network.namespaces import PAYLOAD_BURST_BYTES

BUCKETS = (2_000_000, 40_000_000)
MOVED = np.array(BUCKETS, dtype=float)  # all-reduces of two ranks
LIMIT_BPS = 287_000_000
PAUSE_NS = 1_000_000  # between two buckets that do not travel together
LONG_NS = 1_000_000_000  # in which a limiter saves its whole burst


def collectives(
    first_ns: list[int], second_ns: list[int], together: list[bool]
) -> tuple[Int64Array, Int64Array]:
    """Begins and ends on two ranks, one iteration per element: two buckets that follow each other.

    ``together``: the second begins before the first ends. Links are idle for long between two
    iterations.
    """
    began, ended, now_ns = [], [], 0
    for first, second, both in zip(first_ns, second_ns, together, strict=True):
        since = first - 1 if both else first + PAUSE_NS
        end = first + second if both else since + second
        began.append((now_ns, now_ns + since))
        ended.append((now_ns + first, now_ns + end))
        now_ns += end + LONG_NS
    return np.array([began] * 2), np.array([ended] * 2)


@pytest.mark.parametrize("pause_ns", [100_000, 2_000_000, LONG_NS])
def test_a_burst_is_what_the_pause_between_iterations_has_saved(pause_ns: int) -> None:
    """As between FSDP2's last reduce-scatter and the first all-gather after the update."""
    size, of_byte_ns = 1_000_000, 8e9 / LIMIT_BPS
    saved_bytes = np.minimum(PAYLOAD_BURST_BYTES, pause_ns / of_byte_ns)
    took_ns = [(size - saved_bytes) * of_byte_ns] * 20
    took_ns[0] = (size - PAYLOAD_BURST_BYTES) * of_byte_ns
    ended = np.cumsum(np.array(took_ns) + pause_ns).astype(np.int64).reshape(1, -1, 1)
    began = ended - np.array(took_ns).astype(np.int64).reshape(1, -1, 1)
    found = measure_links(
        *(np.repeat(times, 2, axis=0) for times in (began, ended)),
        np.array([float(size)]),
        (LIMIT_BPS, LIMIT_BPS),
        steps=2,
    )
    assert found.costs.delay_ns < 1_000
    assert found.costs.host_ns_per_byte == pytest.approx(0, abs=1e-3 * of_byte_ns)


def test_periods_of_nearly_the_same_size_decide_nothing() -> None:
    """What 2 of 42 MB seem to cost is luck: the rate is that of all 42, and not above the limit.

    The times are those of a limiter that lets 262,144 bytes pass at once; where both buckets
    travelled together they took 0.3% longer or shorter than that.
    """
    of_byte_ns = 8e9 / LIMIT_BPS
    first_ns, second_ns = (round((size - 262_144) * of_byte_ns) for size in BUCKETS)
    luck_ns = [3_000_000, -3_000_000, 4_000_000, 2_000_000, 3_500_000, 3_000_000]
    times = collectives(
        [first_ns] * 8,
        [second_ns] * 2 + [second_ns + luck for luck in luck_ns],
        [False] * 2 + [True] * 6,
    )
    found = measure_links(*times, MOVED, (LIMIT_BPS, LIMIT_BPS), steps=2)
    links = found.costs
    assert [host.up_bps for host in found.workers] == [LIMIT_BPS, LIMIT_BPS]
    assert [host.down_bps for host in found.workers] == [LIMIT_BPS, LIMIT_BPS]
    assert links.host_ns_per_byte == pytest.approx(0, abs=0.02 * of_byte_ns)
    assert links.delay_ns < 4_000_000


@pytest.mark.parametrize("limit_bps", [None, 500_000_000])
def test_rate_and_delay_of_unlike_periods(limit_bps: int | None) -> None:
    of_byte_ns, delay_ns = 20.0, 3_000_000
    random = np.random.default_rng(0)
    saved_bytes = [0, 0]
    if limit_bps is not None:
        saved_bytes = [PAYLOAD_BURST_BYTES, limit_bps * PAUSE_NS // 8_000_000_000]
    first_ns, second_ns = (
        ((size - saved) * of_byte_ns + 2 * delay_ns + random.integers(-1000, 1000, 20))
        .astype(int)
        .tolist()
        for size, saved in zip(BUCKETS, saved_bytes, strict=True)
    )
    found = measure_links(
        *collectives(first_ns, second_ns, [False] * 20), MOVED, (limit_bps, limit_bps), steps=2
    )
    links = found.costs
    assert links.delay_ns == pytest.approx(delay_ns, rel=0.01)
    rate_bps = 8e9 / (8e9 / found.workers[0].up_bps + links.host_ns_per_byte)
    assert rate_bps == pytest.approx(8e9 / of_byte_ns, rel=0.01)


@pytest.mark.parametrize(("beyond_ns", "delay_ns"), [(5_000_000, 1_000_000), (600_000, 300_000)])
def test_what_equal_periods_take_beyond_their_bytes(beyond_ns: int, delay_ns: int) -> None:
    """They do not tell: up to 2 ms count as delay, and the rest as the host's time per byte."""
    of_byte_ns = 8e9 / LIMIT_BPS
    first_ns, second_ns = (round(size * of_byte_ns) for size in BUCKETS)
    first_ns -= round(PAYLOAD_BURST_BYTES * of_byte_ns)
    times = collectives([first_ns] * 8, [second_ns + beyond_ns] * 8, [True] * 8)
    found = measure_links(*times, MOVED, (LIMIT_BPS, LIMIT_BPS), steps=2)
    assert found.costs.delay_ns == pytest.approx(delay_ns, abs=2)
    rest_ns = beyond_ns - 2 * delay_ns
    limited_bytes = MOVED.sum() - PAYLOAD_BURST_BYTES
    assert found.costs.host_ns_per_byte * limited_bytes == pytest.approx(rest_ns, abs=100)
