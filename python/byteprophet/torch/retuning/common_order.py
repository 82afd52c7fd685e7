"""One order in which all workers send, agreed on without a controller.

A server can only sum what all workers have sent. So all workers plan the order of an iteration from
the same ready times and the same bandwidth (``prophet/policy/planned_order.h``). Every policy
learns both by itself, but not the same ones. So ranks exchange what their policies have learned, in
two messages:

1. Every rank sends the bandwidth of its link, when its last gradient is ready, the sum of all ready
   times, and how many tensors it knows.
2. If the smallest bandwidth or the slowest rank's times have changed by more than a tenth, the
   slowest rank sends its ready times, because the others wait for it.

All ranks then plan with these times and the smallest bandwidth, from the same iteration on. After
each of the first steps, ranks wait for these messages, so that the order is there as soon as an
iteration has been like those that follow. Later, messages travel beside the next iterations'
gradients, and seldom (``seldom.py``).

Where the workers follow a controller's plan, it stays in force. A rank that does not push, or whose
policy knows nothing yet, contributes nothing.

Threads: everything here runs in the training thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from byteprophet.torch.retuning.seldom import Seldom
from byteprophet.torch.sync.agreement import Announcement, Table
from byteprophet.torch.sync.order_planner import OrderPlanner, ReadyTimes
from byteprophet.torch.sync.synchroniser import Synchroniser

_NAME = "byteprophet.order"
_WHAT = "ready times"
_CHANGED = 0.1
_EARLY = 5  # steps
_DRAIN_S = 10.0  # how long the end of a job waits for a message that may never arrive
_COLUMNS = 4  # of a ready time


class _Summary(NamedTuple):
    """``bandwidth_bps`` 0: nothing is known."""

    bandwidth_bps: int
    last_ns: int
    total_ns: int
    tensors: int


class CommonOrder:
    """Implements ``BetweenSteps``; one per process."""

    settled = False  # never, because links change

    def __init__(self, synchroniser: Synchroniser, planner: OrderPlanner, timeout_s: float) -> None:
        self._synchroniser = synchroniser
        self._planner = planner
        self._timeout_s = timeout_s
        self._owner: str | None = None
        self.restart()

    def declare(self) -> None:
        """See ``BetweenSteps``."""
        self._synchroniser.declare([_NAME])

    def restart(self) -> None:
        """See ``BetweenSteps``."""
        self._early = _EARLY  # left
        self._seldom = Seldom()
        self._mine: ReadyTimes = []  # as of the question
        self._known: Table | None = None
        self._times: Announcement | None = None
        self._agreed: _Summary | None = None
        self._since: int | None = None  # the iteration from which on there are these ready times

    def drain(self) -> None:
        """See ``BetweenSteps``."""
        for message in (self._known, self._times):
            if message is not None:
                message.arrives_within(_DRAIN_S)

    def after_step(self, owner: str, agreed: bool) -> None:
        """See ``BetweenSteps``. Steps are counted from the first one with an agreed order."""
        self._owner = self._owner or owner
        if owner != self._owner or not agreed:
            return
        if self._early:
            self._early -= 1
            self._ask()
            self._announce()
            self._plan()
            return
        due = self._seldom.due()
        self._plan()
        self._announce()
        if due and self._times is None:
            self._ask()

    def _ask(self) -> None:
        bandwidth_bps, self._mine = self._planner.learned()
        ready_ns = [ready_ns for _, _, ready_ns, _ in self._mine]
        row = _Summary(bandwidth_bps, max(ready_ns, default=0), sum(ready_ns), len(ready_ns))
        self._known = Table(self._synchroniser, _NAME, row, f"{_WHAT} that ranks know")

    def _announce(self) -> None:
        if self._known is None:
            return
        rows = [_Summary(*row) for row in self._known.wait(self._timeout_s)]
        self._known = None
        knowing = [rank for rank, row in enumerate(rows) if row.bandwidth_bps and row.tensors]
        if not knowing:
            return
        slowest = max(knowing, key=lambda rank: rows[rank].last_ns)
        wanted = rows[slowest]._replace(
            bandwidth_bps=min(rows[rank].bandwidth_bps for rank in knowing)
        )
        if not _differs(wanted, self._agreed):
            return
        if self._agreed is None or _differs(wanted[1:], self._agreed[1:]):
            self._since = None
        self._agreed = wanted
        mine = [value for time in self._mine for value in time]
        count = wanted.tensors
        self._times = Announcement(
            self._synchroniser, f"{_NAME}.{count}", mine, _COLUMNS * count, _WHAT, slowest
        )

    def _plan(self) -> None:
        if self._times is None:
            return
        told = self._times.wait(self._timeout_s)
        self._times = None
        assert told is not None
        assert self._agreed is not None
        times: ReadyTimes = list(zip(*[iter(told)] * _COLUMNS, strict=True))
        since = self._planner.stage(self._agreed.bandwidth_bps, times)
        if since is None:
            return
        self._since = self._since or since
        if self._synchroniser.rank == 0:
            self._planner.record(self._agreed.bandwidth_bps, times, self._since)


def _differs(new: Sequence[int], old: Sequence[int] | None) -> bool:
    if old is None:
        return True
    return any(abs(a - b) > _CHANGED * b for a, b in zip(new, old, strict=True))
