"""The builder of strategies with two transports: its fraction, its routes, its loads, its bound."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from byteprophet import schedulers
from byteprophet.allreduce.grouping import best_groups
from byteprophet.allreduce.groups import Groups
from byteprophet.allreduce.timing import Timing
from byteprophet.bound import bound_ns
from byteprophet.errors import UserError
from byteprophet.job import Cluster, Costs, Host, Job, Model, Parameter, Policy, Strategy, Times
from byteprophet.job.owners import Owners
from byteprophet.job.partitions import PAGE_BYTES
from byteprophet.job.routes import MESH, SERVERS, Piece, Route, bytes_of, carried
from byteprophet.job.strategy_file import Used, read_strategy_file, write_strategy
from byteprophet.replay.predict import kind_of
from byteprophet.runtime_settings import DEFAULT_TIMEOUT_S
from byteprophet.strategy.builders import build
from byteprophet.strategy.explanation import loads
from byteprophet.strategy.mixed import busiest, fraction_of, routes_for, why_useless, with_routes
from byteprophet.strategy.ways import differences, facts, ways

from .jobs import COSTS, NAMES, SIZES, mesh_job, served_job

RATE_BPS = 400_000_000


@pytest.mark.parametrize("workers", [2, 3, 4, 8, 16])
@pytest.mark.parametrize("servers", [1, 2, 3, 4])
@pytest.mark.parametrize("rates", [0.5, 1.0, 2.5])
def test_no_fraction_that_servers_are_given_loads_links_less(
    workers: int, servers: int, rates: float
) -> None:
    """The fraction is the best of those that connections' shares of a link allow."""
    found = fraction_of(workers, servers, rates)
    moved = 2 * (workers - 1) / workers
    least = busiest(workers, servers, found, rates)
    for step in range(1001):
        fraction = step / 1000
        share = fraction / (fraction + (1 - fraction) * moved)
        if share <= servers / (servers + workers - 1) + 1e-9:
            assert busiest(workers, servers, fraction, rates) >= least - 1e-9


@pytest.mark.parametrize(
    ("workers", "servers", "fraction", "gain"),
    [
        # Fractions x* = 2 S (P - 1) / (P^2 + S (P - 2)) where that is below 2 S / (P + 2 S).
        (3, 1, 2 / 5, 10 / 9),
        (4, 1, 1 / 3, 9 / 8),
        (4, 2, 1 / 2, 6 / 5),
        (3, 2, 4 / 7, 7 / 6),
        (8, 4, 1 / 2, 14 / 11),
    ],
)
def test_what_a_mix_gains_over_an_all_reduce(
    workers: int, servers: int, fraction: float, gain: float
) -> None:
    found = fraction_of(workers, servers)
    assert found == pytest.approx(fraction)
    alone = busiest(workers, servers, 0)
    assert alone / busiest(workers, servers, found) == pytest.approx(gain)


@pytest.mark.parametrize("seed", range(20))
def test_the_fraction_holds_wherever_forward_stands(seed: int) -> None:
    chance = random.Random(seed)
    sizes = [4 * int(10 ** chance.uniform(0, 6)) for _ in range(chance.randint(2, 60))]
    model = Model(tuple(Parameter(f"p{n}", size) for n, size in enumerate(sizes)))
    fraction = chance.uniform(0.1, 0.9)
    routes = routes_for(model, fraction)
    assert [route.tensor for route in routes] == list(model.names)
    assert [route.size_bytes for route in routes] == sizes
    served, passed = np.cumsum(bytes_of(model, routes, SERVERS)), np.cumsum(sizes)
    most_off = max(PAGE_BYTES, sum(sizes) / 64)
    assert np.abs(served - fraction * passed).max() <= most_off
    assert max(len(route.pieces) for route in routes) <= 2


def built(job: Job) -> Job:
    return build("mixed", job)


