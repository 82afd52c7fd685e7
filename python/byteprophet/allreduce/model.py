"""How long an iteration takes whose halves go over the link in a given order.

All halves share one link (``timing.py``); of those that are ready the one with the smallest
position has it, at once (the mesh cuts them into frames of 256 KiB, which is what "at once" leaves
out). A half takes ``Link.half_ns``. A reduction is ready with the last gradient of its group; a
gather with its reduction and, if it is ``after_step``, not before step(). Layers of the next
forward wait for the gathers of their parameters; backward follows forward. All gathers are over by
then, so every iteration begins with an idle link, and one iteration is all of them.

Updating parameters takes no time here. Exact in integer nanoseconds, and fast: searches call it
thousands of times. O(halves log halves).
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush

from byteprophet.allreduce.groups import Groups
from byteprophet.allreduce.timing import Timing


@dataclass(frozen=True)
class Order:
    """Per group the positions of its two halves, all of them together 0, 1, 2 and so on.

    ``after_step``: its gather waits for step() and carries parameters, each rank's share updated;
    otherwise it carries reduced gradients, and every rank updates the whole group.
    """

    reduce: tuple[int, ...]
    gather: tuple[int, ...]
    after_step: tuple[bool, ...]


@dataclass(frozen=True)
class Prediction:
    """Of a steady iteration, from the start of backward; per group, when a half has the link first.

    ``iteration_ns`` is until the next backward starts.
    """

    iteration_ns: int
    reduce_start_ns: tuple[int, ...]
    reduce_end_ns: tuple[int, ...]
    gather_start_ns: tuple[int, ...]
    gather_end_ns: tuple[int, ...]


def group_half_ns(timing: Timing, group: tuple[int, ...]) -> int:
    """Time of the link that either half of ``group`` takes."""
    return timing.link.half_ns(sum(timing.parameters[place].size_bytes for place in group))


def predict(timing: Timing, groups: Groups, order: Order) -> Prediction:
    """The iteration of ``groups``, which partition the parameters, in this order."""
    count = len(groups)
    owner = [0] * (2 * count)  # of a position: a group's reduction, or count more: its gather
    for group in range(count):
        owner[order.reduce[group]] = group
        owner[order.gather[group]] = count + group
    left = [group_half_ns(timing, group) for group in groups] * 2
    start, end = [-1] * (2 * count), [0] * (2 * count)
    # What the clock brings, the latest first: gradients, and step() for the gathers held until it.
    to_come = [
        (max(timing.ready_ns[place] for place in group), order.reduce[number])
        for number, group in enumerate(groups)
    ]
    to_come.sort(reverse=True)
    step_ns = timing.step_ns
    ready: list[int] = []
    now = 0
    while ready or to_come:
        if not ready:
            now = max(now, to_come[-1][0])
        while to_come and to_come[-1][0] <= now:
            heappush(ready, to_come.pop()[1])
        half = owner[ready[0]]
        if start[half] < 0:
            start[half] = now
        if to_come and to_come[-1][0] < now + left[half]:
            left[half] -= to_come[-1][0] - now
            now = to_come[-1][0]
            continue
        now += left[half]
        end[half] = now
        heappop(ready)
        if half < count:
            position = order.gather[half]
            if order.after_step[half] and now < step_ns:
                to_come.insert(0, (step_ns, position))  # nothing comes later than step()
            else:
                heappush(ready, position)
    iteration_ns = max(
        timing.compute_ns,
        *(end[count + n] + timing.tails_ns[min(group)] for n, group in enumerate(groups)),
    )
    return Prediction(
        iteration_ns,
        tuple(start[:count]),
        tuple(end[:count]),
        tuple(start[count:]),
        tuple(end[count:]),
    )
