"""Decides whether gradients go in order of arrival, because the processor is the limit.

A plan's order saves time where gradients wait for a link. Where they wait for a core, all orders
take as long as the cores need for an iteration's work, and windows and small partitions only add
work. ``prophet`` then does what ``fifo`` does: its setting ``in_order``.

**Nominated** is order of arrival if the planner's model sees no gain in anything else. An iteration
takes what the simulated links need, and at least ``host_ns``: the share of core time that was used,
times the iteration's time. The latter is the same in every order. So order of arrival is nominated
if the host needs about as long as the links do under the plan, or longer, and the plan's iteration
is not clearly shorter than the one in order of arrival. ("About": cores that are the limit are not
quite always busy, and what they delay makes links look slower.) Going back needs a gain twice as
large, or a host that needs clearly less.

**Compared** are iterations, because the model does not know all that an order changes, e.g. how
often threads wake each other up. The slowest worker's median of the iterations before the change is
compared with the median after it, once partitions have their new size. If order of arrival was
slower, what was before returns, and stays until the links are the limit again. That is the plan's
order, or, if no plan had set one yet, each worker's own: an order that was never measured is not
better than one that was. The plan's order holds until enough iterations are known to
compare with.

``should_change`` asks between two plans whether ``choose`` would now decide otherwise.

No clock, no socket: only the issuer uses it (``issue.py``).
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from byteprophet.control.iteration_times import IterationTimes
from byteprophet.control.plan import HostLimit, Solution

COMPARED = 40
"""Iterations on either side of the change, of which medians are compared."""

SETTLING = 18
"""Iterations after the change that do not count: ranks agree on partitions every 16 steps."""

_CLEARLY = 0.02  # the least gain of a plan for which order of arrival is not nominated
_NEEDS, _STILL_NEEDS = 0.8, 0.7  # the least share of the links' time that the host must need
_SLOWER = 1.01
_FEWEST = COMPARED // 2  # iterations before the change


@dataclass
class _Change:
    """From iteration ``at`` on, gradients go in order of arrival. ``workers``: how many report."""

    at: int
    workers: frozenset[str]


@dataclass(frozen=True)
class _Slower:
    """Order of arrival was slower. ``than_plan``: than a plan's order, not than each worker's."""

    than_plan: bool


class ArrivalOrder:
    """``in_order``: whether the plan that was issued last has gradients go as they come.

    ``times``: what workers have reported.
    """

    def __init__(self, times: IterationTimes) -> None:
        self.in_order = False
        self._slower: _Slower | None = None
        self._has_planned = False  # some plan has set an order
        self._waits = False  # it is nominated, but there are too few iterations to compare with
        self._change: _Change | None = None
        self.times = times

    def choose(self, solution: Solution) -> Solution:
        """``solution``, or the one in order of arrival, or without an order, as before any plan."""
        host = solution.host
        if host is None:
            return solution
        if _links_are_limit(host):
            self._slower = None
            return solution
        if self._slower is not None:
            return solution if self._slower.than_plan else solution.by_priority()
        if self.in_order:
            return solution.in_order()
        nominated = _is_nominated(host)
        self._waits = nominated and len(self.times) < _FEWEST
        return solution.in_order() if nominated and not self._waits else solution

    def should_change(self, host: HostLimit) -> bool:
        """Whether ``choose`` would now decide otherwise than it did for the last plan."""
        if self.in_order or self._slower is not None:
            return _links_are_limit(host)
        return not self._waits and _is_nominated(host)

    def issued(self, solution: Solution, at_iteration: int, workers: frozenset[str]) -> None:
        """A plan was issued for ``solution``. A plan that is issued again begins later."""
        if not solution.is_in_order:
            self._change = None
            self._has_planned |= solution.is_ordered
        elif not self.in_order:
            self._change = _Change(at_iteration, workers)
        elif self._change is not None and at_iteration < self._change.at + SETTLING:
            self._change.at = at_iteration
        self.in_order = solution.is_in_order

    def verdict(self) -> str | None:
        """Why there should be another plan, said once; else None.

        Compares once enough is known. Call it when workers have reported iterations.
        """
        if self._waits and len(self.times) >= _FEWEST:
            self._waits = False
            return "enough iterations are known to compare others with"
        change = self._change
        if change is None:
            return None
        begin = change.at + SETTLING
        after = self.times.slowest_ns(begin, begin + COMPARED, change.workers)
        if len(after) < COMPARED:
            return None
        before = self.times.slowest_ns(change.at - COMPARED, change.at, change.workers)
        self._change = None
        if not before:  # of fewer than all workers
            return None
        before_ns, after_ns = statistics.median(before), statistics.median(after)
        if after_ns <= _SLOWER * before_ns:
            return None
        self._slower = _Slower(than_plan=self._has_planned)
        return (
            f"iterations in order of arrival took {after_ns / 1e6:.1f} ms, "
            f"{before_ns / 1e6:.1f} ms before"
        )


def _is_nominated(host: HostLimit) -> bool:
    return host.host_ns >= _NEEDS * host.planned_ns and host.gain <= _CLEARLY


def _links_are_limit(host: HostLimit) -> bool:
    return host.host_ns < _STILL_NEEDS * host.planned_ns or host.gain > 2 * _CLEARLY
