"""The monitor of a worker, fed with transfers of a simulated link; its file and its check."""

from __future__ import annotations

import json
import random
import threading
from pathlib import Path

import numpy as np
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from byteprophet.errors import UserError
from byteprophet.monitor.interface_check import InterfaceCheck, interface_of
from byteprophet.monitor.monitor import NetworkMonitor
from byteprophet.monitor.samples import read_network

from .simulated_link import Link, S, Transfers, bursts, run

LINK = Link([(0, 1e9)], delay_ns=300_000, cost_ns=50_000, down_bps=0.8e9)
SIZES = (262_144, 65_536, 4_096)


def job(seed: int, servers: int = 2) -> Transfers:
    random_ = random.Random(seed)
    return run(
        LINK,
        [(random_.randrange(S), bursts(random_, 20_000_000, SIZES, servers)) for _ in range(8)],
    )


def feed(monitor: NetworkMonitor, transfers: Transfers, chunk: int) -> None:
    """As the observer does: in order of completion, in pieces."""
    transfers = transfers[np.argsort(transfers["pulled_ns"], kind="stable")]
    for start in range(0, len(transfers), chunk):
        monitor.take(transfers[start : start + chunk])


def test_the_file_says_what_was_found(tmp_path: Path) -> None:
    transfers = job(1)
    monitor = NetworkMonitor(3, tmp_path)
    feed(monitor, transfers, 40)
    monitor.close()
    (found,) = read_network(tmp_path)
    assert found.rank == 3
    ways = [(sample.server, sample.direction) for sample in found.samples]
    assert ways == [(0, "pull"), (0, "push"), (1, "pull"), (1, "push")]
    push, pull = found.links
    assert push.estimate.bandwidth_bps == pytest.approx(0.96e9, rel=0.05)
    assert pull.estimate.bandwidth_bps == pytest.approx(0.8e9, rel=0.05)
    # All but the first message of the key.
    total = int(transfers["size_bytes"].sum() - transfers["size_bytes"][0])
    assert push.estimate.bytes == pull.estimate.bytes == total
    for sample in found.samples:
        assert sample.estimate.bytes > 0
        assert (sample.estimate.delay_ns is None) == (sample.direction == "pull")
    times_ns = [row[0] for row in found.history["push"]]
    assert times_ns == sorted(times_ns)
    assert len(times_ns) >= 7  # iterations, of which the first is too short to tell


@settings(max_examples=15)
@given(seed=st.integers(0, 1000), chunk=st.integers(20, 2000), lag_ms=st.floats(0, 300))
def test_transfers_that_complete_in_another_order_change_nothing(
    seed: int, chunk: int, lag_ms: float
) -> None:
    """Answers wait for other workers: each for a time of its own after its acknowledgement."""
    transfers = job(seed, servers=1)
    in_order, shuffled = NetworkMonitor(0, None), NetworkMonitor(0, None)
    feed(in_order, transfers, chunk)
    random_ = np.random.default_rng(seed)
    transfers["pulled_ns"] += random_.integers(0, 1 + int(lag_ms * 1e6), len(transfers))
    feed(shuffled, transfers, chunk)
    in_order.close()
    shuffled.close()
    expected, found = in_order.links()[0].estimate, shuffled.links()[0].estimate
    assert found.bandwidth_bps == pytest.approx(expected.bandwidth_bps, rel=0.03)
    assert found.bytes == pytest.approx(expected.bytes, rel=0.01)  # whichever came first


def test_what_a_probe_found_is_kept_apart(tmp_path: Path) -> None:
    """The probe meets a link of 1 Gbit/s; when the job begins, it has half of that."""
    link = Link([(0, 1e9), (S, 0.5e9)])
    probe = [(0, [(262_144, 0)] * 200)]
    pause = [(S, [(262_144, 0)] * 300)]
    transfers = run(link, [*probe, *pause])
    monitor = NetworkMonitor(0, tmp_path)
    monitor.probe_ended(S)
    feed(monitor, transfers, 250)  # the observer comes by when the job has begun
    monitor.close()
    (found,) = read_network(tmp_path)
    probed = {sample.direction: sample.estimate for sample in found.probe}
    latest = {sample.direction: sample.estimate for sample in found.samples}
    assert probed["push"].bandwidth_bps == pytest.approx(1e9, rel=0.02)
    assert probed["push"].bytes < 201 * 262_144
    assert latest["push"].bandwidth_bps == pytest.approx(0.5e9, rel=0.02)


