"""How each gradient becomes the same on all workers."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, replace

from byteprophet.job.compression import Compressed, Compressor
from byteprophet.job.routes import Route

BYTEPS = "byteps"
MIXED = "mixed"
"""Some gradients go to servers, and the others over the mesh of the ranks (``routes.py``)."""
DDP, WFBP, FSDP2 = "ddp", "wfbp", "fsdp2"
ALL_REDUCE, DEAR, DEAR_PLANNED = "allreduce", "dear", "dear-planned"
OURS = (ALL_REDUCE, DEAR, DEAR_PLANNED)
"""Runtimes of ``byteprophet.torch.DistributedOptimizer(sync=...)`` without servers."""
TORCH_ALL_REDUCE = (DDP, WFBP)
"""Runtimes that all-reduce by torch's collectives. As among ``OURS``, a job recorded under one can
be replayed under another."""
SHARDING = (DEAR, DEAR_PLANNED, FSDP2)
"""Runtimes that may shard buckets."""
SERVERS, MESH, TORCH, SHARDED = "servers", "mesh", "torch", "sharded"
"""What carries gradients: BytePS, our mesh of the ranks, torch's collectives, those of FSDP2."""
_BEFORE_ALL = -1
"""A place before those of all buckets."""
AUTO = "auto"
SYNCS = (*OURS, BYTEPS, AUTO)
"""What may exchange the gradients of DistributedDataParallel in place of its own reducer."""


@dataclass(frozen=True)
class Bucket:
    """Gradients that travel together.

    ``parameters``: names. ``reduce_place`` and ``gather_place`` order the reduce-scatters and
    all-gathers of an iteration: of those that can start, the smallest place goes first.
    ``sharded``: every worker updates its shard, and the all-gather carries parameters after
    ``step()``; otherwise it carries averaged gradients, and every worker updates all of them.
    """

    parameters: tuple[str, ...]
    reduce_place: int
    gather_place: int
    sharded: bool = False


def buckets_without(buckets: Iterable[Bucket], names: Container[str]) -> tuple[Bucket, ...]:
    """``buckets`` without the parameters ``names``; those that become empty are left out."""
    rest = (
        replace(bucket, parameters=tuple(n for n in bucket.parameters if n not in names))
        for bucket in buckets
    )
    return tuple(bucket for bucket in rest if bucket.parameters)


def compressed_buckets(strategy: Strategy) -> tuple[Bucket, ...]:
    """A bucket for each compressed gradient, before all of the strategy's; none is sharded."""
    return tuple(
        Bucket((name,), _BEFORE_ALL, _BEFORE_ALL)
        for each in strategy.compressors
        for name in each.parameters
    )


def with_compressed(strategy: Strategy, compressors: tuple[Compressed, ...]) -> Strategy:
    """``strategy`` with ``compressors``, whose gradients leave its buckets."""
    alone = {name for each in compressors for name in each.parameters}
    return replace(
        strategy, buckets=buckets_without(strategy.buckets, alone), compressors=compressors
    )


def without_compressed(strategy: Strategy) -> Strategy:
    """``strategy`` without compressors. Their gradients have a bucket each, before all others."""
    alone = compressed_buckets(strategy)
    shards = strategy.shardable and strategy.runtime in SHARDING
    count = len(alone)
    first = (
        replace(bucket, reduce_place=place, gather_place=count + place, sharded=shards)
        for place, bucket in enumerate(alone)
    )
    others = (
        replace(
            bucket,
            reduce_place=2 * count + bucket.reduce_place,
            gather_place=2 * count + bucket.gather_place,
        )
        for bucket in strategy.buckets
    )
    return replace(strategy, buckets=(*first, *others), compressors=())


@dataclass(frozen=True)
class Keys:
    """How BytePS cuts one gradient into partitions, and which servers sum these.

    ``tensor``: the gradient's name, as the model has it. ``partition_bytes``: its partition size;
    0: that of all others. ``servers``: partition n goes to the n-th of them, and behind the last it
    begins again with the first; none: BytePS' hash decides.
    """

    tensor: str
    partition_bytes: int = 0
    servers: tuple[int, ...] = ()


@dataclass(frozen=True)
class Region:
    """Modules that run as one, given by their paths in the model, in the order of their calls.

    The output of each is the input of the next. The gradients of a compiled region are complete
    together, at its end. A recomputed region keeps only its input, and runs again in the backward
    pass.
    """

    modules: tuple[str, ...]
    compiled: bool = False
    recomputed: bool = False

    def mode(self, autocast: bool = False) -> str:
        """How it runs, as one word: "eager", "compiled", "compiled-bf16", and so on."""
        words = [COMPILED] * self.compiled + [RECOMPUTED] * self.recomputed + [BF16] * autocast
        return "-".join(words) or EAGER


