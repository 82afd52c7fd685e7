"""What workers of a predicted job would agree on: the slowest one's times, the smallest rate."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from byteprophet import schedulers
from byteprophet.job import Cluster, Host, Job, Model, Parameter, Policy, Strategy, Times
from byteprophet.job.agreed_order import agreed_policy, agreed_policy_of
from byteprophet.job.routes import MESH, SERVERS, Piece, Route
from byteprophet.job.strategy import ALL_REDUCE, MIXED
from byteprophet.job.transports import served

MBIT = 1_000_000


def a_job(
    workers: tuple[int, ...], servers: tuple[int, ...], settings: dict[str, int] | None = None
) -> Job:
    """Three parameters of 10 MB; worker n's backward pass takes n + 1 times as long as the first's.

    ``workers``, ``servers``: rates in Mbit/s, 0: not limited.
    """
    ready_ns = np.array([[[700, 400, 100]] * 2]) * np.arange(1, len(workers) + 1)[:, None, None]
    shape = ready_ns.shape
    return Job(
        Model(tuple(Parameter(name, 10_000_000) for name in "abc")),
        Times(np.ones(shape, int), ready_ns, np.full(shape[:2], 9000), np.ones(shape, int)),
        Cluster(
            tuple(Host(rate * MBIT, rate * MBIT) for rate in workers),
            tuple(Host(rate * MBIT, rate * MBIT) for rate in servers),
        ),
        Strategy(partition_bytes=1 << 18),
        Policy("prophet", schedulers.resolve("prophet", settings or {})[0]),
    )


@pytest.mark.parametrize(
    ("workers", "servers", "expected"),
    [
        ((300, 200), (0,), 200),
        ((300, 300), (500,), 250),
        ((300, 300), (500, 400), 300),
        ((0, 0), (500, 400), 400),
    ],
)
def test_the_smallest_rate_and_the_slowest_workers_times(
    workers: tuple[int, ...], servers: tuple[int, ...], expected: int
) -> None:
    policy = agreed_policy(a_job(workers, servers))
    assert policy.settings["plan_bandwidth_bps"] == expected * MBIT
    assert policy.ready_times == ((0, -1, 1200, 0), (1, -2, 600, 0), (2, -3, 0, 0))


def test_it_stays_if_workers_do_not_agree() -> None:
    job = a_job((300, 300), (300,), {"common_order": 0})
    assert agreed_policy(job) == job.policy


def test_it_stays_if_workers_have_a_plan_and_a_bandwidth_alone_is_none() -> None:
    job = a_job((300, 300), (300,), {"plan_bandwidth_bps": 5})
    agreed = agreed_policy(job)
    assert agreed.settings["plan_bandwidth_bps"] == 5
    assert agreed.ready_times
    planned = replace(job, policy=agreed)
    assert agreed_policy(planned) == agreed


def test_it_stays_where_nothing_is_limited() -> None:
    job = a_job((0, 0), (0,))
    assert agreed_policy(job) == job.policy


def test_servers_have_their_share_of_a_link_that_a_mesh_uses_too() -> None:
    job = a_job((300, 300), (0,))
    half = 5_001_216  # whole pages
    routes = (
        Route("a", (Piece(10_000_000, MESH),)),
        Route("b", (Piece(half, SERVERS), Piece(10_000_000 - half, MESH))),
        Route("c", (Piece(10_000_000, SERVERS),)),
    )
    strategy = replace(job.strategy, runtime=MIXED, routes=routes, mesh=ALL_REDUCE)
    job = replace(job, strategy=strategy)
    policy = agreed_policy_of(job, served(job))
    assert policy.settings["plan_bandwidth_bps"] == pytest.approx(150 * MBIT, rel=1e-3)
    assert [at_ns for _, _, at_ns, _ in policy.ready_times] == [600, 0]
