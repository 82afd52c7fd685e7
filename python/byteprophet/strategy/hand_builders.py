"""Strategies as people write them by hand, for comparison: those of AutoDist that can run here.

AutoDist (Zhang et al., arXiv:2012.13177) brings a set of strategy builders, each of which follows
one rule for all variables. Here they are as our runtimes execute them:

- ``ps-one``: the first server sums everything (PS);
- ``uneven-partitioned-ps``: every gradient is cut into the smallest number of parts, at least two,
  that does not divide it evenly, and the servers take turns (UnevenPartitionedPS);
- ``allreduce-chunked``: all-reduces of 128 gradients each, in the order in which gradients are
  ready (AllReduce with its default chunk size);
- ``partitioned-allreduce``: an all-reduce for every gradient, which the mesh cuts into one part for
  each owner (PartitionedAR);
- ``parallax``: embeddings go to servers, and all else is all-reduced (Parallax, Kim et al., EuroSys
  2019). Gradients are dense here, so a name decides what is an embedding.

AutoDist's PSLoadBalancing is ``ps-balanced``, and its PartitionedPS ``partitioned-ps``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from byteprophet.allreduce.strategies import strategy_of_groups, timing_of
from byteprophet.errors import UserError
from byteprophet.job import Job
from byteprophet.job.partitions import PAGE_BYTES
from byteprophet.job.routes import MESH, SERVERS, Piece, Route, bytes_of
from byteprophet.job.strategy import ALL_REDUCE, Keys
from byteprophet.optimize.keys import with_keys
from byteprophet.replay.all_reduce import with_strategy
from byteprophet.schedulers import MAX_PARTITION_BYTES
from byteprophet.strategy.mixed import with_routes

CHUNK = 128
"""AutoDist's default: so many variables share an all-reduce."""
_EMBEDDING = re.compile("emb|wte|wpe", re.IGNORECASE)
_MOST_PARTS = 64

HAND = (
    "ddp",
    "ps",
    "ps-one",
    "ps-balanced",
    "partitioned-ps",
    "uneven-partitioned-ps",
    "allreduce-chunked",
    "partitioned-allreduce",
    "parallax",
)
"""Builders that follow one rule and know neither times nor links."""

UNABLE: Mapping[str, str] = {
    "random-axis": (
        "no runtime here cuts a gradient along another axis than the first: a part is a range of "
        "its memory; partitioned-allreduce moves the same bytes"
    ),
    "ps-colocated": (
        "the launcher gives every server a link of its own, so none can share a worker's; servers "
        "on all workers' hosts load the links as allreduce does, and owners is that with shares"
    ),
}
"""Why other builders of AutoDist's kind cannot run here."""


def one_server(job: Job) -> Job:
    """The first server sums everything."""
    return with_keys(job, lambda keys: Keys(keys.tensor, servers=(0,)))


def uneven(job: Job) -> Job:
    """Gradients are cut into parts of unequal sizes, and the servers take turns."""
    pages = {
        name: -(-size_bytes // PAGE_BYTES)
        for name, size_bytes in zip(job.model.names, job.wire_bytes, strict=True)
    }
    turns: dict[str, tuple[int, ...]] = {}
    turn = 0
    for name in job.model.names:
        parts = _uneven_parts(pages[name])
        turns[name] = tuple((turn + part) % job.servers for part in range(parts))
        turn += parts

    def cut(keys: Keys) -> Keys:
        parts = len(turns[keys.tensor])
        size_bytes = -(-pages[keys.tensor] // parts) * PAGE_BYTES
        return Keys(keys.tensor, min(size_bytes, MAX_PARTITION_BYTES), turns[keys.tensor])

    return with_keys(job, cut)


def _uneven_parts(pages: int) -> int:
    """The smallest number of parts from two on that leaves a smaller last one; else one."""
    for parts in range(2, min(pages, _MOST_PARTS)):
        each = -(-pages // parts)
        if pages % parts and -(-pages // each) == parts:
            return parts
    return 1


def chunked(job: Job) -> Job:
    """All-reduces of ``CHUNK`` gradients each."""
    return _all_reduces(job, CHUNK)


def one_by_one(job: Job) -> Job:
    """An all-reduce for every gradient."""
    return _all_reduces(job, 1)


def _all_reduces(job: Job, gradients: int) -> Job:
    timing = timing_of(job)
    order = timing.by_readiness
    groups = tuple(
        tuple(order[first : first + gradients]) for first in range(0, len(order), gradients)
    )
    return with_strategy(job, strategy_of_groups(timing, ALL_REDUCE, groups))


def parallax(job: Job) -> Job:
    """Embeddings go to servers, and all else is all-reduced."""
    routes = tuple(
        Route(
            each.name,
            (Piece(each.size_bytes, SERVERS if _EMBEDDING.search(each.name) else MESH),),
        )
        for each in job.model.parameters
    )
    served_bytes = sum(bytes_of(job.model, routes, SERVERS))
    if not served_bytes:
        raise UserError("parallax: this model has no gradient that is called an embedding")
    if served_bytes == job.model.size_bytes:
        raise UserError("parallax: this model has nothing but embeddings: use ps-balanced")
    # Its all-reduces are not sharded: their buckets are those that the runtime plans.
    unsharded = replace(job, strategy=replace(job.strategy, shardable=False))
    return with_routes(unsharded, routes, served_bytes / job.model.size_bytes)
