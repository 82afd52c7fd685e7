"""The order on the link: a position for every reduce-scatter and all-gather, the same on all ranks.

``allreduce``, ``dear`` and ``planned`` are the runtimes' rules. Positions decide between operations
that are ready. They do not decide which operations must be waited for (``model.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from byteprophet.allreduce.groups import Groups
from byteprophet.allreduce.model import Order, group_bytes, predict
from byteprophet.allreduce.timing import Timing


def allreduce(_: Timing, groups: Groups) -> Order:
    """All-reduces in FIFO order: each reduce-scatter is followed by its all-gather of gradients."""
    count = len(groups)
    return Order(
        tuple(range(0, 2 * count, 2)), tuple(range(1, 2 * count, 2)), after_step=(False,) * count
    )


def dear(_: Timing, groups: Groups) -> Order:
    """DeAR: reduce-scatters in FIFO order, then, after step(), all-gathers in forward order."""
    count = len(groups)
    gather = [0] * count
    for position, group in enumerate(sorted(range(count), key=lambda g: min(groups[g]))):
        gather[group] = count + position
    return Order(tuple(range(count)), tuple(gather), after_step=(True,) * count)


def earliest_deadline(timing: Timing, groups: Groups) -> Order:
    """The order with the shortest possible iteration for ``groups``; all-gathers carry gradients.

    The deadline of an all-gather is the time at which forward needs the first of its parameters.
    The deadline of a reduce-scatter is that time minus the cost of its all-gather. With such
    deadlines, serving the ready operation with the earliest deadline, preemptively and without
    idling, minimises the largest lateness (Horn 1974; Lawler 1973 for precedence). The largest
    lateness determines the length of an iteration that has to wait. Where the halves need several
    links, there is no such proof. An order in which what has begun is finished first was at most 1%
    faster there, as large buckets go in chunks.
    """
    count = len(groups)
    halves = []
    for number, group in enumerate(groups):
        first = min(group)
        deadline_ns = -timing.tails_ns[first]
        gather_ns = timing.link.gather_ns(group_bytes(timing, group))
        halves.append((deadline_ns - gather_ns, first, number))
        halves.append((deadline_ns, first, count + number))
    positions = [0] * (2 * count)
    for position, (_, _, half) in enumerate(sorted(halves)):
        positions[half] = position
    return Order(tuple(positions[:count]), tuple(positions[count:]), after_step=(False,) * count)


def planned(timing: Timing, groups: Groups) -> Order:
    """Orders by deadlines, with sharded updates wherever they cost no time.

    An all-gather that starts before step() carries gradients, and so does one that goes in chunks,
    which a sharded bucket cannot. All others wait for step() and carry parameters. The iteration
    takes the same time, and the optimizer's state is sharded.
    """
    order = earliest_deadline(timing, groups)
    started_ns = predict(timing, groups, order).gather_start_ns
    sharded = (
        start_ns >= timing.step_ns and len(timing.link.chunk_bytes(group_bytes(timing, group))) == 1
        for start_ns, group in zip(started_ns, groups, strict=True)
    )
    return replace(order, after_step=tuple(sharded))


RUNTIMES: Mapping[str, Callable[[Timing, Groups], Order]] = {
    "allreduce": allreduce,
    "dear": dear,
    "dear-planned": planned,
}
"""The rule of each runtime, by its name in ``sync=``."""


def iteration_ns(runtime: str, timing: Timing, groups: Groups) -> int:
    """The predicted time in ns of a steady iteration with ``groups`` under ``runtime``."""
    return predict(timing, groups, RUNTIMES[runtime](timing, groups)).iteration_ns
