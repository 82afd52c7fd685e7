"""Which gradients travel together in a bucket (dPRO's tensor fusion, section 5 of the paper).

Buckets are runs of the order in which gradients are ready, so a set of buckets is a set of cuts
(``cuts.py``). A larger bucket costs fewer messages, but its first gradient waits for its last. The
moves are those of dPRO's Algorithm 1: they change buckets on the critical path, those that hold it
longest first. After each move the runtime gives the buckets their order anew. One more move gives
the same buckets that order.

Under ``allreduce``, buckets use the link one after the other, in the order in which they are ready.
That is what Theorem 2 speaks of (``theorems.py``). There it decides which merges are offered and
where a bucket is split; what it expects to be a loss is not replayed. Other runtimes send urgent
buckets first, and where workers share cores, a message slows down what they compute. The theorem
does not hold there, and replays decide alone.

DistributedDataParallel's buckets are cuts of the order that it has seen itself, which the recorded
buckets tell. Its all-reduces are rings of gloo, which begin the sum of an element at the rank that
its place in the bucket decides. With more than two ranks, other buckets therefore round otherwise.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from byteprophet.allreduce.groups import BUCKET_BYTES, Groups, fixed_size
from byteprophet.allreduce.strategies import strategy_of_groups, timing_of
from byteprophet.allreduce.timing import Timing
from byteprophet.job import Job
from byteprophet.job.strategy import DDP, DEAR_PLANNED, OURS
from byteprophet.optimize.cuts import Buckets, Change, applied
from byteprophet.optimize.moves import Effect, Hints, Move
from byteprophet.optimize.serial_link import SerialLink
from byteprophet.optimize.theorems import TENSOR_FUSION
from byteprophet.optimize.view import View, cuts_of, twins_of
from byteprophet.replay.all_reduce import with_strategy

_TRIED_BUCKETS = 8
_STARTS = 6


class TensorFusion:
    """Merges, splits and shifts buckets of our runtimes and of DistributedDataParallel."""

    name = "tensor-fusion"
    effect = Effect.EXACT
    why = "Larger buckets cost fewer messages; smaller ones are sent earlier."

    def effect_in(self, job: Job) -> Effect:
        """Sums of two are the same in any order."""
        is_ring = job.strategy.runtime == DDP and job.workers > 2
        return Effect.ROUNDING if is_ring else self.effect

    def starts(self, job: Job) -> Iterable[Move]:
        """Buckets of a block or a module each (dPRO's coarsened view), and of a few fixed sizes."""
        if not _has_buckets(job):
            return
        timing = timing_of(job)
        buckets = Buckets.of(job, timing)
        names = [job.model.names[place] for place in buckets.order]
        for view, what in ((View.BLOCKS, "block"), (View.MODULES, "module")):
            cuts = frozenset(cuts_of(view, names))
            yield _move(job, timing, partial(buckets.groups, cuts), f"a bucket per {what}")
        for size_bytes in BUCKET_BYTES[:: max(1, len(BUCKET_BYTES) // _STARTS)]:
            groups = partial(fixed_size, timing, size_bytes, buckets.order)
            yield _move(job, timing, groups, f"buckets of up to {size_bytes} bytes")

    def moves(self, job: Job, hints: Hints) -> Iterator[Move]:
        """Around the buckets that are longest on the critical path."""
        if not _has_buckets(job):
            return
        timing = timing_of(job)
        buckets = Buckets.of(job, timing)
        names = [job.model.names[place] for place in buckets.order]
        allowed = cuts_of(hints.view, names)
        twins = twins_of(job.model, buckets.order) if hints.symmetric else None
        on_path = [hints.bucket_ns.get(place, 0) for place in buckets.places]
        longest = sorted(range(len(buckets)), key=lambda bucket: -on_path[bucket])
        if job.strategy.runtime == DEAR_PLANNED:  # its plan may have DeAR's order
            strategy = strategy_of_groups(timing, DEAR_PLANNED, buckets.groups(buckets.cuts))
            if set(strategy.buckets) != set(job.strategy.buckets):
                yield Move("the same buckets, urgent ones first", with_strategy(job, strategy))
        seen = {buckets.cuts}
        for bucket in longest[:_TRIED_BUCKETS]:
            for change in (
                *_merges(buckets, hints, bucket),
                *_splits(buckets, hints, bucket, allowed),
                *_shifts(buckets, bucket, allowed),
            ):
                for cuts, what in applied(buckets.cuts, change, twins):
                    if cuts not in seen:
                        seen.add(cuts)
                        groups = partial(buckets.groups, cuts)
                        yield _move(job, timing, groups, what, change.theorem)


def _has_buckets(job: Job) -> bool:
    """Whether the job's runtime can be given other buckets."""
    return job.strategy.runtime in (DDP, *OURS) and not job.strategy.fixed


def _merges(buckets: Buckets, hints: Hints, bucket: int) -> Iterator[Change]:
    """With the next bucket and with the one before."""
    for first in (bucket, bucket - 1):
        if not 0 <= first < len(buckets) - 1:
            continue
        gain_ns = unsure_ns = 0
        if hints.link is not None:
            gain_ns = merge_gain_ns(buckets, hints.link, first)
            unsure_ns = hints.link.unsure_ns
        if gain_ns >= -unsure_ns:
            yield Change(
                f"merge buckets {first} and {first + 1}",
                removed=buckets.edges[first + 1],
                theorem=TENSOR_FUSION if gain_ns > 0 else "",
            )


def merge_gain_ns(buckets: Buckets, link: SerialLink, first: int) -> int:
    """What Theorem 2 expects of merging bucket ``first`` and the next, which is ready later."""
    start, _, end = buckets.edges[first : first + 3]
    return link.merge_gain_ns(
        _before(buckets, first), buckets.places[first + 1], buckets.size_bytes(start, end)
    )


def _splits(
    buckets: Buckets, hints: Hints, bucket: int, allowed: tuple[int, ...]
) -> Iterator[Change]:
    """Near the half of the bytes, at both ends, and where Theorem 2 expects the largest gain."""
    start, end = buckets.edges[bucket : bucket + 2]
    inside = allowed[bisect_right(allowed, start) : bisect_left(allowed, end)]
    if not inside:
        return
    gains_ns = {cut: _split_gain_ns(buckets, hints, bucket, cut) for cut in inside}
    most = max(gains_ns, key=gains_ns.__getitem__)
    half = min(
        inside, key=lambda cut: abs(buckets.size_bytes(start, cut) - buckets.size_bytes(cut, end))
    )
    for cut in dict.fromkeys((most, half, inside[0], inside[-1])):
        unsure_ns = 0 if hints.link is None else hints.link.unsure_ns
        if gains_ns[cut] >= -unsure_ns:
            yield Change(
                f"split bucket {bucket} after {cut - start} of its {end - start} gradients",
                added=cut,
                theorem=TENSOR_FUSION if gains_ns[cut] > 0 else "",
            )


def _split_gain_ns(buckets: Buckets, hints: Hints, bucket: int, cut: int) -> int:
    if hints.link is None:
        return 0
    start, end = buckets.edges[bucket : bucket + 2]
    return hints.link.split_gain_ns(
        _before(buckets, bucket),
        buckets.places[bucket],
        max(buckets.ready_ns[start:end]) - max(buckets.ready_ns[start:cut]),
        (buckets.size_bytes(start, cut), buckets.size_bytes(cut, end)),
    )


def _before(buckets: Buckets, bucket: int) -> int | None:
    return buckets.places[bucket - 1] if bucket else None


def _shifts(buckets: Buckets, bucket: int, allowed: tuple[int, ...]) -> Iterator[Change]:
    """Both edges of the bucket move inwards by one allowed cut."""
    start, end = buckets.edges[bucket : bucket + 2]
    inside = allowed[bisect_right(allowed, start) : bisect_left(allowed, end)]
    if not inside:
        return
    if bucket + 1 < len(buckets):
        yield Change(
            f"move the last gradients of bucket {bucket} to the next", removed=end, added=inside[-1]
        )
    if bucket:
        yield Change(
            f"move the first gradients of bucket {bucket} to the one before",
            removed=start,
            added=inside[0],
        )


def _move(
    job: Job, timing: Timing, groups: Callable[[], Groups], what: str, theorem: str = ""
) -> Move:
    def changed() -> Job:
        return with_strategy(job, strategy_of_groups(timing, job.strategy.runtime, groups()))

    return Move(what, changed, theorem)
