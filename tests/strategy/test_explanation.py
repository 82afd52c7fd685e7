"""The loads of links against the formulas of the notes on owners, and what limits."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from byteprophet.job import Host, Job
from byteprophet.job.as_executed import as_executed
from byteprophet.job.assumed_costs import UNSURE
from byteprophet.job.owners import LEAST_CHUNK_BYTES, Owners
from byteprophet.job.predicted import Predicted
from byteprophet.job.routes import SERVERS, bytes_of
from byteprophet.measure.servers import Measured
from byteprophet.replay.predict import kind_of
from byteprophet.strategy.builders import build
from byteprophet.strategy.explanation import Explanation, Load, explain, loads
from byteprophet.strategy.local import local

from .jobs import SIZES, mesh_job, served_job

RATE_BPS = 400_000_000


@pytest.mark.parametrize("name", ["allreduce", "dear", "dear-planned", "owners"])
@pytest.mark.parametrize("slow", [1, 2])
def test_a_rank_moves_what_its_share_says(name: str, slow: int) -> None:
    ranks = 4
    job = mesh_job([RATE_BPS] * (ranks - slow) + [RATE_BPS // 2] * slow)
    built = build(name, job)
    found = {load.link: load for load in loads(kind_of(built).replay(built))}
    shares = Owners.of(built.strategy.owners, ranks).shares
    for rank, share in enumerate(shares):
        expected = (1 + (ranks - 2) * share) * sum(SIZES)  # docs/allreduce.md
        for way in ("up", "down"):
            load = found[f"worker {rank} {way}"]
            chunks = len(built.strategy.buckets) + sum(SIZES) // LEAST_CHUNK_BYTES
            rounding_bytes = ranks * chunks  # each one's shares are of whole bytes
            assert abs(Fraction(load.size_bytes) - expected) <= rounding_bytes
            rate_bps = job.cluster.workers[rank].up_bps
            assert load.busy_ns == round(load.size_bytes * 8e9 / rate_bps)
    busiest = max(found.values(), key=lambda load: load.busy_ns)
    assert loads(kind_of(built).replay(built))[0] == busiest


@pytest.mark.parametrize("name", ["ps", "ps-balanced", "partitioned-ps"])
def test_servers_receive_and_send_everything_once_per_worker(name: str) -> None:
    built = build(name, served_job([RATE_BPS] * 3, [RATE_BPS, RATE_BPS // 2]))
    found = loads(kind_of(built).replay(built))
    for role, copies in (("worker", 1), ("server", 3)):
        for way in ("up", "down"):
            these = [load for load in found if load.link.startswith(role) and way in load.link]
            moved = sum(load.size_bytes for load in these)
            assert moved >= sum(SIZES) * 3
            # Requests and acknowledgements have bytes, too, but few.
            assert moved <= sum(SIZES) * 3 * 1.05, (role, way, copies)


def test_what_limits() -> None:
    busy = (Load("worker 0 up", 1000, 80), Load("worker 1 up", 500, 40))

    def limit(loads: tuple[Load, ...], compute_ns: int) -> str:
        return Explanation(Predicted(100, (90, 110), 90), 90, compute_ns, loads, {}, 0.0).limit

    assert limit(busy, 60) == "worker 0 up"
    assert limit(busy, 90) == "computation"
    assert limit((), 90) == "computation"


def measured_of(job: Job) -> Measured:
    """As if ``job`` had been recorded, exactly as it is replayed."""
    played = kind_of(job).replay(job)
    begin_ns = played.replayed.start_ns[played.begin]
    end_ns = played.replayed.end_ns[played.end]
    return Measured(job, np.concatenate([begin_ns, end_ns[:, -1:]], axis=1))


def test_all_numbers_are_of_one_step() -> None:
    """An exchange that several steps share counts in each of them with its part."""
    base = mesh_job([RATE_BPS] * 4, "allreduce")
    once = explain(measured_of(base), base)
    averaging = local(base, 8)
    strategy = replace(base.strategy, accumulation=4)
    accumulating = as_executed(replace(base, strategy=strategy))  # as it would be recorded
    for job, measured in ((averaging, base), (accumulating, accumulating)):
        found, steps = explain(measured_of(measured), job), job.strategy.steps
        assert found.predicted.iteration_ns >= found.compute_ns
        own_ns = int(averaging.times.update_ns[0, 0].sum()) if job is averaging else 0
        assert found.compute_ns == once.compute_ns + own_ns
        for load, of_one in zip(found.loads, once.loads, strict=True):
            assert load.size_bytes == pytest.approx(of_one.size_bytes / steps, abs=1)
            assert load.busy_ns == pytest.approx(of_one.busy_ns / steps, rel=1e-4)
    assert once.limit == "worker 0 up"
    assert found.limit == "computation"


@pytest.mark.parametrize("served", [True, False])
def test_a_mix_is_predicted_from_either_transport_with_a_wider_interval(served: bool) -> None:
    rates_bps, servers_bps = [RATE_BPS] * 4, [RATE_BPS] * 2
    recorded = served_job(rates_bps, servers_bps) if served else mesh_job(rates_bps)
    measured = measured_of(recorded)
    servers = tuple(Host(rate_bps, rate_bps) for rate_bps in servers_bps)
    cluster = replace(recorded.cluster, servers=servers, mesh_costs=recorded.cluster.costs)
    job = build("mixed", replace(recorded, cluster=cluster))
    found = explain(measured, job)
    assert found.assumed == ("the mesh" if served else "servers")
    assert abs(found.replay_error) < 0.02
    iteration_ns, (low_ns, high_ns) = found.predicted.iteration_ns, found.predicted.interval_ns
    assert found.bound_ns <= iteration_ns
    assert low_ns <= iteration_ns * (1 - UNSURE)
    assert high_ns >= int(iteration_ns * (1 + UNSURE))
    assert found.as_json()["interval_ns"] == [low_ns, high_ns]
    alone = explain(measured, recorded)
    assert not alone.assumed
    # The same job, recorded with both transports, needs no assumption.
    both = explain(measured_of(job), job)
    assert not both.assumed
    assert both.predicted.interval_ns[1] - both.predicted.interval_ns[0] < high_ns - low_ns


def test_what_links_carry_is_listed_the_busiest_first() -> None:
    """Four workers and two servers: by hand, from the routes of a strategy (MB)."""
    job = build("mixed", served_job([RATE_BPS] * 4, [RATE_BPS // 4] * 2))
    found = loads(kind_of(job).replay(job))
    to_servers = sum(bytes_of(job.model, job.strategy.routes, SERVERS))
    of_worker = to_servers + 1.5 * (sum(SIZES) - to_servers)
    table = {load.link: load.size_bytes for load in found}
    expected = {
        "server": 4 * to_servers / 2,  # each of two servers, four workers' pushes
        "worker": of_worker,
    }
    for link, size_bytes in table.items():
        what = expected[link.partition(" ")[0]]
        # Placement is by partitions, and shards are rounded.
        assert size_bytes == pytest.approx(what, abs=2 * 4 * 1_000_000), link
    assert len(table) == 2 * (4 + 2)
    assert [load.busy_ns for load in found] == sorted((e.busy_ns for e in found), reverse=True)
    assert found[0].link.startswith("server")  # at a quarter of the rate
