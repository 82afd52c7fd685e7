"""The loads of links against the formulas of the notes on owners, and what limits."""

from __future__ import annotations

from fractions import Fraction

import pytest

from byteprophet.job.owners import Owners
from byteprophet.replay.predict import kind_of
from byteprophet.strategy.builders import build
from byteprophet.strategy.explanation import Explanation, Load, loads

from .jobs import SIZES, mesh_job, served_job

RATE_BPS = 400_000_000


@pytest.mark.parametrize("name", ["allreduce", "dear", "dear-planned", "owners"])
@pytest.mark.parametrize("slow", [1, 2])
def test_a_rank_moves_what_its_share_says(name: str, slow: int) -> None:
    ranks = 4
    job = mesh_job([RATE_BPS] * (ranks - slow) + [RATE_BPS // 2] * slow)
    built = build(name, job)
    found = {load.link: load for load in loads(kind_of(built).replay(built).replayed.graph)}
    shares = Owners.of(built.strategy.owners, ranks).shares
    for rank, share in enumerate(shares):
        expected = (1 + (ranks - 2) * share) * sum(SIZES)  # docs/allreduce.md
        for way in ("up", "down"):
            load = found[f"worker {rank} {way}"]
            rounding_bytes = ranks * len(built.strategy.buckets)
            assert abs(Fraction(load.size_bytes) - expected) <= rounding_bytes
            rate_bps = job.cluster.workers[rank].up_bps
            assert load.busy_ns == round(load.size_bytes * 8e9 / rate_bps)
    busiest = max(found.values(), key=lambda load: load.busy_ns)
    assert loads(kind_of(built).replay(built).replayed.graph)[0] == busiest


@pytest.mark.parametrize("name", ["ps", "ps-balanced", "partitioned-ps"])
def test_servers_receive_and_send_everything_once_per_worker(name: str) -> None:
    built = build(name, served_job([RATE_BPS] * 3, [RATE_BPS, RATE_BPS // 2]))
    found = loads(kind_of(built).replay(built).replayed.graph)
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
        return Explanation(100, 90, compute_ns, loads, {}, 0.0).limit

    assert limit(busy, 60) == "worker 0 up"
    assert limit(busy, 90) == "computation"
    assert limit((), 90) == "computation"