@dataclass(frozen=True)
class Delay:
    """``parameter`` is updated by averages that are ``steps`` iterations old (``staleness.py``)."""

    parameter: str
    steps: int


EAGER, COMPILED, RECOMPUTED, BF16 = "eager", "compiled", "recomputed", "bf16"

FP16 = "fp16"
REDUCE_DTYPES = (BF16, FP16)
"""Types in which gradients of type float32 may travel. Both take half as many bytes."""


@dataclass(frozen=True)
class Strategy:
    """How a job's gradients are synchronised, and how its model computes.

    ``runtime``: "byteps" (parameter servers), or one of the all-reduce runtimes, which have
    ``buckets``, made of up to ``bucket_bytes``, or as the runtime plans them (0). ``owners``: with
    ours, how much each rank owns (``owners.py``); none: equally much.
    ``partition_bytes`` and ``numbers`` are BytePS': the partition size, and the
    numbers of tensors, in forward order, by which it finds partitions' servers (none: their
    places). ``keys``: of the gradients that differ from that.

    ``regions``: modules that run as one; all others run as the script calls them. ``autocast``: the
    model computes in bfloat16 where torch's autocast says so. ``fixed`` says why the runtime could
    not be given other buckets; "" if it could. ``shardable`` false: every worker has to update all
    of a parameter, so no bucket can be sharded.

    ``reduce_dtype``: gradients of float32 travel, and are summed, in this type, one of
    ``REDUCE_DTYPES``; parameters and updates keep theirs. "": gradients travel as they are.
    ``reduce_fixed`` says why they could not be given another type; "" if they could.
    ``accumulation``: of so many calls of ``step()``, only the last exchanges gradients and updates,
    by the mean of the gradients of all of them.
    ``staleness``: the parameters whose averages are delayed, in forward order.
    ``local_sgd``: every call of ``step()`` updates by the worker's own gradients; after so many of
    them, parameters are averaged. 0: gradients are averaged in every step.

    ``routes``: of each gradient, if ``runtime`` is "mixed". ``mesh`` is then the one of ours that
    ranks use among themselves. ``buckets`` and ``owners`` are for what goes over the mesh, and
    ``partition_bytes`` and ``keys`` for what goes to servers. They name parts of gradients.
    ``mesh_bps``: while servers have gradients of a rank, it sends over the mesh at most so fast,
    to all other ranks together; 0: as fast as TCP lets it.

    ``compressors``: of the gradients that travel compressed, under one of ours. These are in no
    bucket, and every worker updates all of their parameters.

    ``compressed_by_script``: of a recorded job with servers, the gradients for which its script has
    chosen one of BytePS' own compressors. A file says nothing of them.
    """

    runtime: str = BYTEPS
    buckets: tuple[Bucket, ...] = ()
    bucket_bytes: int = 0
    partition_bytes: int = 0
    numbers: tuple[int, ...] = ()
    keys: tuple[Keys, ...] = ()
    regions: tuple[Region, ...] = ()
    autocast: bool = False
    fixed: str = ""
    owners: tuple[int, ...] = ()
    reduce_dtype: str = ""
    reduce_fixed: str = ""
    shardable: bool = True
    accumulation: int = 1
    routes: tuple[Route, ...] = ()
    mesh: str = ""
    mesh_bps: int = 0
    staleness: tuple[Delay, ...] = ()
    compressors: tuple[Compressed, ...] = ()
    local_sgd: int = 0
    compressed_by_script: tuple[str, ...] = ()

    @property
    def compressor_of(self) -> Mapping[str, Compressor]:
        """The compressor of each parameter whose gradient travels compressed, by its name."""
        return {name: each.compressor for each in self.compressors for name in each.parameters}

    @property
    def steps(self) -> int:
        """How many calls of ``step()`` share one exchange."""
        return max(self.accumulation, self.local_sgd)

    @property
    def is_told_to_workers(self) -> bool:
        """Whether a job with servers must know more of it than its policy and partition size."""
        own = self.keys or self.routes or self.staleness
        return self.changes_model or self.changes_gradients or bool(own)

    @property
    def changes_model(self) -> bool:
        """Whether the model computes otherwise than the script says."""
        return bool(self.regions) or self.autocast

    @property
    def changes_gradients(self) -> bool:
        """Whether updates are made by other gradients than those that the script computes."""
        return bool(self.reduce_dtype or self.compressors) or self.accumulation > 1
