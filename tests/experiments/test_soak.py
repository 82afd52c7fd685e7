"""What the soak calls steady; the job itself takes minutes."""

from __future__ import annotations

import pytest
import soak
from role_samples import Sample

from byteprophet.errors import JobFailed


def samples(bytes_per_s: float, descriptors_late: int = 30) -> list[Sample]:
    """200 s of one role: a steep start up to 50 s, then growth, and noise of 5 %."""
    found = []
    for second in range(-10, 210):
        own = 1e6 * min(second, 50) + bytes_per_s * second + 2.5e6 * (-1) ** second
        own_bytes = int(50e6 + own)
        count = 30 if second < 150 else descriptors_late
        found.append(Sample("server-0", second + 1000.5, own_bytes, 0, 2 * own_bytes, count, 13))
    return found


def unsteady(of: list[Sample]) -> set[str]:
    return {change.field for change in soak.changes(of, 1000.0, 1200.0) if not change.is_steady}


def test_warming_up_and_noise_are_steady() -> None:
    assert unsteady(samples(0)) == set()
    assert unsteady(samples(10_000)) == set()


def test_what_grows_or_shrinks_is_told() -> None:
    assert unsteady(samples(40_000)) == {"own_bytes", "rss_bytes"}
    assert unsteady(samples(-40_000)) == {"own_bytes", "rss_bytes"}
    assert unsteady(samples(0, descriptors_late=31)) == {"descriptors"}


def test_too_few_samples_are_no_proof() -> None:
    with pytest.raises(JobFailed, match="too few samples of server-0"):
        soak.changes(samples(0)[::10], 1000.0, 1200.0)
