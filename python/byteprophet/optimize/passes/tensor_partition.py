"""How large the partitions are into which a job with servers cuts its gradients.

Smaller partitions let urgent gradients overtake sooner, and overlap pushes with sums and answers;
each one costs a message. The replay knows both. The iteration time over the size has more than one
hollow, because tensors are cut into whole partitions and policies have windows: doubling and
halving alone ended in the wrong one in one of six random jobs, up to 31% above the best size. So
sizes are tried in both directions, the nearest first, up to ``_STEPS`` doublings away.

With several servers, recorded jobs do not tell what a message costs, and a replay takes it for
nothing. Then no sizes below ``_CHEAP_BYTES`` are offered.

Then single gradients get sizes of their own, those on the critical path first: a large one may be
cut so that several servers sum it, while small ones stay whole. All gradients that are alike
(``view.py``) get theirs at once, before one alone does.

BytePS' own compressors compress partitions. Where the script has chosen one for a gradient, the
common size stays, and such a gradient gets no other.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace

from byteprophet.errors import UserError
from byteprophet.job import Job
from byteprophet.job.strategy import Keys
from byteprophet.optimize.keys import keeps_compressed, may_change_keys, places_on_path, with_keys
from byteprophet.optimize.moves import Effect, Hints, Move
from byteprophet.optimize.view import alike
from byteprophet.replay.ps import change
from byteprophet.replay.what_if import Changes

_SIZES_BYTES = tuple(1 << n for n in range(15, 24))
_STEPS = 3
_CHEAP_BYTES = 256 << 10  # a message of so many bytes costs little beside its bytes
_MOST_TENSORS = 8  # on the critical path, of which sizes are tried


class TensorPartition:
    """Offers other partition sizes under the same policy, for all gradients and for single ones."""

    name = "tensor-partition"
    effect = Effect.EXACT
    why = "Smaller partitions let urgent gradients overtake; larger ones cost fewer messages."

    def starts(self, job: Job) -> Iterable[Move]:
        """None: sizes are offered as moves."""
        return ()

    def moves(self, job: Job, hints: Hints) -> Iterator[Move]:
        """Larger and smaller powers of two, the nearest first."""
        if not may_change_keys(job):
            return
        yield from self._of_all(job)
        for place in places_on_path(job, hints)[:_MOST_TENSORS]:
            yield from self._of_one(job, place, hints.symmetric)

    def _of_all(self, job: Job) -> Iterator[Move]:
        for size_bytes in _around(job, job.strategy.partition_bytes):
            try:
                changed = change(job, Changes(partition_bytes=size_bytes))
            except UserError:  # too many partitions, or settings that do not go with the size
                continue
            if keeps_compressed(job, changed):
                yield Move(f"partitions of {size_bytes} bytes", changed)

    def _of_one(self, job: Job, place: int, symmetric: bool) -> Iterator[Move]:
        """Sizes of the gradient at ``place``, which change how often it is cut."""
        size_bytes = job.wire_bytes[place]
        name = job.model.names[place]
        compressed = {*job.strategy.compressed_by_script}
        if name in compressed:
            return
        own = {each.tensor: each.partition_bytes for each in job.strategy.keys}
        now = own.get(name, 0) or job.strategy.partition_bytes
        twins = {*alike(job.model, place)} - compressed if symmetric else ()
        for partition_bytes in _around(job, now):
            if min(partition_bytes, now) >= size_bytes:
                continue  # it is not cut in either case
            what = f"partitions of {partition_bytes} bytes for {name}"
            if len(twins) > 1:
                changed = _with_size(job, frozenset(twins), partition_bytes)
                yield Move(f"{what}, and {len(twins) - 1} alike", changed)
            yield Move(what, _with_size(job, frozenset((name,)), partition_bytes))


def _around(job: Job, now_bytes: int) -> list[int]:
    """Powers of two around a size, the nearest first."""
    larger = [size for size in _SIZES_BYTES if size > now_bytes][:_STEPS]
    least_bytes = 0 if job.cluster.costs.message_cost_ns or job.servers == 1 else _CHEAP_BYTES
    smaller = [size for size in reversed(_SIZES_BYTES) if least_bytes <= size < now_bytes][:_STEPS]
    return sorted(larger + smaller, key=lambda size: abs(math.log(size / now_bytes)))


def _with_size(job: Job, names: frozenset[str], partition_bytes: int) -> Job:
    own_bytes = 0 if partition_bytes == job.strategy.partition_bytes else partition_bytes

    def change(keys: Keys) -> Keys:
        return replace(keys, partition_bytes=own_bytes) if keys.tensor in names else keys

    return with_keys(job, change)
