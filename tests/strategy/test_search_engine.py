"""The routes' engine: against closed forms, replays of whole jobs, and one routing at a time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from byteprophet.job import Cluster, Costs, Host, Job, Model, Parameter
from byteprophet.job.owners import Owners
from byteprophet.job.routes import SERVERS, bytes_of
from byteprophet.replay import replay
from byteprophet.replay.predict import kind_of
from byteprophet.strategy.builders import build
from byteprophet.strategy.search.engine import RouteEngine, Routing
from byteprophet.strategy.search.units import Units
from byteprophet.strategy.shares import bound_of_all_ns

from .jobs import SIZES, mesh_job, served_job

RATE_BPS = 400_000_000


def links_only(workers: int, servers: int) -> Job:
    """All gradients are ready at once, nothing computes, and messages are free."""
    job = mesh_job([RATE_BPS] * workers)
    times = job.times
    none = replace(
        times,
        ready_ns=np.zeros_like(times.ready_ns),
        forward_ns=np.zeros_like(times.forward_ns),
        backward_ns=np.zeros_like(times.backward_ns),
        update_ns=np.zeros_like(times.update_ns),
    )
    host = Host(RATE_BPS, RATE_BPS)
    return replace(job, times=none, cluster=Cluster((host,) * workers, (host,) * servers, Costs()))


def test_units_have_all_bytes_once() -> None:
    model = Model(tuple(Parameter(f"p{n}", size) for n, size in enumerate(SIZES)))
    units = Units.of(model, 40)
    assert units.size_bytes.sum() == sum(SIZES)
    assert 30 <= len(units) <= 60
    assert [place for own in units.members for place in dict.fromkeys(own)] == sorted(
        place for own in units.members for place in own
    )
    served = units.alternating(0.4)
    assert units.fraction(served) == pytest.approx(0.4, abs=0.03)
    routes = units.routes(served)
    assert [route.size_bytes for route in routes] == list(SIZES)
    assert sum(bytes_of(model, routes, SERVERS)) == units.size_bytes[served].sum()
    assert max(len(route.pieces) for route in routes) == 2


def test_small_gradients_share_a_unit() -> None:
    model = Model(tuple(Parameter(f"p{n}", 4000) for n in range(1000)))
    units = Units.of(model, 40)
    assert len(units) <= 45
    assert sum(map(len, units.members)) == 1000


@pytest.mark.parametrize(
    ("workers", "servers", "served", "expected"),
    [
        # In parts of the time of all gradients over one link: 2 (P - 1) / P, and P / S.
        (4, 2, False, 1.5),
        (3, 1, False, 4 / 3),
        (4, 2, True, 2.0),
        (4, 1, True, 4.0),
        (2, 2, True, 1.0),
    ],
)
def test_pure_routings_take_what_their_links_take(
    workers: int, servers: int, served: bool, expected: float
) -> None:
    job = links_only(workers, servers)
    engine = RouteEngine(job, Units.of(job.model))
    routing = Routing(np.full(len(engine.units), served), Owners.equal(workers))
    one_ns = sum(SIZES) * 8e9 / RATE_BPS
    # The last unit goes through both halves, one after the other.
    assert expected <= engine.iteration_ns(routing) / one_ns <= expected * 1.06


def test_a_mix_takes_less_than_both(capsys: pytest.CaptureFixture[str]) -> None:
    job = links_only(4, 2)
    engine = RouteEngine(job, Units.of(job.model))
    owners = Owners.equal(4)
    fractions = (0.0, 0.5, 1.0)
    pure, mixed, served = engine.many(
        [Routing(engine.units.alternating(each), owners) for each in fractions]
    )
    # docs/strategies.md: the busiest link at x = 0.5 is busy for 1.25, where an all-reduce has 1.5.
    assert pure / mixed == pytest.approx(1.2, abs=0.06)
    assert mixed < pure < served
    assert min(pure, mixed, served) >= bound_of_all_ns(job, job.cluster.servers)


def test_links_carry_what_the_formula_says() -> None:
    job = links_only(4, 1)
    engine = RouteEngine(job, Units.of(job.model))
    routing = Routing(engine.units.alternating(0.3), Owners.of((2, 1, 1, 0), 4))
    replayed = replay(engine.graph(routing))
    carried = dict(
        zip((link.name for link in replayed.graph.links), replayed.link_bytes, strict=True)
    )
    served = int(engine.units.size_bytes[routing.served].sum())
    meshed = sum(SIZES) - served
    for rank, share in enumerate((0.5, 0.25, 0.25, 0.0)):
        expected = served + meshed * (1 + 2 * share)
        for way in ("up", "down"):
            assert carried[f"worker {rank} {way}"] == pytest.approx(expected, rel=1e-3)
    for way in ("up", "down"):
        assert carried[f"server 0 {way}"] == 4 * served


@pytest.mark.parametrize("name", ["dear-planned", "partitioned-ps"])
def test_a_pure_routing_is_near_the_replay_of_the_whole_job(name: str) -> None:
    """Not at it: units are smaller than buckets and partitions, and cost more messages."""
    served = served_job([RATE_BPS] * 4, [RATE_BPS] * 2)
    base = served if name == "partitioned-ps" else mesh_job([RATE_BPS] * 4)
    engine = RouteEngine(served, Units.of(served.model))
    replayed_ns = np.median(kind_of(build(name, base)).replay(build(name, base)).iterations_ns[2:])
    routing = Routing(np.full(len(engine.units), name == "partitioned-ps"), Owners.equal(4))
    assert 0.9 <= replayed_ns / engine.iteration_ns(routing) <= 1.25


def test_a_routing_takes_the_same_time_beside_others_and_alone() -> None:
    """Threads share the engine's graph, and leave nothing in it."""
    job = links_only(4, 2)
    units = Units.of(job.model, 40)
    routings = [Routing(units.alternating(each / 20), Owners.equal(4)) for each in range(21)]
    together = RouteEngine(job, units).many(routings)
    alone = [RouteEngine(job, units).iteration_ns(routing) for routing in routings]
    assert together == alone
    engine = RouteEngine(job, units)
    assert engine.many(routings[::-1])[::-1] == together
    replays = engine.replays
    assert engine.many(routings) == together
    assert engine.replays == replays  # they are remembered


def test_without_servers_only_owners_differ() -> None:
    job = links_only(4, 0)
    engine = RouteEngine(job, Units.of(job.model, 40))
    none = np.zeros(len(engine.units), np.bool_)
    equal, uneven = engine.many(
        [Routing(none, Owners.equal(4)), Routing(none, Owners.of((1, 0, 0, 0), 4))]
    )
    assert uneven > 1.8 * equal  # one rank moves 3 of all bytes, and not 1.5


def test_one_worker_exchanges_nothing() -> None:
    job = links_only(1, 0)
    engine = RouteEngine(job, Units.of(job.model, 40))
    assert engine.iteration_ns(Routing(np.zeros(len(engine.units), np.bool_), Owners.equal(1))) == 0
