"""Jobs of two transports as graphs: each alone is the known graph, and both share the links."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from byteprophet import schedulers
from byteprophet.allreduce.strategies import strategy_for
from byteprophet.errors import UserError
from byteprophet.graph import Graph, mesh_graph, mixed_graph, ps_graph
from byteprophet.graph.labels import Kind
from byteprophet.graph.mesh_transfers import FRAME_BYTES, OF_THE_MESH
from byteprophet.job import (
    Bucket,
    Cluster,
    Costs,
    Host,
    Job,
    Model,
    Parameter,
    Policy,
    Strategy,
    Times,
)
from byteprophet.job.routes import MESH, SERVERS, WAYS, Piece, Route, carried
from byteprophet.job.strategy import ALL_REDUCE, BYTEPS, MIXED, OURS
from byteprophet.replay import Replayed, replay
from byteprophet.runtime_settings import DEFAULT_FUSION_BYTES

RATE_BPS = 800_000_000  # a byte takes 10 ns
NS_PER_BYTE = 10
MS = 1_000_000
COLUMNS = ("duration_ns", "size_bytes", "device", "latency_ns", "priority", "successor")


def drawn(seed: int, workers: int = 3, servers: int = 2) -> Job:
    """Without a strategy: large gradients, so that none share a buffer, and uneven workers."""
    noise = np.random.default_rng(seed)
    tensors, iterations = int(noise.integers(2, 8)), 3
    shape = (workers, iterations, tensors)
    ready_ns = np.cumsum(noise.integers(MS, 40 * MS, shape), axis=2)[..., ::-1].copy()
    sizes = (DEFAULT_FUSION_BYTES + 4 * noise.integers(1, 2_000_000, tensors)).tolist()
    rates_bps = (RATE_BPS * noise.choice([1, 2], workers)).tolist()
    return Job(
        Model(tuple(Parameter(f"p{n}", size) for n, size in enumerate(sizes))),
        Times(
            forward_ns=noise.integers(0, 30 * MS, shape),
            ready_ns=ready_ns,
            backward_ns=ready_ns.max(axis=2) + 2 * MS,
            update_ns=noise.integers(0, MS, shape),
        ),
        Cluster(
            tuple(Host(rate_bps, rate_bps) for rate_bps in rates_bps),
            (Host(RATE_BPS, RATE_BPS), Host())[:servers],
            Costs(
                delay_ns=100_000,
                message_cost_ns=20_000,
                hand_over_ns=10_000,
                request_lags_ns=(50_000, 300_000),
                sum_ns_per_byte=0.5,
                answers_bytes=400_000,
                start_lag_ns=30_000,
                update_lag_ns=40_000,
                host_ns_per_byte=float(noise.choice([0.0, 3.0])),
            ),
        ),
        Strategy(BYTEPS),
        Policy("fifo"),
    )


def whole(job: Job, way: str) -> tuple[Route, ...]:
    return tuple(Route(each.name, (Piece(each.size_bytes, way),)) for each in job.model.parameters)


def assert_same(found: Graph, expected: Graph) -> None:
    for column in COLUMNS:
        assert np.array_equal(getattr(found, column), getattr(expected, column)), column


@pytest.mark.parametrize("scheduler", [name for name in schedulers.names if name != "stock"])
@pytest.mark.parametrize("seed", range(3))
def test_with_all_to_servers_it_is_their_graph(scheduler: str, seed: int) -> None:
    job = drawn(seed)
    settings, partition_bytes = schedulers.resolve(scheduler, {})
    policy = Policy(scheduler, settings)
    strategy = Strategy(BYTEPS, partition_bytes=partition_bytes)
    alone = ps_graph.build(replace(job, strategy=strategy, policy=policy))
    routed = replace(strategy, runtime=MIXED, routes=whole(job, SERVERS), mesh=ALL_REDUCE)
    both = mixed_graph.build(replace(job, strategy=routed, policy=policy))
    assert_same(both.graph, alone.graph)
    assert np.array_equal(both.update, alone.update)
    assert np.array_equal(replay(both.graph).end_ns, replay(alone.graph).end_ns)


@pytest.mark.parametrize("runtime", OURS)
@pytest.mark.parametrize("seed", range(4))
def test_with_all_over_the_mesh_it_is_its_graph(runtime: str, seed: int) -> None:
    """The times are those of its replay also where hosts make bytes slower than the links."""
    job = drawn(seed)
    ranks = replace(
        job,
        cluster=replace(job.cluster, servers=()),
        strategy=Strategy(runtime),
        policy=None,
    )
    ranks = replace(ranks, strategy=strategy_for(ranks, runtime))
    alone = mesh_graph.build(ranks)
    routed = replace(ranks.strategy, runtime=MIXED, routes=whole(job, MESH), mesh=runtime)
    both = mixed_graph.build(replace(job, strategy=routed))
    assert np.array_equal(both.begin, alone.begin)
    assert np.array_equal(both.update, alone.update)
    expected, found = replay(alone.graph), replay(both.graph)
    if not job.cluster.costs.host_ns_per_byte:
        assert_same(both.graph, alone.graph)
        assert np.array_equal(found.end_ns, expected.end_ns)
    # A bit per second more or less may let another frame go first.
    frame_ns = 2 * FRAME_BYTES * NS_PER_BYTE
    assert found.end_ns == pytest.approx(expected.end_ns, abs=frame_ns)
    assert found.makespan_ns == pytest.approx(expected.makespan_ns, rel=1e-3)


def even(
    ways: str,
    size_bytes: int = 8 << 20,
    workers: int = 2,
    servers: int = 1,
    mesh_bps: int = 0,
    **costs: int,
) -> Job:
    """One iteration, gradients that are ready at once, and of which ``ways`` says where they go.

    "s": to servers, "m": over the mesh, "c": cut in two equal pieces, to servers and over the mesh.
    """
    pieces = {"s": (SERVERS,), "m": (MESH,), "c": (SERVERS, MESH)}
    model = Model(tuple(Parameter(f"p{n}", size_bytes) for n in range(len(ways))))
    routes = tuple(
        Route(name, tuple(Piece(size_bytes // len(pieces[way]), each) for each in pieces[way]))
        for name, way in zip(model.names, ways, strict=True)
    )
    shape = (workers, 1, len(ways))
    none = np.zeros(shape, np.int64)
    times = Times(none, none + MS, none[:, :, 0] + MS, none + 1000)
    over_mesh = carried(model, routes, MESH).names
    buckets = tuple(Bucket((name,), n, 10 + n) for n, name in enumerate(over_mesh))
    strategy = Strategy(
        MIXED,
        buckets,
        partition_bytes=FRAME_BYTES,
        routes=routes,
        mesh=ALL_REDUCE,
        mesh_bps=mesh_bps,
    )
    link = Host(RATE_BPS, RATE_BPS)
    cluster = Cluster((link,) * workers, (link,) * servers, Costs(**costs))
    return Job(model, times, cluster, strategy, Policy("fifo"))


def replayed(job: Job) -> tuple[mixed_graph.MixedGraph, Replayed]:
    built = mixed_graph.build(job)
    return built, replay(built.graph)


def test_both_transports_share_a_link_by_connections() -> None:
    """By hand, two workers and a server, M bytes each way at B bytes per second.

    A worker has one connection to its server and one to its peer, so each gets B / 2; and the
    server's link is shared by two workers, too. Pushes take 2 M / B, answers end a message later.
    Reduce-scatter and all-gather move M / 2 each, so the mesh is done after 2 M / B as well.
    """
    size_bytes = 8 << 20
    built, found = replayed(even("sm", size_bytes))
    expected_ns = MS + 2 * size_bytes * NS_PER_BYTE
    messages_ns = 4 * FRAME_BYTES * NS_PER_BYTE
    for worker in (0, 1):
        there_ns = found.start_ns[built.update[worker, 0]]
        assert (there_ns >= expected_ns * 0.999).all()
        assert (there_ns <= expected_ns + messages_ns).all()


def test_a_link_carries_what_the_formula_says() -> None:
    """Four workers and two servers: (name of a link, MiB that cross it), worked out by hand.

    To servers go 2 x 8 and half of 8 MiB, over the mesh 8 and half of 8. A worker's link carries
    20 + 12 x 2 x 3 / 4, and a server's that of four workers, of whole 8 MiB or of pieces.
    """
    job = even("ssmc", workers=4, servers=2)
    built, found = replayed(job)
    moved = {
        link.name: int(size) / (1 << 20)
        for link, size in zip(built.graph.links, found.link_bytes, strict=True)
    }
    expected = {f"worker {n} {way}": 20 + 18 for n in range(4) for way in ("up", "down")}
    of_servers = {name: size for name, size in moved.items() if name.startswith("server")}
    assert {name: size for name, size in moved.items() if name in expected} == expected
    assert sum(of_servers.values()) == 2 * 4 * 20
    assert not any(name.endswith(OF_THE_MESH) for name in moved)


def test_an_update_waits_for_all_pieces() -> None:
    built, found = replayed(even("c"))
    labels = built.graph.labels
    answers = labels.kind == Kind.ANSWER
    gathers = labels.kind == Kind.ALL_GATHER_END
    for worker in (0, 1):
        last_ns = max(
            found.end_ns[answers & (labels.peer == worker)].max(),
            found.end_ns[gathers & (labels.rank == worker)].max(),
        )
        assert found.start_ns[built.update[worker, 0, 0]] == last_ns


@pytest.mark.parametrize("ways", ["c", "sm", "ss"])
def test_all_updates_wait_for_all_if_the_script_does(ways: str) -> None:
    job = even(ways)
    built, found = replayed(replace(job, times=replace(job.times, waits_for_all=True)))
    kinds = built.graph.labels.kind
    arrives = np.isin(kinds, (Kind.ANSWER, Kind.ALL_GATHER_END))
    ends_ns = found.end_ns + built.graph.latency_ns
    last_ns = [
        ends_ns[arrives & np.where(kinds == Kind.ANSWER, peer == worker, rank == worker)].max()
        for peer, rank in [(built.graph.labels.peer, built.graph.labels.rank)]
        for worker in (0, 1)
    ]
    assert (found.start_ns[built.update].min(axis=(1, 2)) == last_ns).all()


def test_small_gradients_share_buffers_on_their_way_to_servers() -> None:
    """Each waits for its buffer, which leaves when the last of them is ready."""
    job = even("s" * 40 + "m", 64 << 10)
    ready_ns = job.times.ready_ns + np.arange(41) * MS
    job = replace(
        job, times=replace(job.times, ready_ns=ready_ns, backward_ns=ready_ns.max(axis=2))
    )
    built, found = replayed(job)
    names = built.graph.labels.names
    pushes = np.flatnonzero(built.graph.labels.kind == Kind.PUSH)
    sent = {names[tensor] for tensor in built.graph.labels.tensor[pushes].tolist()}
    assert "p4 and 3 more" in sent
    assert len(pushes) < 2 * 40
    assert built.graph.size_bytes[pushes].sum() == 2 * 40 * (64 << 10)
    assert (found.start_ns[built.update[0, 0, 4:8]] > ready_ns[0, 0, 7]).all()


def test_a_paced_mesh_leaves_servers_the_rest() -> None:
    """Two workers, at an eighth of the link: M bytes in two halves take eight times as long."""
    size_bytes = 1 << 20
    _, free = replayed(even("sm", size_bytes))
    built, paced = replayed(even("sm", size_bytes, mesh_bps=RATE_BPS // 8))
    labels = built.graph.labels
    gathered_ns = paced.end_ns[labels.kind == Kind.ALL_GATHER_END].max()
    assert gathered_ns == pytest.approx(MS + 8 * size_bytes * NS_PER_BYTE, rel=1e-3)
    pushes = labels.kind == Kind.PUSH
    assert paced.end_ns[pushes].max() < free.end_ns[pushes].max() * 1.001


def test_host_time_slows_the_mesh_alone() -> None:
    job = even("sm")
    slow = replace(job.cluster, mesh_costs=Costs(host_ns_per_byte=5.0 * NS_PER_BYTE))
    built, found = replayed(replace(job, cluster=slow))
    labels = built.graph.labels
    size_bytes = job.model.sizes_bytes[0]
    gathered_ns = found.end_ns[labels.kind == Kind.ALL_GATHER_END].max()
    assert gathered_ns == pytest.approx(MS + 6 * size_bytes * NS_PER_BYTE, rel=1e-3)
    # The mesh takes a sixth of the link, and the workers share the server's.
    pushed_ns = found.end_ns[labels.kind == Kind.PUSH].max()
    assert pushed_ns == pytest.approx(MS + 2 * size_bytes * NS_PER_BYTE, rel=1e-3)


@pytest.mark.parametrize("seed", range(4))
def test_any_routes_move_all_bytes_and_wait_for_them(seed: int) -> None:
    """Pieces and ways are drawn; no forward begins before what it needs was updated."""
    job = drawn(seed)
    noise = np.random.default_rng(seed)
    routes = []
    for each in job.model.parameters:
        first = 4 * int(noise.integers(1, each.size_bytes // 4))
        ends = noise.permutation(WAYS).tolist()
        routes.append(
            Route(each.name, (Piece(first, ends[0]), Piece(each.size_bytes - first, ends[1])))
        )
    over_mesh = carried(job.model, routes, MESH).names
    strategy = Strategy(
        MIXED,
        (Bucket(over_mesh[:1], 0, 2), Bucket(over_mesh[1:], 1, 3)),
        partition_bytes=1 << 20,
        routes=tuple(routes),
        mesh=ALL_REDUCE,
    )
    built = mixed_graph.build(replace(job, strategy=strategy))
    found = replay(built.graph)
    needed_ns, begun_ns = found.end_ns[built.update], found.start_ns[built.forward]
    assert (begun_ns[:, 1:] >= needed_ns[:, :-1]).all()
    sent = built.graph.size_bytes[built.graph.labels.kind == Kind.PUSH].sum()
    served = sum(piece.size_bytes for route in routes for piece in route.pieces
                 if piece.way == SERVERS)  # fmt: skip
    assert sent == served * job.workers * job.iterations


def test_stock_has_no_mesh() -> None:
    job = replace(even("sm"), policy=Policy("stock"))
    with pytest.raises(UserError, match="stock has BytePS' own optimizer"):
        mixed_graph.build(job)
