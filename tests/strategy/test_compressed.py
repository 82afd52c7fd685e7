"""A recorded job under a strategy that compresses gradients: replays, loads of links, refusals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from byteprophet.bound import bound_ns
from byteprophet.errors import UserError
from byteprophet.job import (
    Bucket,
    Cluster,
    Costs,
    Host,
    Job,
    Model,
    Parameter,
    Processors,
    Strategy,
    Times,
)
from byteprophet.job.cluster import Compressing
from byteprophet.job.compression import Compressed, Compressor, OneBit, PowerSgd, RandomK, TopK
from byteprophet.job.owners import Owners
from byteprophet.job.strategy import Delay
from byteprophet.job.strategy_file import Used
from byteprophet.optimize.compressing_costs import compressing_ns, with_compressing_costs
from byteprophet.replay.all_reduce import ALL_REDUCE
from byteprophet.replay.predict import kind_of
from byteprophet.replay.under import under
from byteprophet.strategy.compressed import compressed
from byteprophet.strategy.delayed import delayed
from byteprophet.strategy.explanation import explain, loads

from .jobs import NAMES, SIZES, mesh_job, one_gradient, served_job
from .test_explanation import measured_of

RATE_BPS = 400_000_000
PLACE = NAMES.index("large")
MS = 1_000_000


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
    recorded = mesh_job([RATE_BPS] * ranks)
    job = under(recorded, compressing(recorded, compressor, owners=owners), "FILE")
    found = loads(kind_of(job).replay(job))
    rest = sum(SIZES) - SIZES[PLACE]
    for rank, share in enumerate(Owners.of(owners, ranks).shares):
        moved = (1 + (ranks - 2) * share) * rest
        if isinstance(compressor, OneBit):
            moved += (ranks - 1) * (SIZES[PLACE] // 32 + 4)
        else:
            moved += (1 + (ranks - 2) * share) * SIZES[PLACE] // 4
        for way in ("up", "down"):
            (load,) = [each for each in found if each.link == f"worker {rank} {way}"]
            assert abs(load.size_bytes - moved) <= len(SIZES) * ranks


def alone(compressor: Compressor, ranks: int, before_ns: int, after_ns: int) -> Job:
    """One gradient of 8 MB, which is compressed, and is ready after 10 ms; a byte takes 10 ns."""
    return Job(
        *one_gradient(ranks),
        Cluster(
            (Host(800_000_000, 800_000_000),) * ranks,
            costs=Costs(compressing=(Compressing("large", before_ns, after_ns),)),
        ),
        Strategy("allreduce", compressors=(Compressed(("large",), compressor),)),
    )


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("compressor", [TopK(10_000), OneBit(), RandomK(50_000)], ids=str)
def test_an_iteration_takes_what_compressing_and_forms_take(
    compressor: Compressor, ranks: int
) -> None:
    """Forward, backward, compress, exchange, average, update: one after the other."""
    job = alone(compressor, ranks, 5 * MS, 7 * MS)
    form = compressor.form((2_000_000,))
    expected_ns = (3 + 10 + 5 + 7 + 1) * MS + round(10 * form.sent_bytes(ranks))
    (*_, last_ns) = ALL_REDUCE.iterations_ns(job)
    assert last_ns == pytest.approx(expected_ns, abs=20)
    assert ALL_REDUCE.daydream_ns(job) == pytest.approx(expected_ns, abs=20)
    assert bound_ns(job) <= last_ns - 12 * MS  # which knows nothing of compressing


def test_compressing_takes_its_part_of_shared_cores() -> None:
    """Two ranks on one core: what both compute takes twice as long, and so does compressing."""
    job = alone(OneBit(), 2, 5 * MS, 7 * MS)
    travels_ns = round(10 * OneBit().form((2_000_000,)).sent_bytes(2))
    machines = (Processors((0, 1), 1),)
    shared = replace(job, cluster=replace(job.cluster, processors=machines))
    (*_, last_ns) = ALL_REDUCE.iterations_ns(shared)
    assert last_ns == pytest.approx(2 * (3 + 10 + 5 + 7 + 1) * MS + travels_ns, rel=1e-3)


def test_forms_leave_before_buckets_and_ranks_compress_one_after_the_other() -> None:
    """Two gradients are ready together with a bucket: the second form waits for the first."""
    shape = (2, 3, 3)
    names, sizes = ("a", "b", "c"), (4_000_000, 4_000_000, 1_000_000)
    job = Job(
        Model(tuple(map(Parameter, names, sizes))),
        Times(
            forward_ns=np.full(shape, 0),
            ready_ns=np.full(shape, 10 * MS),
            backward_ns=np.full(shape[:2], 10 * MS),
            update_ns=np.full(shape, 0),
        ),
        Cluster(
            (Host(800_000_000, 800_000_000),) * 2,
            costs=Costs(compressing=(Compressing("a", 4 * MS, 0), Compressing("b", 4 * MS, 0))),
        ),
        Strategy(
            "allreduce",
            (Bucket(("c",), 0, 1),),
            compressors=(Compressed(("a", "b"), TopK(100_000)),),
        ),
    )
    (*_, last_ns) = ALL_REDUCE.iterations_ns(job)
    # The bucket's halves take 10 ms. A form takes 8 ms, and the second is made after 8 ms, in the
    # middle of the first one or of the bucket. So the link is never idle after the first 0 ms.
    assert last_ns == pytest.approx((10 + 10 + 16) * MS, rel=0.02)


@pytest.mark.parametrize("before_ns", [5 * MS, 9 * MS])
def test_a_delayed_one_takes_an_iteration_only_if_it_is_slower(before_ns: int) -> None:
    """A rank compresses a gradient once the average of the one before it is there."""
    job = alone(TopK(10_000), 2, before_ns, 7 * MS)
    late = replace(job.strategy, staleness=(Delay("large", 1),))
    (*_, last_ns) = ALL_REDUCE.iterations_ns(replace(job, strategy=late))
    exchange_ns = before_ns + 800_000 + 7 * MS
    assert last_ns == pytest.approx(max((3 + 10 + 1) * MS, exchange_ns), abs=20)


def test_less_travels_so_the_bound_is_lower() -> None:
    job = mesh_job([RATE_BPS] * 2)
    bounds = [
        bound_ns(under(job, compressing(job, each), "FILE"))
        for each in (RandomK(0.9), RandomK(0.5), OneBit())
    ]
    assert bounds == sorted(bounds, reverse=True)
    assert bounds[-1] < bounds[0]


def test_costs_are_measured_and_what_a_record_tells_is_kept() -> None:
    before_ns, after_ns = compressing_ns(TopK(0.1), 1 << 16, 2)
    assert before_ns > 0
    assert after_ns > 0
    # Of more than a million elements, what a million take is multiplied.
    million, four = (compressing_ns(TopK(0.1), count << 20, 2) for count in (1, 4))
    assert four == pytest.approx([4 * each for each in million], abs=4)
    job = mesh_job([RATE_BPS] * 2)
    used = compressing(job, OneBit())
    found = with_compressing_costs(under(job, used, "FILE"))
    (cost,) = found.cluster.costs.compressing
    assert cost.parameter == "large"
    assert cost.before_ns > 0
    assert cost.after_ns > 0
    assert with_compressing_costs(found) is found
    # A run of the same compressor tells what it costs; one of another compressor does not.
    told = Compressing("large", 1, 2)
    recorded = replace(
        found,
        cluster=replace(found.cluster, costs=replace(found.cluster.costs, compressing=(told,))),
    )
    assert under(recorded, used, "FILE").cluster.costs.compressing == (told,)
    other = compressing(job, TopK(0.1))
    assert under(recorded, other, "FILE").cluster.costs.compressing == ()
    assert compressed(job, [], "--compress") is job


def test_a_strategy_with_rules_is_explained() -> None:
    job = mesh_job([RATE_BPS] * 4)
    measured = measured_of(job)
    made = compressed(job, ["large=randomk,k=0.1"], "--compress")
    found, plain = explain(measured, made), explain(measured, job)
    assert found.predicted.iteration_ns < plain.predicted.iteration_ns
    assert found.bound_ns <= found.predicted.iteration_ns
    late = delayed(made, ["out.0=1"])
    assert late.strategy.compressors == made.strategy.compressors
    assert all("large" not in bucket.parameters for bucket in late.strategy.buckets)


def test_what_cannot_be_explained() -> None:
    job = mesh_job([RATE_BPS] * 2)
    used = compressing(job, PowerSgd(2))
    shapeless = "what powersgd sends of 'large' depends on its shape, which a strategy does not ha"
    with pytest.raises(UserError, match=f"FILE: {shapeless}"):
        under(job, used, "FILE")
    with pytest.raises(UserError, match=f"--allow: {shapeless}"):
        compressed(job, ["large=powersgd,rank=2"], "--allow")
    with pytest.raises(ValueError, match="what powersgd sends of a gradient depends on its shape"):
        bound_ns(replace(job, strategy=used.strategy))
    with pytest.raises(UserError, match="FILE: its runtime 'allreduce' has no servers"):
        under(served_job([RATE_BPS] * 2, [RATE_BPS]), compressing(job, OneBit()), "FILE")
    with pytest.raises(UserError, match="--allow: byteps compresses no gradients; allreduce, dear"):
        compressed(served_job([RATE_BPS] * 2, [RATE_BPS]), ["large=onebit"], "--allow")
    with pytest.raises(UserError, match="FILE: it has owners' weights for 3 ranks"):
        under(job, compressing(job, OneBit(), owners=(1, 2, 1)), "FILE")
    with pytest.raises(UserError, match="--allow: compressors: rule 1: parameters: nothing is cal"):
        compressed(job, ["no*=onebit"], "--allow")
    other = replace(compressing(job, OneBit()), model=Model(job.model.parameters[:-1]))
    with pytest.raises(UserError, match="FILE is the strategy of another model"):
        under(job, other, "FILE")