def test_the_mesh_is_planned_for_the_whole_computation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the first gradients go to servers: forward then needs the others later."""
    planned: list[Timing] = []

    def groups(runtime: str, timing: Timing) -> Groups:
        planned.append(timing)
        return best_groups(runtime, timing)

    monkeypatch.setattr("byteprophet.strategy.mixed.best_groups", groups)
    job = four_and_two(True)
    ways_of = [SERVERS, SERVERS, MESH, SERVERS, MESH, MESH]
    routes = tuple(
        Route(each.name, (Piece(each.size_bytes, way),))
        for each, way in zip(job.model.parameters, ways_of, strict=True)
    )
    with_routes(job, routes, 0.3)
    (timing,) = planned
    assert [each.forward_ns for each in timing.parameters] == [10**7, 5 * 10**6, 5 * 10**6]
    assert timing.lead_ns == 10**7


@pytest.mark.parametrize(("served", "shardable"), [(True, True), (False, True), (False, False)])
def test_what_is_built_survives_a_file(served: bool, shardable: bool, tmp_path: Path) -> None:
    job = four_and_two(served)
    job = replace(job, strategy=replace(job.strategy, shardable=shardable))
    made = built(job)
    path = tmp_path / "strategy.json"
    used = Used(made.model, made.strategy, 0, made.policy, 2)
    write_strategy(path, used)
    assert read_strategy_file(path) == used
    assert made.strategy.runtime == "mixed"
    held = sorted(name for bucket in made.strategy.buckets for name in bucket.parameters)
    assert held == sorted(carried(job.model, made.strategy.routes, MESH).names)
    share = sum(bytes_of(job.model, made.strategy.routes, SERVERS)) / sum(SIZES)
    assert share == pytest.approx(0.5, abs=1 / 64)
    text = facts(used)
    assert text["routes"].startswith(f"{share:.1%} of the bytes to servers")
    assert list(ways(used)) == list(NAMES)
    assert "over the mesh: bucket of " in ways(used)["large"]
    assert "to servers: partitions of " in ways(used)["large"]


@pytest.mark.parametrize("shardable", [True, False])
def test_only_what_may_be_sharded_is(shardable: bool) -> None:
    """An optimizer may need whole parameters. Nothing is cut here."""
    job = four_and_two(False)
    job = replace(job, strategy=replace(job.strategy, shardable=shardable))
    routes = tuple(
        Route(each.name, (Piece(each.size_bytes, way),))
        for each, way in zip(job.model.parameters, [SERVERS, MESH] * 3, strict=True)
    )
    made = with_routes(job, routes, 0.5)
    assert any(bucket.sharded for bucket in made.strategy.buckets) == shardable
    owned = with_routes(job, routes, 0.5, owners=Owners.of((3, 1, 1, 1), 4))
    assert owned.strategy.owners == (3, 1, 1, 1)
    largest_ns = owned.times.update_ns[:, 0].max(axis=1).tolist()
    least_ns = owned.times.update_ns[:, 0].min(axis=1).tolist()
    assert largest_ns == [20_000] * 4  # of what servers sum
    assert least_ns == ([10_000, 3_333, 3_333, 3_333] if shardable else [20_000] * 4)


def four_and_two(served: bool, server_bps: int = RATE_BPS) -> Job:
    if served:
        return served_job([RATE_BPS] * 4, [server_bps] * 2)
    job = mesh_job([RATE_BPS] * 4)
    servers = (Host(server_bps, server_bps),) * 2
    return replace(job, cluster=replace(job.cluster, servers=servers))


def test_a_route_that_differs_is_named() -> None:
    made = built(four_and_two(True))
    used = Used(made.model, made.strategy, 0, made.policy)
    (first, *others) = made.strategy.routes
    way = {SERVERS: MESH, MESH: SERVERS}[first.pieces[0].way]
    other = replace(first, pieces=(Piece(first.size_bytes, way),))
    changed = replace(used, strategy=replace(made.strategy, routes=(other, *others)))
    found = differences(used, used)
    assert found == []
    assert NAMES[0] in {each.what for each in differences(used, _rebucketed(changed))}


def _rebucketed(used: Used) -> Used:
    """With one bucket for all that goes over the mesh."""
    names = carried(used.model, used.strategy.routes, MESH).names
    bucket = replace(used.strategy.buckets[0], parameters=names)
    return replace(used, strategy=replace(used.strategy, buckets=(bucket,)))


def moved_bytes(job: Job) -> dict[str, int]:
    found = loads(kind_of(job).replay(job))
    assert all(load.busy_ns == round(load.size_bytes * 8e9 / RATE_BPS) for load in found)
    return {load.link: load.size_bytes for load in found}


def test_links_are_loaded_as_the_formula_says() -> None:
    made = built(four_and_two(True))
    served = sum(bytes_of(made.model, made.strategy.routes, SERVERS))
    meshed = sum(SIZES) - served
    moved = moved_bytes(made)
    for way in ("up", "down"):
        for rank in range(4):
            expected = served + 1.5 * meshed
            assert moved[f"worker {rank} {way}"] == pytest.approx(expected, abs=8 * len(SIZES))
        of_servers = [moved[f"server 0 {way}"], moved[f"server 1 {way}"]]
        assert sum(of_servers) == 4 * served
        assert max(of_servers) - min(of_servers) <= 4 * 1_000_000  # a partition
    # With owners, one rank sums all that goes over the mesh.
    alone = replace(made, strategy=replace(made.strategy, owners=(1, 0, 0, 0)))
    slow = moved_bytes(alone)
    assert slow["worker 1 up"] == served + meshed
    assert slow["worker 0 up"] == served + 3 * meshed


@pytest.mark.parametrize(("workers", "servers"), [(3, 1), (3, 2), (4, 2), (8, 4)])
def test_a_paced_mix_loads_links_evenly(workers: int, servers: int) -> None:
    """Servers get x*, at which their links are busy for as long as the workers'."""
    job = build("mixed-paced", served_job([RATE_BPS] * workers, [RATE_BPS] * servers))
    served = sum(bytes_of(job.model, job.strategy.routes, SERVERS)) / sum(SIZES)
    level = 2 * servers * (workers - 1) / (workers**2 + servers * (workers - 2))
    assert served == pytest.approx(level, abs=1 / 64)
    assert served >= fraction_of(workers, servers) - 1 / 64
    # What a rank sends over the mesh takes as long at its pace as all takes on the link.
    moved = (1 - level) * 2 * (workers - 1) / workers
    assert job.strategy.mesh_bps / RATE_BPS == pytest.approx(moved / (level + moved), rel=1e-6)


