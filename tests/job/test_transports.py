"""What each transport carries, as jobs of one transport."""

from __future__ import annotations

import random

import numpy as np
import pytest

from byteprophet.job import Cluster, Costs, Host, Job, Model, Parameter, Policy, Strategy, Times
from byteprophet.job.partitions import partitions_of_job
from byteprophet.job.routes import MESH, SERVERS, WAYS, Piece, Route
from byteprophet.job.strategy import ALL_REDUCE, MIXED
from byteprophet.job.transports import meshed, served, share_of_servers


def job_of(routes: tuple[Route, ...], workers: int = 4) -> Job:
    model = Model(tuple(Parameter(route.tensor, route.size_bytes) for route in routes))
    none = np.zeros((workers, 2, len(model)), np.int64)
    cluster = Cluster((Host(),) * workers, (Host(),) * 2, Costs(delay_ns=1), Costs(delay_ns=2))
    strategy = Strategy(MIXED, partition_bytes=4096, routes=routes, mesh=ALL_REDUCE)
    return Job(model, Times(none, none, none[:, :, 0], none), cluster, strategy, Policy("fifo"))


def test_pieces_and_buffers_are_tensors_of_their_own() -> None:
    """By hand: 4 MB pass before and behind the small ones, so a buffer may have 256 KiB."""
    large, small = 4_000_000, 100_000
    routes = (
        Route("z", (Piece(large, SERVERS),)),
        Route("a", (Piece(small, SERVERS),)),
        Route("b", (Piece(small, MESH),)),
        Route("c", (Piece(small, SERVERS),)),
        Route("d", (Piece(large, SERVERS), Piece(400, MESH))),
    )
    job = job_of(routes)
    own, others = served(job), meshed(job)
    assert own.job.model.names == ("z", "a and 1 more", "d[0]")
    assert own.job.model.sizes_bytes == (large, 2 * small, large)
    assert own.parameters == ((0,), (1, 3), (4,))
    # The front declares a, c, d and z, and then buffers.
    assert own.job.strategy.numbers == (3, 4, 2)
    assert others.job.model.names == ("b", "d[1]")
    assert others.parameters == ((2,), (4,))
    assert others.job.strategy.runtime == ALL_REDUCE
    assert (own.job.cluster.costs.delay_ns, others.job.cluster.costs.delay_ns) == (1, 2)
    assert served(job, buffer_bytes=0).job.model.names == ("z", "a", "c", "d[0]")


@pytest.mark.parametrize("seed", range(20))
def test_all_bytes_go_one_way_or_the_other(seed: int) -> None:
    draw = random.Random(seed)
    routes = []
    for number in range(draw.randint(1, 30)):
        sizes = [4 * int(10 ** draw.uniform(0, 6)) for _ in range(draw.randint(1, 3))]
        pieces = tuple(Piece(size, draw.choice(WAYS)) for size in sizes)
        routes.append(Route(f"p{draw.randint(0, 10**9)}.{number}", pieces))
    job = job_of(tuple(routes))
    halves = {SERVERS: served(job), MESH: meshed(job)}
    for way, half in halves.items():
        expected = [p.size_bytes for r in routes for p in r.pieces if p.way == way]
        assert half.job.model.size_bytes == sum(expected)
        held = [place for places in half.parameters for place in places]
        assert held == sorted(held)
        assert len(held) == len(expected)
    numbers = halves[SERVERS].job.strategy.numbers
    assert len(set(numbers)) == len(numbers)
    if numbers:
        assert partitions_of_job(halves[SERVERS].job).size_bytes.sum() == sum(
            halves[SERVERS].job.model.sizes_bytes
        )
    to_servers, over_mesh = (halves[way].job.model.size_bytes for way in WAYS)
    share = to_servers / (to_servers + over_mesh * 2 * 3 / 4)
    assert share_of_servers(job) == pytest.approx(share)
