"""One order in which all workers send, agreed on without a controller.

A server can only sum what all workers have sent. So all workers plan the order of an iteration from
the same ready times and the same bandwidth (``prophet/policy/planned_order.h``). Every policy
learns both by itself, but not the same ones. So ranks exchange what their policies have learned, in
two messages:

1. Every rank sends the bandwidth of its link, when its last gradient is ready, the sum of all ready
   times, how many tensors it knows, and whether it has an order from a controller's plan.
2. If the smallest bandwidth or the slowest rank's times have changed by more than a tenth, the
   slowest rank sends its ready times, because the others wait for it.

All ranks then plan with these times and the smallest bandwidth, from the same iteration on. After
each of the first steps, ranks wait for these messages, so that the order is there as soon as an
iteration has been like those that follow. Later, messages travel beside the next iterations'
gradients, and seldom (``seldom.py``).

Where a worker has an order from a plan, ranks agree on none. A rank that does not push, whose
policy knows nothing yet, or that sends more tensors than a message has room for, contributes
nothing. If a process has several optimizers, the one that is
new, or else the one that steps first, counts steps.

Threads: everything here runs in the training thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from byteprophet.torch.retuning.between_steps import DRAIN_S
from byteprophet.torch.retuning.seldom import Seldom
from byteprophet.torch.sync.agreement import Announcement, Table
from byteprophet.torch.sync.order_planner import OrderPlanner
from byteprophet.torch.sync.synchroniser import Synchroniser

_KNOWN, _TIMES = "byteprophet.order", "byteprophet.order.times"
_WHAT = "ready times"
_CHANGED = 0.1
_EARLY = 5  # steps
_MOST = 2048
"""Tensors in an order. The message always has room for so many, because all ranks declare it before
they know how many there are."""


class _Summary(NamedTuple):
    """``bandwidth_bps`` 0: nothing is known."""

    bandwidth_bps: int
    last_ns: int
    total_ns: int
    tensors: int
    has_plan: int


class _Agreed(NamedTuple):
    """What ranks agreed on. ``writer``: the rank that writes it down."""

    summary: _Summary
    writer: int


class CommonOrder:
    """Implements ``BetweenSteps``; one per process, or per optimizer of two transports."""

    settled = False  # never, because links change

    def __init__(self, synchroniser: Synchroniser, planner: OrderPlanner, timeout_s: float) -> None:
        self._synchroniser = synchroniser
        self._planner = planner
        self._timeout_s = timeout_s
        self._known: Table | None = None
        self._times: Announcement | None = None
        self._mine: Mapping[int, int] = {}  # ready times, as of the question
        self._owner: str | None = None
        self._early = _EARLY  # steps left
        self._seldom = Seldom()
        self._agreed: _Agreed | None = None
        self._since = 0  # the iteration from which on there is an order of these tensors

    def declare(self) -> None:
        """Declare the messages. An optimizer that is new has tensors of which nothing is known."""
        self._synchroniser.declare([_KNOWN, _TIMES])
        self._begin()

    def restart(self) -> None:
        """See ``BetweenSteps``."""
        self._known = self._times = None
        self._begin()

    def drain(self) -> None:
        """See ``BetweenSteps``."""
        for message in (self._known, self._times):
            if message is not None:
                message.arrives_within(DRAIN_S)

    def after_step(self, owner: str, agreed: bool) -> None:
        """See ``BetweenSteps``. Steps are counted from the first one with an agreed order."""
        self._owner = self._owner or owner
        if owner != self._owner or not agreed:
            return
        self._planner.record_what_holds()
        self._plan()
        self._announce()
        if self._early:
            self._early -= 1
            self._plan()  # what an earlier optimizer has asked, if anything: names are in use once
            self._ask()
            self._announce()
            self._plan()
        elif self._seldom.due():
            self._ask()

    def _begin(self) -> None:
        self._owner, self._agreed, self._since = None, None, 0
        self._early, self._seldom = _EARLY, Seldom()

    def _ask(self) -> None:
        learned = self._planner.learned()
        self._mine = learned.ready_ns if len(learned.ready_ns) <= _MOST else {}
        times_ns = self._mine.values()
        row = _Summary(
            learned.bandwidth_bps,
            max(times_ns, default=0),
            sum(times_ns),
            len(times_ns),
            int(learned.has_plan),
        )
        self._known = Table(self._synchroniser, _KNOWN, row, f"{_WHAT} that ranks know")

    def _announce(self) -> None:
        if self._known is None:
            return
        rows = [_Summary(*row) for row in self._known.wait(self._timeout_s)]
        self._known = None
        knowing = [rank for rank, row in enumerate(rows) if row.bandwidth_bps and row.tensors]
        if not knowing or any(row.has_plan for row in rows):
            return
        slowest = max(knowing, key=lambda rank: rows[rank].last_ns)
        wanted = rows[slowest]._replace(
            bandwidth_bps=min(rows[rank].bandwidth_bps for rank in knowing)
        )
        before = self._agreed and self._agreed.summary
        if before is not None and not _differs(wanted, before):
            return
        if before is None or before.tensors != wanted.tensors:
            self._since = 0
        self._agreed = _Agreed(wanted, knowing[0])
        mine = [value for pair in self._mine.items() for value in pair]
        mine += [0] * (2 * _MOST - len(mine))
        self._times = Announcement(
            self._synchroniser, _TIMES, mine, len(mine), f"{_WHAT} of all", slowest
        )

    def _plan(self) -> None:
        if self._times is None:
            return
        told = self._times.wait(self._timeout_s)
        self._times = None
        if self._agreed is None:  # the optimizer that asked is not the one that counts any more
            return
        assert told is not None
        (bandwidth_bps, _, _, tensors, _), writer = self._agreed
        ready_ns = dict(zip(told[: 2 * tensors : 2], told[1 : 2 * tensors : 2], strict=True))
        since = self._planner.stage(bandwidth_bps, ready_ns)
        self._since = self._since or since
        if self._synchroniser.rank == writer:
            self._planner.record(bandwidth_bps, ready_ns, self._since, once_begun=since)


def _differs(new: Sequence[int], old: Sequence[int]) -> bool:
    return any(abs(a - b) > _CHANGED * b for a, b in zip(new, old, strict=True))
