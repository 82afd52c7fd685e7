"""The buckets of a job as cuts of one order of its parameters, and changes of these cuts.

Bucket n, in the order in which buckets are ready, is ``order[edges[n]:edges[n + 1]]``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from byteprophet.allreduce.groups import Groups
from byteprophet.allreduce.timing import Timing
from byteprophet.job import Job
from byteprophet.job.strategy import DDP

Cuts = frozenset[int]


@dataclass(frozen=True)
class Buckets:
    """The buckets of a job.

    Attributes:
        order: all parameters, by their places in the model, bucket after bucket.
        edges: where each bucket begins in ``order``, and the end of the last.
        places: each bucket's place in the strategy.
        sizes_bytes: the sizes of the parameters, in ``order``.
        ready_ns: when their gradients are ready, from the start of backward, in ``order``.
    """

    order: tuple[int, ...]
    edges: tuple[int, ...]
    places: tuple[int, ...]
    sizes_bytes: tuple[int, ...]
    ready_ns: tuple[int, ...]

    @classmethod
    def of(cls, job: Job, timing: Timing) -> Buckets:
        """Those of ``job``, in the order in which their first gradients are ready.

        DistributedDataParallel keeps the order that it has seen itself.
        """
        if job.strategy.runtime == DDP:
            seen = (name for bucket in job.strategy.buckets for name in bucket.parameters)
            turn_of = {job.model.places[name]: turn for turn, name in enumerate(seen)}
        else:
            turn_of = {place: turn for turn, place in enumerate(timing.by_readiness)}
        runs = [
            sorted(map(job.model.places.__getitem__, bucket.parameters), key=turn_of.__getitem__)
            for bucket in job.strategy.buckets
        ]
        places = sorted(range(len(runs)), key=lambda place: turn_of[runs[place][0]])
        order = tuple(parameter for place in places for parameter in runs[place])
        return cls(
            order,
            tuple(accumulate((len(runs[place]) for place in places), initial=0)),
            tuple(places),
            tuple(timing.parameters[parameter].size_bytes for parameter in order),
            tuple(timing.ready_ns[parameter] for parameter in order),
        )

    def __len__(self) -> int:
        return len(self.places)

    @property
    def cuts(self) -> Cuts:
        """The inner edges."""
        return frozenset(self.edges[1:-1])

    def size_bytes(self, first: int, last: int) -> int:
        """The size of ``order[first:last]``."""
        return sum(self.sizes_bytes[first:last])

    def groups(self, cuts: Cuts) -> Groups:
        """The buckets that other cuts make."""
        return tuple(self.order[a:b] for a, b in pairwise([0, *sorted(cuts), len(self.order)]))


@dataclass(frozen=True)
class Change:
    """A cut that goes, one that comes, or both: a cut that moves.

    ``theorem``: the theorem that expects it to pay; "": none does.
    """

    what: str
    removed: int | None = None
    added: int | None = None
    theorem: str = ""


def applied(
    cuts: Cuts, change: Change, twins: Sequence[Sequence[int]] | None
) -> Iterator[tuple[Cuts, str]]:
    """The cuts after ``change``, and a description of it.

    With ``twins`` (``view.twins_of``), the change of all twins at once comes first, if the cut has
    any to which the change applies.
    """
    if twins is not None:
        changed, count = _at_twins(cuts, change, twins)
        if count > 1:
            yield changed, f"{change.what}, and {count - 1} equal ones"
    gone = set() if change.removed is None else {change.removed}
    new = set() if change.added is None else {change.added}
    yield (cuts - gone) | new, change.what


def _at_twins(cuts: Cuts, change: Change, twins: Sequence[Sequence[int]]) -> tuple[Cuts, int]:
    """The cuts after the change at all twins, and the number of places at which they differ."""
    removed, added = change.removed, change.added
    if removed is None:
        new = frozenset(() if added is None else twins[added]) - cuts
        return cuts | new, len(new)
    gone = cuts.intersection(twins[removed])
    if added is None:
        return cuts - gone, len(gone)
    by = added - removed
    targets = frozenset(twins[added])
    moved = frozenset(cut for cut in gone if cut + by in targets)
    return (cuts - moved) | {cut + by for cut in moved}, len(moved)
