"""Groups and order of an optimizer's halves, planned from what its first iterations show.

Every rank notes when gradients were ready and what forward took; rank 0 also knows its link, from
the bytes it sent while it had any to send. It plans in a thread of its own, during one iteration
or as much longer as that takes, and tells the others between two steps; all adopt the plan after
the next: so the plan is in use from a known iteration on. Until then groups go by their size alone.

Threads: all but the search is called by the thread that trains.
"""

from __future__ import annotations

import statistics
import threading
from collections.abc import Sequence

from byteprophet.allreduce.grouping import best_plan
from byteprophet.allreduce.groups import Groups
from byteprophet.allreduce.model import Order
from byteprophet.allreduce.timing import Link, Parameter, Timing
from byteprophet.torch.agreement import Announcement
from byteprophet.torch.collective_synchroniser import CollectiveSynchroniser, Iteration
from byteprophet.torch.stopwatch import process_stopwatch

_WARM_UP = 3
_TIMED = 8
_MESSAGE_NS = 100_000

_Plan = tuple[Groups, Order]


class Planning:
    """Of one optimizer; the methods are ``BetweenSteps``'."""

    def __init__(self, synchroniser: CollectiveSynchroniser, timeout_s: float) -> None:
        self._synchroniser = synchroniser
        self._timeout_s = timeout_s
        self.restart()

    def declare(self) -> None:
        """Parameters have come: what is known of the others says nothing of these."""
        self.restart()

    def restart(self) -> None:
        """Time iterations anew."""
        self._steps = 0
        self._iterations: list[Iteration] = []
        self._forwards_ns: list[dict[int, int]] = []
        self._search: threading.Thread | None = None
        self._plans: list[_Plan] = []  # what the search has found
        self._announcement: Announcement | None = None
        self.settled = False  # the plan is in use

    def drain(self) -> None:
        """An announcement that nobody adopts is nobody's loss."""

    def after_step(self, owner: str, agreed: bool) -> None:
        """Note the iteration that ended, or take the next step towards the plan."""
        if not agreed or self.settled:
            return
        self._steps += 1
        timed = self._steps - _WARM_UP
        process_stopwatch.want(timed < _TIMED)
        if timed <= 0:
            self._began = self._synchroniser.sent()
            process_stopwatch.taken()
        elif timed <= _TIMED:
            self._iterations.append(self._synchroniser.last_iteration)
            self._forwards_ns += [dict(each.times_ns) for each in process_stopwatch.taken()]
        else:
            with self._synchroniser.deferring():
                self._announce(owner)

    def _announce(self, owner: str) -> None:
        synchroniser = self._synchroniser
        count = len(synchroniser.needed)
        if self._announcement is not None:
            told = self._announcement.wait(self._timeout_s)
            if told is not None:
                synchroniser.adopt(*_decoded(told, count))
                self.settled = True
                return
        plan = None
        if synchroniser.rank == 0:
            if self._search is None:
                self._search = threading.Thread(
                    target=_find,
                    args=(synchroniser.mode, self._timing(), self._plans),
                    name="byteprophet-planning",
                    daemon=True,
                )
                self._search.start()
            else:
                # All others wait for this announcement, and should not run out of time.
                self._search.join(self._timeout_s / 2)
                plan = _encoded(self._plans[0], count) if self._plans else None
        name = f"byteprophet.plan.{owner}.{self._steps}"
        self._announcement = Announcement(synchroniser, name, plan, 4 * count, "plan")

    def _timing(self) -> Timing:
        synchroniser = self._synchroniser
        sent, began = synchroniser.sent(), self._began
        sent_bytes = max(1, sent.payload_bytes - began.payload_bytes)
        bandwidth_bps = sent_bytes * 8 * 10**9 // max(1, sent.busy_ns - began.busy_ns)
        backward_ns = _median([each.backward_ns for each in self._iterations])
        parameters = []
        for name in synchroniser.needed:
            ready_ns = [each.ready_ns[name] for each in self._iterations if name in each.ready_ns]
            position = synchroniser.position[name]
            forward_ns = [times.get(position, 0) for times in self._forwards_ns]
            parameters.append(
                Parameter(
                    name,
                    max(1, synchroniser.size_bytes(name)),
                    min(backward_ns, _median(ready_ns)) if ready_ns else None,
                    _median(forward_ns) if forward_ns else 0,
                )
            )
        link = Link(synchroniser.size, max(1, bandwidth_bps), _MESSAGE_NS)
        return Timing(tuple(parameters), backward_ns, link)


def _find(mode: str, timing: Timing, found: list[_Plan]) -> None:
    found.append(best_plan(mode, timing))


def _median(values: Sequence[int]) -> int:
    return int(statistics.median(values))


def _encoded(plan: _Plan, count: int) -> list[int]:
    """Four times ``count`` integers: the group of every parameter, then the order, per group."""
    groups, order = plan
    group_of = [0] * count
    for number, places in enumerate(groups):
        for rank, place in enumerate(places):
            group_of[place] = number * count + rank  # with its place in the group
    padding = [0] * (count - len(groups))
    after_step = [int(after) for after in order.after_step]
    return [
        *group_of,
        *(*order.reduce, *padding),
        *(*order.gather, *padding),
        *(*after_step, *padding),
    ]


def _decoded(values: Sequence[int], count: int) -> _Plan:
    group_of, reduce, gather, after_step = (
        values[start : start + count] for start in range(0, 4 * count, count)
    )
    members: dict[int, list[tuple[int, int]]] = {}
    for place, value in enumerate(group_of):
        members.setdefault(value // count, []).append((value % count, place))
    groups = tuple(
        tuple(place for _, place in sorted(members[number])) for number in sorted(members)
    )
    number = len(groups)
    return groups, Order(
        tuple(reduce[:number]), tuple(gather[:number]), tuple(map(bool, after_step[:number]))
    )
