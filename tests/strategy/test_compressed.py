"""A recorded job under a strategy that compresses gradients: loads of links, and refusals."""

from __future__ import annotations

from dataclasses import replace

import pytest

from byteprophet.errors import UserError
from byteprophet.job import Job, Model, Strategy
from byteprophet.job.compression import Compressed, Compressor, OneBit, PowerSgd, RandomK
from byteprophet.job.owners import Owners
from byteprophet.job.strategy_file import Used
from byteprophet.replay.under import under
from byteprophet.strategy.compressed import under_compression
from byteprophet.strategy.explanation import explain_compressed

from .jobs import NAMES, SIZES, mesh_job, served_job

RATE_BPS = 400_000_000
PLACE = NAMES.index("large")


def compressing(job: Job, compressor: Compressor, **changes: object) -> Used:
    buckets = tuple(
        replace(bucket, parameters=left)
        for bucket in job.strategy.buckets
        if (left := tuple(name for name in bucket.parameters if name != "large"))
    )
    compressors = (Compressed(("large",), compressor),)
    strategy = Strategy("allreduce", buckets, compressors=compressors)
    return Used(job.model, replace(strategy, **changes), since=0)  # type: ignore[arg-type]


@pytest.mark.parametrize("owners", [(), (2, 1, 1, 0)])
@pytest.mark.parametrize("compressor", [OneBit(), RandomK(0.25)], ids=str)
def test_links_carry_buckets_and_forms(compressor: Compressor, owners: tuple[int, ...]) -> None:
    ranks = 4
    job = mesh_job([RATE_BPS] * ranks)
    used = compressing(job, compressor, owners=owners)
    found = explain_compressed(under_compression(job, used, "FILE"), "FILE")
    rest = sum(SIZES) - SIZES[PLACE]
    for rank, share in enumerate(Owners.of(owners, ranks).shares):
        moved = (1 + (ranks - 2) * share) * rest
        if isinstance(compressor, OneBit):
            moved += (ranks - 1) * (SIZES[PLACE] // 32 + 4)
        else:
            moved += (1 + (ranks - 2) * share) * SIZES[PLACE] // 4
        for way in ("up", "down"):
            (load,) = [each for each in found.loads if each.link == f"worker {rank} {way}"]
            assert abs(load.size_bytes - moved) <= len(SIZES) * ranks
            assert load.busy_ns == round(load.size_bytes * 8e9 / RATE_BPS)
    assert found.predicted is None
    assert found.bound_ns <= max(load.busy_ns for load in found.loads) + found.compute_ns


def test_less_travels_so_the_bound_is_lower() -> None:
    job = mesh_job([RATE_BPS] * 2)
    bounds = [
        explain_compressed(under_compression(job, compressing(job, each), "FILE"), "FILE").bound_ns
        for each in (RandomK(0.9), RandomK(0.5), OneBit())
    ]
    assert bounds == sorted(bounds, reverse=True)
    assert bounds[-1] < bounds[0]


def test_what_cannot_be_explained() -> None:
    job = mesh_job([RATE_BPS] * 2)
    used = compressing(job, PowerSgd(2))
    with pytest.raises(UserError, match="FILE: what powersgd sends of 'large' depends on its sh"):
        explain_compressed(under_compression(job, used, "FILE"), "FILE")
    with pytest.raises(UserError, match="FILE: a job of compressed gradients cannot be replayed"):
        under(job, used, "FILE")
    with pytest.raises(UserError, match="FILE: its runtime 'allreduce' has no servers"):
        under_compression(served_job([RATE_BPS] * 2, [RATE_BPS]), used, "FILE")
    with pytest.raises(UserError, match="FILE: it has owners' weights for 3 ranks"):
        under_compression(job, compressing(job, OneBit(), owners=(1, 2, 1)), "FILE")
    other = replace(used, model=Model(job.model.parameters[:-1]))
    with pytest.raises(UserError, match="FILE is the strategy of another model"):
        under_compression(job, other, "FILE")