def test_a_mesh_is_not_paced_so_slowly_that_it_stands_still() -> None:
    """The least rate that is named is enough: links of it let what goes over the mesh through."""
    with pytest.raises(UserError, match=r"mixed-paced: mesh_bps \d+: at this rate") as refused:
        build("mixed-paced", served_job([100] * 4, [100] * 2))
    least_bps = int(str(refused.value).split("at least ")[1].split()[0])
    job = build("mixed-paced", served_job([4 * least_bps] * 4, [4 * least_bps] * 2))
    meshed = sum(bytes_of(job.model, job.strategy.routes, MESH))
    assert 8 * meshed / job.strategy.mesh_bps <= DEFAULT_TIMEOUT_S < 8 * meshed / (least_bps - 1)


def test_a_mesh_is_not_paced_on_links_without_a_limit() -> None:
    with pytest.raises(UserError, match="mixed-paced: no worker's link has a known rate"):
        build("mixed-paced", served_job([0] * 4, [0] * 2))


def test_a_link_that_is_unlimited_counts_like_a_worker_s() -> None:
    assert built(four_and_two(True, 0)).strategy.routes == built(four_and_two(True)).strategy.routes


@pytest.mark.parametrize("partition_bytes", [65536, 1 << 20])
@pytest.mark.parametrize(
    ("rate_bps", "made_bytes"), [(10**8, 64 << 10), (10**9, 256 << 10), (10**10, 1 << 20)]
)
def test_partitions_are_those_of_the_planned_share(
    rate_bps: int, made_bytes: int, partition_bytes: int
) -> None:
    """Not those that a policy preferred in the recorded job, and they stay."""
    settings, _ = schedulers.resolve("prophet", {})
    job = served_job([rate_bps] * 4, [rate_bps] * 2)
    recorded = replace(
        job,
        policy=Policy("prophet", {**settings, "partition_bytes": partition_bytes}),
        strategy=replace(job.strategy, partition_bytes=partition_bytes),
    )
    made = built(recorded)
    planned = {
        **settings,
        "partition_bytes": made_bytes,
        "partition_max_bytes": 0,
        "window_floor_bytes": made.push_policy.settings["window_floor_bytes"],
    }
    assert made.push_policy.settings == planned
    assert made.strategy.partition_bytes == made_bytes
    # A size that was given stays.
    fixed_size = {"partition_bytes": partition_bytes, "partition_max_bytes": 0}
    fixed = {**settings, **fixed_size}
    kept = built(replace(recorded, policy=Policy("prophet", fixed)))
    assert kept.push_policy.settings == {**planned, **fixed_size}
    assert kept.strategy.partition_bytes == partition_bytes
    assert built(job).strategy.partition_bytes == job.strategy.partition_bytes


