"""Bins against a look at every nanosecond; links and servers of a job whose times are known."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from byteprophet.diagnose.links import carried
from byteprophet.diagnose.utilisation import shared_out, utilisation
from byteprophet.errors import UserError
from byteprophet.network import payload_bps
from byteprophet.timeline.events import Events
from byteprophet.timeline.tables import TRANSFERS

from ..measure.recorded_replay import config_of, record
from ..measure.test_servers import a_job
from ..thorough import examples
from ..timeline.made_up import origin
from .hand_made import CONFIG, MS, SIZE_BYTES, ps_job, recorded, stock_job
from .whole_jobs import jobs


@given(
    stretches=st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30)), max_size=8),
    begin=st.integers(0, 20),
    width=st.integers(1, 20),
    bins=st.integers(1, 5),
)
@settings(max_examples=examples(100, 300))
def test_bins(stretches: list[tuple[int, int]], begin: int, width: int, bins: int) -> None:
    begins = np.array([b for b, _ in stretches], np.int64)
    ends = begins + np.array([length for _, length in stretches], np.int64)
    edges = begin + width * np.arange(bins + 1)
    expected = [
        sum(max(0, min(e, high) - max(b, low)) for b, e in zip(begins, ends, strict=True))
        for low, high in pairwise(edges)
    ]
    assert shared_out(begins, ends, edges) == pytest.approx(expected)
    # Over edges that hold everything, amounts are all there.
    amounts = np.arange(1.0, len(begins) + 1)
    whole = shared_out(begins, ends, np.arange(-width, 91 + width, width), amounts)
    assert whole.sum() == pytest.approx(amounts.sum())


def test_links_servers_and_compute() -> None:
    run = recorded(ps_job(), CONFIG)
    used = utilisation(run, bin_ns=100 * MS)
    assert used.compute == pytest.approx(np.full((2, 3), 0.6))  # updates are inside waits
    # Worker 0 pushes from 92 to 104, and its last one ends after the last iteration.
    assert used.link_busy["push"][0] == pytest.approx([0.08, 0.12, 0.12])
    assert used.link_bytes["push"][0] == pytest.approx([2 / 3 * SIZE_BYTES, SIZE_BYTES, SIZE_BYTES])
    assert used.link_busy["pull"][1] == pytest.approx([0, 0.04, 0.04])
    assert used.sums == pytest.approx(np.array([[0, 0.02, 0.02]]))  # both pushes in one pass
    assert used.link_bps.tolist() == [payload_bps(10**9)] * 2
    assert used.mean(used.compute) == pytest.approx([0.6, 0.6])
    assert used.busy_rate_bps("push")[0] == pytest.approx(SIZE_BYTES * 8e9 / (12 * MS))


def test_the_last_bin_is_as_long_as_it_is() -> None:
    """Of four bins of 70 ms and one of 20, in which worker 0 computes for 10 and pushes for 8."""
    used = utilisation(recorded(ps_job(), CONFIG), bin_ns=70 * MS)
    assert used.widths_ns.tolist() == [70 * MS] * 4 + [20 * MS]
    assert used.compute[0, -1] == pytest.approx(0.5)
    assert used.link_busy["push"][0, -1] == pytest.approx(0.4)
    assert used.mean(used.compute) == pytest.approx([0.6, 0.6])
    assert used.busy_rate_bps("push")[0] == pytest.approx(SIZE_BYTES * 8e9 / (12 * MS))


def test_what_stock_knows() -> None:
    used = utilisation(recorded(stock_job(), CONFIG))
    assert np.isnan(used.link_bytes["push"]).all()
    assert used.mean(used.compute) == pytest.approx([0.6, 0.6])


def test_a_worker_without_transfers_keeps_its_place() -> None:
    events = [t for t in ps_job() if (t.table, t.origin.rank) != (TRANSFERS, 0)]
    used = utilisation(recorded(events, {**CONFIG, "worker_bandwidth_bps": {"1": 5 * 10**8}}))
    known = ~np.isnan(used.link_bytes["pull"])
    assert known.all(axis=1).tolist() == known.any(axis=1).tolist() == [False, True]
    assert np.isnan(used.mean_rate_bps("push")).tolist() == [True, False]
    assert used.link_bps.tolist() == [payload_bps(10**9), payload_bps(5 * 10**8)]


def test_servers_have_their_ranks() -> None:
    events = ps_job()
    events[-1] = replace(events[-1], origin=origin("server-2"))
    assert utilisation(recorded(events, CONFIG)).servers.tolist() == [2]


@given(events=jobs(), bin_ns=st.none() | st.integers(10, 4000))
@settings(max_examples=examples(30, 100))
def test_nothing_is_busy_for_longer_than_there_is(events: list[Events], bin_ns: int | None) -> None:
    try:
        run = recorded(events, {})
    except UserError:
        return
    used = utilisation(run, bin_ns)
    for shares in (used.compute, *used.link_busy.values()):
        for share in (shares, used.mean(shares)):
            assert (np.isnan(share) | ((share >= 0) & (share <= 1 + 1e-9))).all()


@pytest.mark.parametrize("scheduler", ["fifo", "prophet"])
def test_a_link_carries_one_partition_at_a_time(scheduler: str) -> None:
    """As fast as it is, and no faster: of a replayed job, whose links' rate is known."""
    job = a_job(scheduler)
    run = recorded(record(job)[0], config_of(job))
    for worker, own in enumerate(run.workers):
        link = carried(run, worker, "push")
        assert len(link.row) == len(own.transfers)
        assert (link.begin_ns <= link.end_ns).all()
        assert (link.end_ns[:-1] <= link.begin_ns[1:]).all()
        rate_bps = link.size_bytes.sum() * 8e9 / (link.end_ns - link.begin_ns).sum()
        # Messages have a cost, and the first of a busy period a delay.
        link_bps = job.cluster.workers[worker].up_bps
        assert 0.9 * link_bps < rate_bps < link_bps
