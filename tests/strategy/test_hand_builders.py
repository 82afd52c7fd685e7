"""AutoDist's builders as our runtimes execute them: what each makes of a small job."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from byteprophet.errors import UserError
from byteprophet.job import Model, Parameter
from byteprophet.job.partitions import partitions_of_job
from byteprophet.job.routes import MESH, SERVERS
from byteprophet.job.strategy_file import Used, read_strategy_file, write_strategy
from byteprophet.replay.predict import kind_of
from byteprophet.strategy.builders import BUILDERS, build
from byteprophet.strategy.hand_builders import HAND, UNABLE

from .jobs import NAMES, SIZES, mesh_job, served_job

RATE_BPS = 400_000_000


def test_one_server_sums_everything() -> None:
    job = build("ps-one", served_job([RATE_BPS] * 2, [RATE_BPS] * 2))
    assert set(partitions_of_job(job).server.tolist()) == {0}
    assert kind_of(job).replay(job).iterations_ns.min() > 0


@pytest.mark.parametrize("reduce_dtype", ["", "fp16"])
def test_parts_are_of_unequal_sizes_on_servers_in_turn(reduce_dtype: str) -> None:
    """On the wire, where gradients may have half of their bytes."""
    recorded = served_job([RATE_BPS] * 2, [RATE_BPS] * 3)
    strategy = replace(recorded.strategy, reduce_dtype=reduce_dtype)
    job = build("uneven-partitioned-ps", replace(recorded, strategy=strategy))
    parts = partitions_of_job(job)
    turn = 0
    for place, size_bytes in enumerate(job.wire_bytes):
        own = slice(*parts.first[place : place + 2].tolist())
        sizes = parts.size_bytes[own].tolist()
        assert sum(sizes) == size_bytes
        assert len(sizes) >= 2
        assert sizes[-1] < sizes[0]
        for server in parts.server[own].tolist():
            assert server == turn % 3
            turn += 1


def test_all_reduces_hold_one_gradient_or_a_chunk() -> None:
    job = mesh_job([RATE_BPS] * 3)
    one = build("partitioned-allreduce", job).strategy
    assert sorted(bucket.parameters for bucket in one.buckets) == sorted((name,) for name in NAMES)
    (bucket,) = build("allreduce-chunked", job).strategy.buckets
    assert set(bucket.parameters) == set(NAMES)
    assert not bucket.sharded


def test_embeddings_go_to_servers(tmp_path: Path) -> None:
    job = served_job([RATE_BPS] * 4, [RATE_BPS] * 2)
    named = ("embed.weight", *NAMES[1:])
    model = Model(tuple(map(Parameter, named, SIZES)))
    made = build("parallax", replace(job, model=model))
    ways = {route.tensor: {piece.way for piece in route.pieces} for route in made.strategy.routes}
    assert ways == {name: {SERVERS if "emb" in name else MESH} for name in named}
    assert not any(bucket.sharded for bucket in made.strategy.buckets)
    assert np.array_equal(made.times.update_ns, job.times.update_ns)  # of whole parameters
    path = tmp_path / "strategy.json"
    used = Used(made.model, made.strategy, 0, made.policy, 2)
    write_strategy(path, used)
    assert read_strategy_file(path) == used
    with pytest.raises(UserError, match="called an embedding"):
        build("parallax", job)


@pytest.mark.parametrize("name", sorted(UNABLE))
def test_why_not_is_said(name: str) -> None:
    with pytest.raises(UserError, match=name):
        build(name, mesh_job([RATE_BPS] * 2))


def test_all_hand_builders_are_builders() -> None:
    assert set(HAND) <= BUILDERS.keys()
    assert not UNABLE.keys() & BUILDERS.keys()
    assert np.all([each.what for each in BUILDERS.values()])