def test_samples_may_be_asked_for_while_transfers_come() -> None:
    monitor, seen = NetworkMonitor(0, None), []
    stopping = threading.Event()

    def ask() -> None:
        while not stopping.is_set():
            seen.append(monitor.samples())

    asker = threading.Thread(target=ask)
    asker.start()
    feed(monitor, job(2), 50)
    stopping.set()
    asker.join(30)
    assert len(seen) > 1
    assert len(monitor.samples()) == 4


def test_nothing_taken_is_no_error(tmp_path: Path) -> None:
    monitor = NetworkMonitor(0, tmp_path)
    monitor.take(job(1)[:0])
    monitor.close()
    (found,) = read_network(tmp_path)
    assert (found.samples, found.links) == ((), ())


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"schema": 2}, "schema must be 1"),
        ({"rank": "0"}, "rank must be a whole number"),
        ({"samples": [{"direction": "up"}]}, "samples.direction"),
        ({"samples": [{"direction": "push", "busy_ns": -1}]}, "busy_ns must be a whole number"),
        ({"links": 5}, "links must be a list"),
        ({"samples": [{"direction": "push", "busy_ns": 10**300}]}, "busy_ns must be a whole"),
        ({"check": []}, "check must be an object"),
        ({"check": {"note": "x"}}, "check must have disagrees"),
        ({"check": {"disagrees": True, "note": ""}}, "check.interface must be a text"),
        ({"history": {"push": [[1, 2]]}}, "history.push"),
    ],
)
def test_a_broken_file_is_refused_by_field(
    change: dict[str, object], named: str, tmp_path: Path
) -> None:
    monitor = NetworkMonitor(0, tmp_path)
    monitor.close()
    path = tmp_path / "network" / "worker-0.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(UserError, match=named) as caught:
        read_network(tmp_path)
    assert str(path) in str(caught.value)


def test_a_run_without_samples_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="run the job with --monitor"):
        read_network(tmp_path)
    with pytest.raises(UserError, match="no such directory"):
        read_network(tmp_path / "none")


class Counters:
    """An interface whose counters a test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent = self.received = 1_000_000
        monkeypatch.setattr(psutil, "net_io_counters", lambda pernic: {"eth7": self})

    @property
    def bytes_sent(self) -> int:
        return self.sent

    @property
    def bytes_recv(self) -> int:
        return self.received


@pytest.mark.parametrize(
    ("sent", "received", "disagrees", "said"),
    [
        (104_000_000, 103_000_000, False, ""),
        (104_000_000, 200_000_000, True, "pull"),
        (150_000_000, 103_000_000, True, "push"),
        (50_000_000, 103_000_000, True, "push"),
    ],
)
def test_traffic_that_transfers_do_not_explain_is_reported(
    sent: int, received: int, disagrees: bool, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    counters = Counters(monkeypatch)
    check = InterfaceCheck("eth7")
    for step in range(1, 101):
        check.explain("push", 1_000_000)
        check.explain("pull", 1_000_000)
        counters.sent, counters.received = (
            1_000_000 + total * step // 100 for total in (sent, received)
        )
        check.look(step * 10**9)
    report = check.report()
    assert report["disagrees"] is disagrees
    assert said in report["note"]


def test_an_interface_that_is_everybodys_is_not_compared() -> None:
    assert interface_of("127.0.0.1") is None
    assert interface_of(None) is None
    assert interface_of("192.0.2.1") is None
    assert interface_of("node1") is None
    assert InterfaceCheck(None).report()["disagrees"] is None
