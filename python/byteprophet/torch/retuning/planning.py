"""Plans an optimizer's buckets and the order of their operations from its first iterations.

Every rank notes when gradients became ready and how long forward took. Backward begins where the
last module ends, so it includes the loss. Rank 0 also measures the bandwidth of its link, from what
the link carried while there was something to send. If ranks own unequal shards, every rank tells
the others its bandwidth, because links are then unequal, too. A rank whose receivers are slower
than its own link measures less than its link could carry.

Rank 0 then searches for a plan in a separate thread during the next iteration, and sends it to the
other ranks between two steps. If the search takes longer, all ranks wait for a while and try again
after the next step. All ranks adopt the plan one step after it was sent, so all use it from the
same iteration on. Until then, buckets are made by size.

Threads: the training thread calls everything except for the search.
"""

from __future__ import annotations

import bisect
import functools
import statistics
import threading
from collections.abc import Sequence

from byteprophet.allreduce.grouping import best_plan
from byteprophet.allreduce.groups import Groups
from byteprophet.allreduce.model import Order
from byteprophet.allreduce.timing import Link, Parameter, Timing
from byteprophet.profile.estimate import Forward
from byteprophet.torch.live_fronts import live_fronts
from byteprophet.torch.recording.stopwatch import process_stopwatch
from byteprophet.torch.sync import leaving
from byteprophet.torch.sync.agreement import Announcement, Collection
from byteprophet.torch.sync.collective_synchroniser import CollectiveSynchroniser
from byteprophet.torch.sync.readiness import Iteration

_WARM_UP = 3
_TIMED = 8
_MESSAGE_NS = 100_000
_JOIN_S = 10.0

_Plan = tuple[Groups, Order]


class Planning:
    """Plans the buckets of one optimizer. ``BetweenSteps`` describes the methods."""

    def __init__(self, synchroniser: CollectiveSynchroniser, timeout_s: float) -> None:
        self._synchroniser = synchroniser
        self._timeout_s = timeout_s
        self.restart()

    def declare(self) -> None:
        """Measure again, because there are new parameters, of which nothing was measured."""
        self.restart()

    def restart(self) -> None:
        """Discard the measurements and measure again."""
        self._steps = 0
        self._iterations: list[Iteration] = []
        self._forwards: list[Forward] = []
        self._search: threading.Thread | None = None
        self._plans: list[_Plan] = []  # the search puts its plan here
        self._announcement: Announcement | None = None
        self._collection: Collection | None = None
        self._rates_bps: list[int] = []
        self.settled = False  # the plan is in use

    def drain(self) -> None:
        """Do nothing: a plan in flight may be lost without harm."""

    def after_step(self, owner: str, agreed: bool) -> None:
        """Note the measurements of the iteration that ended, or exchange or adopt a plan."""
        if not agreed or self.settled:
            return
        if not self._synchroniser.bucketing.needed:  # all gradients are sparse
            self.settled = True
            return
        self._steps += 1
        timed = self._steps - _WARM_UP
        serial = self._serial()
        process_stopwatch.set_enabled(timed < _TIMED, serial)
        if timed <= 0:
            self._began = self._synchroniser.sent()
            process_stopwatch.drain(serial)
        elif timed <= _TIMED:
            self._iterations.append(self._synchroniser.last_iteration)
            self._forwards += process_stopwatch.drain(serial)
        else:
            with self._synchroniser.deferring():
                self._announce(owner)

    def _serial(self) -> int:
        """The number of the front that uses the synchroniser."""
        ours = (each.serial for each in live_fronts() if each.synchroniser is self._synchroniser)
        return next(ours)

    def _knows_rates(self, owner: str) -> bool:
        """Whether the bandwidth of each rank that matters is known; asks for those of others."""
        synchroniser = self._synchroniser
        if self._rates_bps:
            return True
        if synchroniser.owners.are_equal:
            self._rates_bps = [self._bandwidth_bps()] * synchroniser.size
            return True
        if self._collection is not None:
            self._rates_bps = self._collection.wait(self._timeout_s)
            return True
        name = f"byteprophet.bandwidth.{owner}.{self._steps}"
        self._collection = Collection(synchroniser, name, self._bandwidth_bps(), "bandwidths")
        return False

    def _announce(self, owner: str) -> None:
        if not self._knows_rates(owner):
            return
        synchroniser = self._synchroniser
        count = len(synchroniser.bucketing.needed)
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
                # A daemon thread that is in native code when Python ends would abort the process.
                leaving.at_stop(functools.partial(self._search.join, _JOIN_S))
            else:
                # Wait for half the timeout only, because the other ranks wait for this message.
                self._search.join(self._timeout_s / 2)
                plan = _encoded(self._plans[0], count) if self._plans else None
        name = f"byteprophet.plan.{owner}.{self._steps}"
        self._announcement = Announcement(synchroniser, name, plan, 4 * count, "plan")

    def _bandwidth_bps(self) -> int:
        return self._synchroniser.sent().bandwidth_bps(self._began)

    def _timing(self) -> Timing:
        synchroniser = self._synchroniser
        lead_ns = self._lead_ns()
        backward_ns = lead_ns + _median([each.backward_ns for each in self._iterations])
        parameters = []
        for name in synchroniser.bucketing.needed:
            ready_ns = [each.ready_ns[name] for each in self._iterations if name in each.ready_ns]
            position = synchroniser.bucketing.position[name]
            forward_ns = [each.times_ns.get(position, 0) for each in self._forwards]
            parameters.append(
                Parameter(
                    name,
                    max(1, synchroniser.bucketing.sizes[name].size_bytes),
                    min(backward_ns, lead_ns + _median(ready_ns)) if ready_ns else None,
                    _median(forward_ns) if forward_ns else 0,
                )
            )
        link = Link.of_ranks(self._rates_bps, _MESSAGE_NS, synchroniser.owners.unequal)
        return Timing(tuple(parameters), backward_ns, link)

    def _lead_ns(self) -> int:
        """The time from where forward ends to the first gradient; 0 if forward was not seen."""
        ends_ns = sorted(each.ended_ns for each in self._forwards)
        leads_ns = []
        for each in self._iterations:
            before = bisect.bisect_right(ends_ns, each.first_ns)
            if before:
                leads_ns.append(each.first_ns - ends_ns[before - 1])
        return _median(leads_ns) if leads_ns else 0


def _find(mode: str, timing: Timing, found: list[_Plan]) -> None:
    found.append(best_plan(mode, timing))


def _median(values: Sequence[int]) -> int:
    return int(statistics.median(values))


def _encoded(plan: _Plan, count: int) -> list[int]:
    """Encode a plan as ``4 * count`` integers.

    The first ``count`` give each parameter's bucket and place in it. The others are the reduce
    places, gather places and ``after_step`` flags of the buckets, each padded to ``count``.
    """
    groups, order = plan
    group_of = [0] * count
    for number, places in enumerate(groups):
        for rank, place in enumerate(places):
            group_of[place] = number * count + rank  # bucket and place in it, as one number
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
