"""Predicts the iteration time for a given order of reduce-scatters and all-gathers on the link.

A *half* is a reduce-scatter or an all-gather, each of which is one half of an all-reduce. If all
ranks are equal, all halves share one link (``timing.py``). Otherwise there are several, which are
the directions of ranks' links, and the two halves of a bucket need different ones: a rank that owns
nothing only sends in reduce-scatters, and only receives in all-gathers, so that halves of different
buckets overlap on its link. A half ends when it is through on all links. With unequal owners, an
all-reduce of gradients goes in chunks (``job/owners.py``): the all-gather of each is ready when its
own reduce-scatter ends.

Among the halves that are ready, the one with the smallest position gets a link at once, preempting
others (``strict_priority.py``). In reality, it must wait for a frame of the mesh (256 KiB), which
this model neglects. How long a half needs each link is in ``Link.halves_ns``. A reduce-scatter is
ready when the last gradient of its group is ready. An all-gather is ready when its reduce-scatter
ends, but not before step() if it is ``after_step``. Layers of the next forward wait for the
all-gathers of their parameters. Backward follows forward, so all all-gathers end before backward
begins. So every iteration begins with an idle link, and one iteration represents all.

The model assumes that updates of parameters take no time. The result is exact in integer
nanoseconds. It is fast to compute, in O(halves log halves), because searches need it thousands of
times. With several links, it takes several times as long.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import add

from byteprophet import _core
from byteprophet.allreduce.groups import Groups
from byteprophet.allreduce.timing import Timing
from byteprophet.strict_priority import strict_priority_together


@dataclass(frozen=True)
class Order:
    """The positions of each group's reduce-scatter (``reduce``) and all-gather (``gather``).

    All positions together are 0 to 2 * groups - 1. If ``after_step`` is True, a group's all-gather
    waits for step() and carries parameters, of which each rank has updated its shard. Otherwise it
    carries averaged gradients, and every rank updates all parameters of the group.
    """

    reduce: tuple[int, ...]
    gather: tuple[int, ...]
    after_step: tuple[bool, ...]


@dataclass(frozen=True)
class Prediction:
    """Predicted times of a steady iteration, in ns from the start of backward.

    ``iteration_ns`` lasts until the next backward starts. The other fields have one time per group:
    when each half first gets the link, and when it ends.
    """

    iteration_ns: int
    reduce_start_ns: tuple[int, ...]
    reduce_end_ns: tuple[int, ...]
    gather_start_ns: tuple[int, ...]
    gather_end_ns: tuple[int, ...]


def group_bytes(timing: Timing, group: tuple[int, ...]) -> int:
    """The size of the parameters of ``group``."""
    return sum(map(timing.sizes_bytes.__getitem__, group))


def predict(timing: Timing, groups: Groups, order: Order) -> Prediction:
    """Predict an iteration with ``groups``, a partition of the parameters, in ``order``."""
    # The chunks of each group, in order, and the half at each position of the chunks: a chunk's
    # number for its reduce-scatter, plus ``count`` for its all-gather.
    sizes = [group_bytes(timing, group) for group in groups]
    chunks: list[tuple[int, int]] = []  # the group and the size of each
    chunks_of: list[range] = []
    for group, size_bytes in enumerate(sizes):
        whole = not order.after_step[group]
        parts = timing.link.chunk_bytes(size_bytes) if whole else [size_bytes]
        chunks_of.append(range(len(chunks), len(chunks) + len(parts)))
        chunks += [(group, part_bytes) for part_bytes in parts]
    count = len(chunks)
    halves: list[Sequence[int]] = [()] * (2 * len(groups))
    for group, own in enumerate(chunks_of):
        halves[order.reduce[group]] = own
        halves[order.gather[group]] = range(count + own.start, count + own.stop)
    owner = [half for own in halves for half in own]
    position = [0] * (2 * count)
    for place, half in enumerate(owner):
        position[half] = place
    halves_ns = [timing.link.halves_ns(size_bytes) for _, size_bytes in chunks]
    ready_ns = [max(map(timing.ready_ns.__getitem__, group)) for group in groups]
    ready_ns = [ready_ns[group] for group, _ in chunks]
    waits = [order.after_step[group] for group, _ in chunks]
    if len(timing.link.directions) == 1:
        needs_ns = [need_ns for (need_ns,) in halves_ns]
        reduce_start, reduce_end, gather_start, gather_end = _core.times_of_halves(
            ready_ns,
            [reduce_ns for reduce_ns, _ in needs_ns],
            [gather_ns for _, gather_ns in needs_ns],
            position[:count],
            position[count:],
            waits,
            timing.step_ns,
        )
        reduces, gathers = (reduce_start, reduce_end), (gather_start, gather_end)
    else:
        start, end = _on_several_links(timing.step_ns, ready_ns, halves_ns, owner, position, waits)
        reduces, gathers = (start[:count], end[:count]), (start[count:], end[count:])
    if count > len(groups):
        reduces, gathers = (
            (
                [min(starts_ns[own.start : own.stop]) for own in chunks_of],
                [max(ends_ns[own.start : own.stop]) for own in chunks_of],
            )
            for starts_ns, ends_ns in (reduces, gathers)
        )
    firsts = map(min, groups)
    tails_ns = map(timing.tails_ns.__getitem__, firsts)
    iteration_ns = max(timing.compute_ns, *map(add, gathers[1], tails_ns))
    return Prediction(iteration_ns, *map(tuple, (*reduces, *gathers)))


def _on_several_links(
    step_ns: int,
    ready_ns: Sequence[int],
    halves_ns: Sequence[Sequence[tuple[int, int]]],
    owner: Sequence[int],
    position: Sequence[int],
    waits: Sequence[bool],
) -> tuple[list[int], list[int]]:
    """When halves start and end, by chunk: all reduce-scatters, then all all-gathers.

    ``owner``: the half at each position. ``position``: of each half. ``waits``: whether the
    all-gather waits for step().
    """
    count = len(ready_ns)
    needs_ns = [[link[half // count] for link in halves_ns[half % count]] for half in owner]
    start, end = [0] * (2 * count), [0] * (2 * count)
    to_come = [(each_ns, position[chunk]) for chunk, each_ns in enumerate(ready_ns)]
    for starts_ns, ends_ns, place, _ in strict_priority_together(to_come, needs_ns):
        half = owner[place]
        start[half], end[half] = starts_ns, ends_ns
        if half < count:
            if waits[half] and ends_ns < step_ns:
                # No entry has a later time.
                to_come.insert(0, (step_ns, position[count + half]))
            else:
                to_come.append((ends_ns, position[count + half]))
    return start, end
