"""Which gradients form a bucket and when the bucket is sent, as plain data equal on all ranks.

A bucket's *reduce-scatter* leaves every rank with the average of its shard of the bucket's
gradients. The bucket is either *whole* or *sharded*. If it is whole, an all-gather gives every rank
all averages, and every rank updates all parameters. If it is sharded, every rank updates its shard,
and the all-gather carries the new parameters. ``reduce_place`` and ``gather_place`` order
operations within an iteration: of those that can start, the one with the smallest place goes first.

The averages of a bucket may be used by a later step (``job/staleness.py``), ``delay`` iterations
later. Such a bucket is whole, and has the place that it has among the buckets of that iteration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from byteprophet.allreduce.groups import Groups
from byteprophet.allreduce.model import Order
from byteprophet.allreduce.order import allreduce, dear
from byteprophet.allreduce.timing import Link, Parameter, Timing
from byteprophet.job.staleness import NO_DELAYS

PLACES = 1 << 20  # places per iteration
_ANY_LINK = Link(ranks=2, bandwidth_bps=10**9)


@dataclass(frozen=True)
class Size:
    """The size and type of a parameter and its gradient. It keeps no tensor alive."""

    elements: int
    size_bytes: int
    dtype: torch.dtype


@dataclass(frozen=True)
class BucketLayout:
    """Parameters of one dtype and one delay whose gradients are sent together."""

    parameters: tuple[str, ...]
    reduce_place: int
    gather_place: int
    whole: bool
    delay: int = 0


def by_rule(
    mode: str,
    sizes: Mapping[str, Size],
    ready: Sequence[str],
    needed: Sequence[str],
    rule: Callable[[Timing], Groups],
    shardable: bool,
    delays: Mapping[str, int] = NO_DELAYS,
) -> list[BucketLayout]:
    """Make buckets by ``rule``, from gradients that become ready one after the other.

    No times are known here, only orders.

    Args:
        mode: the synchroniser's mode. Without a plan, ``"dear-planned"`` is DeAR with whole
            buckets, whose all-gathers carry gradients.
        sizes: the size of each parameter.
        ready: the parameters in the order in which backward makes their gradients ready.
        needed: the parameters in the order in which forward needs them.
        rule: makes buckets, each of them a sequence of positions in ``needed``.
        shardable: whether ranks may update shards.
        delays: of averages, in iterations, by parameter.
    """
    if not needed:
        return []
    turn = {name: place for place, name in enumerate(ready)}
    timing = Timing(
        tuple(Parameter(name, max(1, sizes[name].size_bytes), turn[name], 1) for name in needed),
        len(ready),
        _ANY_LINK,
    )
    groups = rule(timing)
    order = (allreduce if mode == "allreduce" else dear)(timing, groups)
    return arranged(sizes, needed, groups, order, shardable and mode == "dear", delays)


def arranged(
    sizes: Mapping[str, Size],
    needed: Sequence[str],
    groups: Groups,
    order: Order,
    shardable: bool,
    delays: Mapping[str, int] = NO_DELAYS,
) -> list[BucketLayout]:
    """Make layouts of ``groups``, each a bucket of positions in ``needed``, sent in ``order``.

    A bucket with several dtypes or ``delays`` is divided.
    """
    layouts: list[BucketLayout] = []
    for number, places in enumerate(groups):
        members: dict[tuple[torch.dtype, int], list[str]] = {}
        for place in places:
            name = needed[place]
            kind = sizes[name].dtype, delays.get(name, 0)
            members.setdefault(kind, []).append(name)
        sharded = shardable and order.after_step[number]
        layouts.extend(
            BucketLayout(
                tuple(names),
                order.reduce[number],
                order.gather[number],
                whole=not sharded or delay > 0,
                delay=delay,
            )
            for (_, delay), names in members.items()
        )
    return layouts
