"""What a synchronisation runtime changes about the memory of a rank, place by place.

*Optimizer state*: where a bucket is sharded, a rank keeps the state of its shard only.

*Gradients of the iteration before*: updates overlap with the next forward pass. A gradient may live
until the forward pass first reads its parameter, which waits for the update.

*What is received*: with sockets (``native/exchange/inbox.h``), the other ranks' parts of this
rank's shard are kept until all of them have come, and so are parts of what this rank has not
started yet. Another rank may be a whole backward pass ahead, so both may be here at any time. Their
memory is not given back, but used again. A rank begins its part of a bucket's all-gather when it
has sent its part of the reduce-scatter, so of a single other rank only one of the two is here,
unless owners are unequal and the bucket goes in chunks (``job/owners.py``). With
BytePS and a scheduler, gradients are sent from their own memory, and answers, which come after the
gradient has been sent, are copied from messages. Gradients in bfloat16 travel as float32 copies.

How much of this there is at the peak depends on the network and on the other ranks. This is the
most.

DistributedDataParallel has none of this: gradients are averages when the backward pass ends. Its
buckets are as large as all gradients and live all the time, and gloo reduces ``_AT_ONCE`` of them
at a time in place, with scratch memory.

Not included: BytePS without a scheduler (``stock``), which copies gradients into shared memory;
other collectives of process groups (FSDP2: ``sharded.py``); and the kernel's buffers of sockets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from byteprophet.errors import UserError
from byteprophet.job.owners import Owners
from byteprophet.job.region_memory import ParameterMemory
from byteprophet.job.strategy import BYTEPS, DDP, FSDP2, OURS, Strategy
from byteprophet.job.times import Int64Array
from byteprophet.memory.gloo import all_reduce_scratch_bytes

_PAIR = 2
_AT_ONCE = 2
"""Threads of a gloo process group of torch."""
_KNOWN = (BYTEPS, *OURS, DDP)


@dataclass(frozen=True)
class OnRank:
    """``extra_bytes`` (places,): what lives besides, at most. ``received_bytes``: of all gradients.

    ``saved_state_bytes``: optimizer state that other ranks keep.
    """

    extra_bytes: Int64Array
    received_bytes: int
    saved_state_bytes: int


def on_rank(
    strategy: Strategy,
    parameters: Mapping[str, ParameterMemory],
    places: int,
    ranks: int,
    rank: int,
    update_bytes: int,
) -> OnRank:
    """What the runtime of ``strategy`` changes on ``rank``.

    Args:
        strategy: the runtime, with its buckets and owners if it is not BytePS.
        parameters: those with gradients, by name.
        places: how many places an iteration has.
        ranks: their number.
        rank: the rank that is asked for.
        update_bytes: the temporary results of an update.

    Raises:
        UserError: the runtime is another one, or the strategy is of another model or of another
            number of ranks.
    """
    if strategy.runtime == FSDP2:
        raise UserError(
            "memory: FSDP2's units are modules of a script, which a strategy does not have: use "
            "predict_sharded_peak of byteprophet.memory.sharded"
        )
    if strategy.runtime not in _KNOWN:
        raise UserError(
            f"memory: what runtime '{strategy.runtime}' adds is not known: use one of "
            f"{', '.join(_KNOWN)}"
        )
    if strategy.runtime == DDP:
        return _reduced(strategy, parameters, places, ranks)
    owners = Owners.of(strategy.owners, ranks)
    extra = np.zeros(places, dtype=np.int64)
    saved = received = 0
    for names, sharded in _buckets(strategy, parameters):
        bucket = [parameters[name] for name in names]
        shards = [_length(owners.shard(each.elements, rank)) for each in bucket]
        if sharded:
            saved += sum(
                each.state_bytes - round(each.state_bytes * shard / each.elements)
                for each, shard in zip(bucket, shards, strict=True)
                if each.elements
            )
        for each in bucket:
            extra[: each.unread_places] += each.size_bytes
        if ranks == 1:
            continue
        comes = sum(
            _received(strategy, each, shard, owners)
            for each, shard in zip(bucket, shards, strict=True)
        )
        received += comes
        if strategy.runtime == BYTEPS:
            extra[: max(each.unread_places for each in bucket)] += comes
            extra[max(each.ready_place for each in bucket) :] += comes
        else:
            extra += comes
    extra[: max((each.unread_places for each in parameters.values()), default=0)] += update_bytes
    return OnRank(extra, received, saved)


def _reduced(
    strategy: Strategy, parameters: Mapping[str, ParameterMemory], places: int, ranks: int
) -> OnRank:
    """What DistributedDataParallel changes."""
    buckets_bytes = [
        sum(parameters[name].size_bytes for name in names)
        for names, _ in _buckets(strategy, parameters)
    ]
    scratch = sorted(all_reduce_scratch_bytes(each, ranks) for each in buckets_bytes)
    extra = sum(buckets_bytes) + sum(scratch[-_AT_ONCE:])
    return OnRank(np.full(places, extra, dtype=np.int64), 0, 0)


def _buckets(
    strategy: Strategy, parameters: Mapping[str, ParameterMemory]
) -> list[tuple[tuple[str, ...], bool]]:
    """Each bucket's parameters, and whether it is sharded."""
    if strategy.runtime == BYTEPS:
        return [((name,), False) for name in parameters]
    buckets = [(bucket.parameters, bucket.sharded) for bucket in strategy.buckets]
    theirs = sorted(name for names, _ in buckets for name in names)
    if theirs != sorted(name for name, each in parameters.items() if each.elements):
        differing = set(theirs) ^ parameters.keys()
        raise UserError(
            f"memory: the strategy is of another model: '{min(differing, default=theirs[0])}' is "
            "not in both, or in two buckets"
        )
    return buckets


def _received(strategy: Strategy, parameter: ParameterMemory, shard: int, owners: Owners) -> int:
    """Bytes that are received of one gradient, or travel in its place."""
    if strategy.runtime == BYTEPS:
        return parameter.served_bytes
    ranks = len(owners.weights)
    element = parameter.size_bytes // max(1, parameter.elements)
    reduced, gathered = (ranks - 1) * shard, parameter.elements - shard
    in_turn = ranks == _PAIR and owners.are_equal
    return element * (max(reduced, gathered) if in_turn else reduced + gathered)


def _length(shard: slice) -> int:
    return int(shard.stop - shard.start)
