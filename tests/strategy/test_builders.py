"""What each builder makes, and for which jobs it refuses to."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from byteprophet.errors import UserError
from byteprophet.job import Job
from byteprophet.job.compression import Compressed, TopK
from byteprophet.job.partitions import partitions_of_job
from byteprophet.job.strategy import BYTEPS, Delay
from byteprophet.job.strategy_file import read_strategy_file, write_strategy
from byteprophet.optimize.recorded import used_by
from byteprophet.replay.under import under
from byteprophet.strategy.builders import BUILDERS, build

from .jobs import SIZES, mesh_job, served_job

RATE_BPS = 400_000_000


def recorded(runtime: str) -> Job:
    if runtime == BYTEPS:
        return served_job([RATE_BPS] * 2, [RATE_BPS, RATE_BPS // 3])
    return mesh_job([RATE_BPS, RATE_BPS, RATE_BPS // 2], runtime)


@pytest.mark.parametrize("name", [name for name, each in BUILDERS.items() if not each.adds_servers])
def test_what_is_built_survives_a_file(name: str, tmp_path: Path) -> None:
    job = recorded(BUILDERS[name].runtimes[0])
    built = build(name, job)
    path = tmp_path / "strategy.json"
    write_strategy(path, used_by(built, job))
    again = under(job, read_strategy_file(path), str(path))
    assert again.strategy == built.strategy
    named = [each for bucket in built.strategy.buckets for each in bucket.parameters]
    assert built.policy is not None or sorted(named) == sorted(job.model.names)


def loads(job: Job) -> list[int]:
    parts = partitions_of_job(job)
    return [int(each) for each in np.bincount(parts.server, parts.size_bytes, job.servers)]


def test_servers_are_loaded_as_their_links_allow() -> None:
    job = recorded(BYTEPS)
    cut = loads(build("partitioned-ps", job))
    most_off = max(partitions_of_job(job).size_bytes)
    assert sum(cut) == sum(SIZES)
    assert abs(cut[1] - sum(SIZES) / 4) <= most_off
    whole = build("ps-balanced", job)
    assert np.diff(partitions_of_job(whole).first).tolist() == [1] * len(SIZES)
    assert loads(whole)[1] <= sum(SIZES) / 4 + max(SIZES)
    assert build("ps", build("partitioned-ps", job)).strategy == job.strategy


def test_a_slow_rank_owns_less() -> None:
    assert build("owners", recorded("dear")).strategy.owners == (1, 1, 0)


@pytest.mark.parametrize(
    ("name", "runtime", "says"),
    [
        ("ring", "dear", "'ring': choose of allreduce, dear, "),
        ("ps", "dear", "under dear; for this one: allreduce, dear, dear-planned, owners, "),
        ("dear", BYTEPS, "under byteps; for this one: ps, ps-balanced, partitioned-ps"),
    ],
)
def test_what_cannot_be_built(name: str, runtime: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        build(name, recorded(runtime))


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        ("mixed", {"staleness": (Delay("large", 1),)}, "delayed averages"),
        ("mixed", {"compressors": (Compressed(("large",), TopK(0.01)),)}, "compressed gradients"),
        ("dear", {"compressors": (Compressed(("large",), TopK(0.01)),)}, "compressed gradients"),
    ],
)
def test_what_no_builder_keeps_is_refused(name: str, change: dict[str, Any], says: str) -> None:
    job = recorded("dear")
    with pytest.raises(UserError, match=f"{name}: this job was recorded with {says}"):
        build(name, replace(job, strategy=replace(job.strategy, **change)))
