"""The bandwidth that a rank measures of its link."""

from __future__ import annotations

from byteprophet.torch.sync.exchange import Sent

_MS_NS = 1_000_000


def test_what_the_link_carried_counts() -> None:
    """Of 3 MB, the system took 2 MB at once."""
    before = Sent(1_000_000, 5 * _MS_NS, 900_000, 4 * _MS_NS)
    after = Sent(4_000_000, 16 * _MS_NS, 1_900_000, 14 * _MS_NS)
    assert after.bandwidth_bps(before) == 1_000_000 * 8 * 100


def test_without_a_long_message_all_bytes_count() -> None:
    before, after = Sent(0, 0, 0, 0), Sent(1_000_000, 10 * _MS_NS, 0, 0)
    assert after.bandwidth_bps(before) == 1_000_000 * 8 * 100
    assert before.bandwidth_bps(before) >= 1
