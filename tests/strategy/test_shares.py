"""Shares of workers and servers: against a linear program, and the bound against every strategy."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import linprog

from byteprophet.allreduce.levelled import levelled
from byteprophet.bound import bound_ns
from byteprophet.errors import UserError
from byteprophet.job import Cluster, Costs, Host, Job
from byteprophet.job.strategy_file import Used, read_strategy_file, write_strategy
from byteprophet.replay.predict import kind_of
from byteprophet.strategy.builders import build
from byteprophet.strategy.explanation import loads
from byteprophet.strategy.shares import (
    bound_of_all_ns,
    busiest_ns_per_byte,
    level_shares,
    owners_beside,
    shared,
)

from .jobs import SIZES, mesh_job, served_job

RATE_BPS = 400_000_000


def by_linear_program(worker_bps: list[int], server_bps: list[int]) -> float:
    """The least time of a byte on the busiest link, in ns, over all shares: variables T, shares."""
    workers, servers = len(worker_bps), len(server_bps)
    count = workers + servers
    rows, limits = [], []
    for place, rate in enumerate([*worker_bps, *server_bps]):
        row = np.zeros(1 + count)
        row[0] = -rate / 8e9
        row[1 + place] = workers - 2 if place < workers else workers
        rows.append(row)
        limits.append(-1.0 if place < workers else 0.0)
    ones = np.concatenate([[0.0], np.ones(count)])[None]
    cost = np.concatenate([[1.0], np.zeros(count)])
    found = linprog(cost, np.array(rows), np.array(limits), ones, [1.0])
    return float(found.fun)


@pytest.mark.parametrize("seed", range(40))
def test_no_shares_load_the_busiest_link_less(seed: int) -> None:
    lot = random.Random(seed)
    workers, servers = lot.randint(2, 8), lot.randint(0, 4)
    rates = [lot.choice((1, 2, 3, 5, 10)) * 100_000_000 for _ in range(workers + servers)]
    worker_bps, server_bps = rates[:workers], rates[workers:]
    least_ns = busiest_ns_per_byte(worker_bps, server_bps)
    assert least_ns == pytest.approx(by_linear_program(worker_bps, server_bps), rel=1e-6)
    of_workers, of_servers = level_shares(worker_bps, server_bps)
    assert sum(of_workers) + sum(of_servers) == pytest.approx(1)
    loads_ns = [
        (1 + (workers - 2) * share) * 8e9 / rate
        for share, rate in zip(of_workers, worker_bps, strict=True)
    ]
    loads_ns += [
        workers * share * 8e9 / rate for share, rate in zip(of_servers, server_bps, strict=True)
    ]
    assert max(loads_ns) <= least_ns * (1 + 1e-6)


def test_shares_of_known_clusters() -> None:
    one_slow = level_shares([RATE_BPS] * 3 + [RATE_BPS // 2], [RATE_BPS])
    # By hand: each fast worker is busy for 1 + 2 / 4, the server for 4 / 4; the slow one for 2.
    assert sum(one_slow[0]) + one_slow[1][0] == pytest.approx(1)
    assert one_slow[0][3] == 0
    assert busiest_ns_per_byte([RATE_BPS] * 3 + [RATE_BPS // 2], [RATE_BPS]) == pytest.approx(
        2 * 8e9 / RATE_BPS
    )
    # Four workers and two servers alike: 2 S (P - 1) / (P^2 + S (P - 2)) = 0.6 to servers.
    assert sum(level_shares([RATE_BPS] * 4, [RATE_BPS] * 2)[1]) == pytest.approx(0.6)
    assert level_shares([RATE_BPS] * 2, [RATE_BPS]) == ((0.5, 0.5), (0.0,))
    # Who has no limit sums everything.
    assert level_shares([RATE_BPS] * 3, [0]) == ((0.0, 0.0, 0.0), (1.0,))


@pytest.mark.parametrize("slow", [0, 1, 2, 3])
def test_owners_without_servers_are_the_levelled_ones(slow: int) -> None:
    rates = [RATE_BPS] * (4 - slow) + [RATE_BPS // 2] * slow
    mine = owners_beside(rates, 0.0).shares
    theirs = levelled(rates).shares
    assert [float(each) for each in mine] == pytest.approx(
        [float(each) for each in theirs], abs=1e-4
    )


@pytest.mark.parametrize("slow", [0, 1])
def test_the_bound_of_all_is_below_that_of_each(slow: int) -> None:
    worker_bps = [RATE_BPS] * (4 - slow) + [RATE_BPS // 2] * slow
    server_bps = [RATE_BPS] * 2
    mesh, served = mesh_job(worker_bps), served_job(worker_bps, server_bps)
    bound = bound_of_all_ns(mesh, served.cluster.servers)
    jobs = [build(name, mesh) for name in ("allreduce", "dear-planned", "owners")]
    jobs += [build(name, served) for name in ("ps", "partitioned-ps", "mixed")]
    assert all(bound <= bound_ns(job) * (1 + 1e-6) for job in jobs)
    assert bound <= bound_of_all_ns(mesh)
    computes_ns = 60 * 10**6 + 6 * 5 * 10**6
    assert bound >= computes_ns


def test_the_bound_where_only_links_count() -> None:
    """By hand: 11.8 MB over links that are busy for 1.2 of them, then the last layer's 5 ms."""
    mesh = mesh_job([RATE_BPS // 10] * 4)
    times = replace(
        mesh.times,
        ready_ns=np.zeros_like(mesh.times.ready_ns),
        forward_ns=np.zeros_like(mesh.times.forward_ns),
        backward_ns=np.zeros_like(mesh.times.backward_ns),
    )
    job = replace(mesh, times=times)
    expected_ns = 1.2 * sum(SIZES) * 8e9 / (RATE_BPS // 10)
    servers = (Host(RATE_BPS // 10, RATE_BPS // 10),) * 2
    assert bound_of_all_ns(job, servers) == pytest.approx(expected_ns, rel=1e-6)


@pytest.mark.parametrize("workers", [2, 3, 4])
def test_a_link_that_is_slow_one_way_bounds_by_its_bytes(workers: int) -> None:
    """Ranks need not be in step: one may compute while its last gradients are still on the way."""
    slow, fast = Host(RATE_BPS // 5, RATE_BPS), Host(RATE_BPS, RATE_BPS)
    recorded = mesh_job([RATE_BPS] * workers)
    cluster = Cluster((slow, *(fast,) * (workers - 1)), costs=Costs())
    job = replace(recorded, cluster=cluster)
    bound = bound_of_all_ns(job)
    assert bound >= sum(SIZES) * 8e9 / slow.up_bps * (1 - 1e-6)
    for name in ("allreduce", "dear", "dear-planned", "owners"):
        times_ns = kind_of(job).replay(build(name, job)).iterations_ns
        assert bound <= np.mean(times_ns[job.iterations // 2 :])


def moved_bytes(job: Job) -> dict[str, int]:
    """What crosses each host's link upwards in an iteration."""
    links = loads(kind_of(job).replay(job))
    return {load.link.removesuffix(" up"): load.size_bytes for load in links}


def test_the_builder_levels_the_links(tmp_path: Path) -> None:
    worker_bps, server_bps = [RATE_BPS] * 4, [RATE_BPS] * 2
    made = shared(served_job(worker_bps, server_bps))
    moved = moved_bytes(made)
    for rank in range(4):
        assert moved[f"worker {rank}"] == pytest.approx(1.2 * sum(SIZES), rel=0.02)
    # Servers are loaded evenly up to a partition, which comes from each worker.
    assert abs(moved["server 0"] - moved["server 1"]) <= 4 * 1_000_000
    assert made.strategy.owners == ()
    slow = shared(served_job([RATE_BPS] * 3 + [RATE_BPS // 2], server_bps[:1]))
    assert slow.strategy.owners[3] == 0
    used = Used(slow.model, slow.strategy, 0, slow.policy, 1)
    write_strategy(tmp_path / "strategy.json", used)
    assert read_strategy_file(tmp_path / "strategy.json") == used
    moved = moved_bytes(slow)
    assert moved["worker 3"] == pytest.approx(sum(SIZES), rel=0.01)


@pytest.mark.parametrize(
    ("workers", "servers", "says"), [(2, 1, "gain nothing from servers"), (4, 5, "servers alone")]
)
def test_where_one_transport_is_enough(workers: int, servers: int, says: str) -> None:
    job = served_job([RATE_BPS] * workers, [RATE_BPS * 4] * servers)
    if workers == 4:  # servers of no limit take in everything
        cluster = replace(job.cluster, servers=(Host(),) * servers)
        job = replace(job, cluster=cluster)
    with pytest.raises(UserError, match=says):
        shared(job)
