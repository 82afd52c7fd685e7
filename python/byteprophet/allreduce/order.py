"""What goes on the link first: a position for every half, the same on every rank.

``allreduce``, ``dear`` and ``planned`` are the runtimes' rules. A position says which half goes
first of those that are ready, not which must be waited for (``model.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from byteprophet.allreduce.groups import Groups
from byteprophet.allreduce.model import Order, group_half_ns, predict
from byteprophet.allreduce.timing import Timing


def allreduce(_: Timing, groups: Groups) -> Order:
    """Both halves back to back, groups first in first out; gradients are gathered."""
    count = len(groups)
    return Order(
        tuple(range(0, 2 * count, 2)), tuple(range(1, 2 * count, 2)), after_step=(False,) * count
    )


def dear(_: Timing, groups: Groups) -> Order:
    """DeAR: reductions first in first out, then, after step(), gathers in forward order."""
    count = len(groups)
    gather = [0] * count
    for position, group in enumerate(sorted(range(count), key=lambda g: min(groups[g]))):
        gather[group] = count + position
    return Order(tuple(range(count)), tuple(gather), after_step=(True,) * count)


def earliest_deadline(timing: Timing, groups: Groups) -> Order:
    """No order gives these groups a shorter iteration; all gather gradients.

    A gather's deadline is where forward needs the first of its parameters, a reduction's is that
    less the gather's cost. With deadlines made consistent in this way, serving the earliest that is
    ready, preemptively and without idling, makes the largest lateness as small as it can be (Horn
    1974; Lawler 1973 for precedence); and an iteration that waits is as long as that is large.
    """
    count = len(groups)
    halves = []
    for number, group in enumerate(groups):
        first = min(group)
        deadline_ns = -timing.tails_ns[first]
        halves.append((deadline_ns - group_half_ns(timing, group), first, number))
        halves.append((deadline_ns, first, count + number))
    positions = [0] * (2 * count)
    for position, (_, _, half) in enumerate(sorted(halves)):
        positions[half] = position
    return Order(tuple(positions[:count]), tuple(positions[count:]), after_step=(False,) * count)


def planned(timing: Timing, groups: Groups) -> Order:
    """Earliest deadline first, with parameters gathered wherever that costs nothing.

    A gather that the link comes to before step() carries gradients. All others can as well wait
    for step(): the iteration is the same, and the optimizer's state is shared out.
    """
    order = earliest_deadline(timing, groups)
    started_ns = predict(timing, groups, order).gather_start_ns
    return replace(order, after_step=tuple(start >= timing.step_ns for start in started_ns))


RUNTIMES: Mapping[str, Callable[[Timing, Groups], Order]] = {
    "allreduce": allreduce,
    "dear": dear,
    "dear-planned": planned,
}
"""The order of each runtime, by the name that ``sync=`` has for it."""


def iteration_ns(runtime: str, timing: Timing, groups: Groups) -> int:
    """Of a steady iteration of ``groups`` under ``runtime``."""
    return predict(timing, groups, RUNTIMES[runtime](timing, groups)).iteration_ns
