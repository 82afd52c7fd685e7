"""A workload as the job of a run."""

from __future__ import annotations

from byteprophet.job import Host
from byteprophet.network import payload_bps
from byteprophet.network.namespaces import PAYLOAD_BURST_BYTES
from byteprophet.workload import Tensor, Workload
from byteprophet.workload.as_job import job_on_links, limited_host

WORKLOAD = Workload("w", 1, (Tensor("a", 8, 1, 2),))


def test_local_ranks_share_the_link_of_their_worker() -> None:
    config = {
        "workers": 2,
        "servers": 1,
        "local_ranks": 2,
        "scheduler": "fifo",
        "bandwidth_bps": 10**9,
        "worker_bandwidth_bps": {"1": 5 * 10**8},
    }
    limits_bps = [payload_bps(10**9), payload_bps(5 * 10**8)]
    assert job_on_links(WORKLOAD, config).cluster.workers == tuple(
        Host(limit_bps, limit_bps, PAYLOAD_BURST_BYTES) for limit_bps in limits_bps
    )


def test_a_link_without_a_limit_has_no_burst() -> None:
    assert limited_host(None) == Host()