@pytest.mark.parametrize(
    ("rate_bps", "floor_bytes"), [(0, 0), (10**8, 125_000), (3 * 10**8, 375_000), (10**10, 1 << 20)]
)
def test_servers_have_as_much_in_flight_as_keeps_their_share(
    rate_bps: int, floor_bytes: int
) -> None:
    """What two of five connections carry in 25 ms, or the largest window."""
    job = served_job([rate_bps] * 4, [rate_bps] * 2)
    settings, _ = schedulers.resolve("prophet", {})
    made = built(replace(job, policy=Policy("prophet", settings)))
    assert made.push_policy.settings["window_floor_bytes"] == floor_bytes
    again = with_routes(made, made.strategy.routes, 0.25)  # it was made for one of two fifths
    assert again.push_policy.settings["window_floor_bytes"] <= floor_bytes
    assert (again.push_policy.settings["window_floor_bytes"] < floor_bytes) == (
        0 < floor_bytes < 1 << 20
    )
    given = {**settings, "window_floor_bytes": 99_999}
    kept = built(replace(job, policy=Policy("prophet", given)))
    assert kept.push_policy.settings["window_floor_bytes"] == 99_999


def test_it_is_known_when_a_mix_gains_nothing() -> None:
    two = built(served_job([RATE_BPS] * 2, [RATE_BPS]))
    assert len(carried(two.model, two.strategy.routes, MESH))
    said = "with 2 workers and 1 server(s), an all-reduce loads the links no more than a mix does"
    assert why_useless(two) == said
    assert not why_useless(built(served_job([RATE_BPS] * 4, [RATE_BPS] * 2)))
    # One worker's link is slow, and servers are the way that loads it least.
    slow = [RATE_BPS] * 3 + [RATE_BPS // 2]
    assert "servers alone" in why_useless(built(served_job(slow, [RATE_BPS] * 2)))


def test_a_paced_mix_that_would_be_servers_alone_is_refused() -> None:
    job = served_job([RATE_BPS] * 2, [RATE_BPS] * 2)
    with pytest.raises(UserError, match="mixed-paced: servers alone load these links least"):
        build("mixed-paced", job)


def test_a_model_of_one_small_parameter_is_refused() -> None:
    job = served_job([RATE_BPS] * 4, [RATE_BPS] * 2)
    one = Times(*(times[:, :, :1] for times in (job.times.forward_ns, job.times.ready_ns)),
        job.times.backward_ns, job.times.update_ns[:, :, :1])  # fmt: skip
    small = replace(job, model=Model((Parameter("only", 400),)), times=one)
    with pytest.raises(UserError, match="nothing of this model would go over the mesh"):
        built(small)


def test_the_bound_of_a_job_that_the_links_limit() -> None:
    """By hand: all gradients are ready at once, and nothing is needed before all are there."""
    shape = (4, 3, 2)
    times = Times(
        forward_ns=np.zeros(shape, np.int64),
        ready_ns=np.zeros(shape, np.int64),
        backward_ns=np.zeros(shape[:2], np.int64),
        update_ns=np.zeros(shape, np.int64),
    )
    model = Model((Parameter("a", 4_000_000), Parameter("b", 6_000_000)))
    routes = (Route("a", (Piece(4_000_000, SERVERS),)), Route("b", (Piece(6_000_000, MESH),)))
    links = (Host(RATE_BPS, RATE_BPS),)
    strategy = Strategy("mixed", routes=routes, mesh="allreduce")
    job = Job(model, times, Cluster(links * 4, links, COSTS), strategy, Policy("fifo", {}))
    # Worker: 4 + 1.5 x 6 MB. The server: 4 x 4 MB.
    assert bound_ns(job) == pytest.approx(16e6 * 8e9 / RATE_BPS, rel=1e-6)
    two = replace(job, cluster=Cluster(links * 4, links * 2, Costs()))
    assert bound_ns(two) == pytest.approx(13e6 * 8e9 / RATE_BPS, rel=1e-6)
