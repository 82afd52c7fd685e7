"""Rates from two status files."""

from __future__ import annotations

import json
from typing import Any

from byteprophet.watch.live_file import LiveStatus
from byteprophet.watch.rates import LinkRates, WorkerRates

from .hand_made import MS_NS, link, status


def parsed(at_ms: int, **fields: Any) -> LiveStatus:
    content = status(monotonic_ns=at_ms * MS_NS, unix_ns=at_ms * MS_NS, **fields)
    return LiveStatus.model_validate_json(json.dumps(content))


def test_rates_of_links_and_waits() -> None:
    rates = WorkerRates()
    rates.add(parsed(0, links=[link(0, push_bytes=1000)], wait_ns=MS_NS))
    assert rates.latest() is None
    links = [
        link(0, push_bytes=126_000, pull_bytes=250_000, push_busy_ns=500 * MS_NS,
             in_flight_bytes=64),
        link(1, push_bytes=5000),
    ]  # fmt: skip
    sums = {"transfers": 4, "held_ns": 40, "travel_ns": 80, "peers_ns": 20}
    rates.add(parsed(1000, links=links, wait_ns=251 * MS_NS, **sums))
    found = rates.latest()
    assert found is not None
    assert found.links == (
        LinkRates(0, 1_000_000, 2_000_000, 2_000_000, None, 64),
        LinkRates(1, 40_000, 0, None, None, 0),
    )
    assert found.wait_share == 0.25
    assert (found.held_ns, found.travel_ns, found.peers_ns) == (10, 20, 5)
    assert rates.points() == [(1.0, 1_040_000, 2_000_000, 64, 0.25)]
    assert rates.latest(age_s=2.9) == found
    assert rates.latest(age_s=3.1) is None  # it was killed or stopped


def test_rates_of_the_interfaces_of_a_job_without_servers() -> None:
    rates = WorkerRates()
    rates.add(parsed(0, wait_ns=None, interfaces={"sent_bytes": 100, "received_bytes": 100}))
    rates.add(parsed(500, wait_ns=None, interfaces={"sent_bytes": 62_600, "received_bytes": 100}))
    found = rates.latest()
    assert found is not None
    assert found.links == (LinkRates(None, 1_000_000, 0, None, None, None),)
    assert found.wait_share is None


def test_there_are_none_across_a_time_in_which_nobody_watched() -> None:
    rates = WorkerRates()
    rates.add(parsed(0, links=[link(push_bytes=0)]))
    rates.add(parsed(1000, links=[link(push_bytes=1000)], watched=2))
    assert rates.latest() is None
    rates.add(parsed(1500, links=[link(push_bytes=2000)], watched=2))
    found = rates.latest()
    assert found is not None
    assert found.push_bps == 16_000


def test_there_are_none_of_another_process_or_of_the_same_file() -> None:
    rates = WorkerRates()
    rates.add(parsed(1000))
    rates.add(parsed(1000))
    assert rates.latest() is None
    rates.add(parsed(2000, pid=7))
    assert rates.latest() is None
    assert rates.points() == []


def test_only_the_last_seconds_count() -> None:
    rates = WorkerRates()
    for second in range(20):
        size = 1000 * min(second, 10)
        rates.add(parsed(1000 * second, links=[link(push_bytes=size)]))
    found = rates.latest()
    assert found is not None
    assert found.push_bps == 0
