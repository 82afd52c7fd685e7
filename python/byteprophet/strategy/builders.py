"""The known strategies: each builder makes one for a recorded job.

Without servers, the planner of each runtime chooses the buckets (``allreduce/strategies.py``). With
servers, a builder decides how gradients are cut and which server sums what:

- ``ps``: BytePS' own partitions, placed by its hash;
- ``ps-balanced``: whole gradients, placed so that the servers' loads are even;
- ``partitioned-ps``: BytePS' partitions, placed so that the servers' loads are even.

The loads are even in proportion to the rates of the servers' links. ``owners`` is for ranks whose
links differ: the slow ones own less (``allreduce/levelled.py``). ``mixed`` and ``mixed-paced``
(``mixed.py``) use both transports in one job, which may have been recorded under either one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from byteprophet.allreduce.levelled import levelled
from byteprophet.allreduce.strategies import strategy_for
from byteprophet.errors import UserError
from byteprophet.job import Job
from byteprophet.job.partitions import PAGE_BYTES, partitions_of_job
from byteprophet.job.strategy import (
    ALL_REDUCE,
    BYTEPS,
    DDP,
    DEAR,
    DEAR_PLANNED,
    MIXED,
    OURS,
    Keys,
)
from byteprophet.optimize.keys import may_change_keys, with_keys
from byteprophet.optimize.passes.placement import placed_by_load
from byteprophet.replay.all_reduce import with_strategy
from byteprophet.schedulers import MAX_PARTITION_BYTES
from byteprophet.strategy.hand_builders import (
    UNABLE,
    chunked,
    one_by_one,
    one_server,
    parallax,
    uneven,
)
from byteprophet.strategy.mixed import mixed
from byteprophet.strategy.shares import shared


@dataclass(frozen=True)
class Builder:
    """Makes one kind of strategy.

    Attributes:
        what: describes it.
        runtimes: those under which the job may have been recorded; others have another transport.
        make: returns the job under the strategy.
        adds_servers: whether it uses both transports, so that a job that was recorded without
            servers gets some.
    """

    what: str
    runtimes: tuple[str, ...]
    make: Callable[[Job], Job]
    adds_servers: bool = False


def _planned(runtime: str, job: Job) -> Job:
    return with_strategy(job, strategy_for(job, runtime))


def _owners(job: Job) -> Job:
    owners = levelled([host.slower_bps for host in job.cluster.workers])
    asked = replace(job, strategy=replace(job.strategy, owners=owners.unequal))
    return _planned(DEAR_PLANNED, asked)


def _hashed(job: Job) -> Job:
    return with_keys(job, lambda keys: Keys(keys.tensor))


def _whole(job: Job) -> Job:
    sizes = dict(zip(job.model.names, job.model.sizes_bytes, strict=True))

    def whole(keys: Keys) -> Keys:
        pages = -(-sizes[keys.tensor] // PAGE_BYTES)
        return Keys(keys.tensor, min(pages * PAGE_BYTES, MAX_PARTITION_BYTES))

    return _by_load(with_keys(job, whole))


def _by_load(job: Job) -> Job:
    sizes_bytes = partitions_of_job(job).size_bytes
    return placed_by_load(job, np.argsort(-sizes_bytes, kind="stable").tolist())


def _cut(job: Job) -> Job:
    return _by_load(_hashed(job))


PACED = "mixed-paced"
_BOTH = (BYTEPS, *OURS)

BUILDERS: Mapping[str, Builder] = {
    "allreduce": Builder("all-reduces of planned buckets", OURS, partial(_planned, ALL_REDUCE)),
    "dear": Builder("DeAR: sharded updates, two halves", OURS, partial(_planned, DEAR)),
    "dear-planned": Builder("halves in one planned order", OURS, partial(_planned, DEAR_PLANNED)),
    "owners": Builder("slow ranks own less, halves in one planned order", OURS, _owners),
    "ddp": Builder("DistributedDataParallel's buckets", (DDP,), partial(_planned, DDP)),
    "ps": Builder("BytePS' partitions, placed by its hash", (BYTEPS,), _hashed),
    "ps-balanced": Builder("whole gradients, servers' loads even", (BYTEPS,), _whole),
    "partitioned-ps": Builder("BytePS' partitions, servers' loads even", (BYTEPS,), _cut),
    "ps-one": Builder("the first server sums everything", (BYTEPS,), one_server),
    "uneven-partitioned-ps": Builder("parts of unequal sizes, servers in turn", (BYTEPS,), uneven),
    "allreduce-chunked": Builder("all-reduces of 128 gradients each", OURS, chunked),
    "partitioned-allreduce": Builder("an all-reduce for every gradient", OURS, one_by_one),
    MIXED: Builder(
        "some to servers, the others over a mesh", (*_BOTH, MIXED), mixed, adds_servers=True
    ),
    PACED: Builder(
        "the same, and the mesh leaves servers their share of the link",
        (*_BOTH, MIXED),
        partial(mixed, paced=True),
        adds_servers=True,
    ),
    "shares": Builder(
        "the same, with owners: all links are loaded evenly", _BOTH, shared, adds_servers=True
    ),
    "parallax": Builder(
        "embeddings to servers, all else over a mesh", _BOTH, parallax, adds_servers=True
    ),
}


def build(name: str, job: Job) -> Job:
    """``job`` under the strategy that the builder ``name`` makes for it.

    Its averages are not delayed. Raises ``UserError`` if there is no such builder, or if it is not
    for such jobs.
    """
    if name in UNABLE:
        raise UserError(f"{name}: {UNABLE[name]}")
    builder = BUILDERS.get(name)
    if builder is None:
        raise UserError(f"{name!r}: choose of {', '.join(BUILDERS)}")
    if job.strategy.runtime not in builder.runtimes:
        able = [known for known, each in BUILDERS.items() if job.strategy.runtime in each.runtimes]
        has = f"; for this one: {', '.join(able)}" if able else ""
        raise UserError(
            f"{name}: for jobs under {', '.join(builder.runtimes)}, and this one was recorded "
            f"under {job.strategy.runtime}{has}"
        )
    if job.strategy.compressors:
        raise UserError(
            f"{name}: this job was recorded with compressed gradients, and nothing plans how they "
            "travel otherwise: record it without, and compress what is made: --compress"
        )
    if job.strategy.staleness and builder.adds_servers:
        raise UserError(
            f"{name}: this job was recorded with delayed averages, which two transports do not "
            "have: record it without"
        )
    if job.strategy.runtime == BYTEPS and not may_change_keys(job):
        raise UserError(f"{name}: the gradients of this job cannot be given servers of their own")
    return builder.make(job)
