from __future__ import annotations

import time

import psutil

from byteprophet.bench.cpu import CpuShare, CpuWatch


def cores() -> int:
    return psutil.cpu_count() or 1


def test_a_busy_core_is_seen() -> None:
    with CpuWatch() as watch:
        begin_ns = time.monotonic_ns()
        while time.monotonic_ns() < begin_ns + 800_000_000:
            pass
        end_ns = time.monotonic_ns()
    share = watch.share(begin_ns, end_ns)
    assert 0.5 / cores() < share.mean <= 1.0
    assert 0 <= share.saturated <= 1.0


def test_no_sample_no_share() -> None:
    with CpuWatch() as watch:
        pass
    assert watch.share(0, 1) == CpuShare(0.0, 0.0)
