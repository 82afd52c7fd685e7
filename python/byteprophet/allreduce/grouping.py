"""The groups that make the iteration shortest under a runtime, by search over its model.

With a profile nothing need be tried in training: ready times, sizes and alpha-beta costs are known,
and ``model.py`` says what any partition gives. Partitions are cuts of the readiness order. The
search starts from the best of the rules in ``groups.py`` and then adds, removes and moves single
cuts while that helps: an iteration time that is shorter, or as short with fewer groups. On small
cases it is compared with all partitions (``tests/allreduce/test_grouping.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import accumulate, pairwise

from byteprophet.allreduce.groups import BUFFER_BYTES, Groups, fixed_size, merged_gradient
from byteprophet.allreduce.model import Order, predict
from byteprophet.allreduce.order import RUNTIMES, allreduce, dear, earliest_deadline
from byteprophet.allreduce.timing import Timing

_STARTS = 2
_SWEEPS = 8
_NO_GAIN = 0.005

_ORDERS: dict[str, Callable[[Timing, Groups], Order]] = {
    "allreduce": allreduce,
    "dear": dear,
    "dear-planned": earliest_deadline,  # planned takes exactly as long
}

Cuts = frozenset[int]
Value = tuple[int, int]


def best_groups(runtime: str, timing: Timing) -> Groups:
    """The best that was found; the same on every rank that asks with the same timing."""
    search = _Search(timing, _ORDERS[runtime])
    sizes = (0, *BUFFER_BYTES, timing.size_bytes)
    rules = [merged_gradient(timing), *(fixed_size(timing, size) for size in sizes)]
    starts = sorted({frozenset(_cuts(groups)) for groups in rules}, key=search.value)[:_STARTS]
    return search.groups(min(map(search.improved, starts), key=search.value))


def best_plan(runtime: str, timing: Timing) -> tuple[Groups, Order]:
    """Groups and order of ``runtime``.

    Where ``dear-planned`` is predicted to gain next to nothing on DeAR's own order, it goes by
    that: then no rank keeps or updates more than its share.
    """
    plan = _best_plan(runtime, timing)
    if runtime != "dear-planned":
        return plan
    simple = _best_plan("dear", timing)
    least_ns, simple_ns = (predict(timing, *each).iteration_ns for each in (plan, simple))
    return simple if simple_ns <= (1 + _NO_GAIN) * least_ns else plan


def _best_plan(runtime: str, timing: Timing) -> tuple[Groups, Order]:
    groups = best_groups(runtime, timing)
    return groups, RUNTIMES[runtime](timing, groups)


class _Search:
    def __init__(self, timing: Timing, order: Callable[[Timing, Groups], Order]) -> None:
        self._timing = timing
        self._order = order
        self._values: dict[Cuts, Value] = {}

    def groups(self, cuts: Cuts) -> Groups:
        """The readiness order, cut before each of these of its places."""
        order = self._timing.by_readiness
        return tuple(order[a:b] for a, b in pairwise([0, *sorted(cuts), len(order)]))

    def value(self, cuts: Cuts) -> Value:
        """What is minimised: time of an iteration, then groups."""
        if cuts not in self._values:
            groups = self.groups(cuts)
            order = self._order(self._timing, groups)
            predicted = predict(self._timing, groups, order)
            self._values[cuts] = predicted.iteration_ns, len(groups)
        return self._values[cuts]

    def improved(self, cuts: Cuts) -> Cuts:
        """As long as a sweep over all single changes finds one that helps."""
        for _ in range(_SWEEPS):
            before = cuts
            for place in range(1, len(self._timing.parameters)):
                cuts = min(
                    [cuts, *_changes(cuts, place, len(self._timing.parameters))], key=self.value
                )
            if cuts == before:
                break
        return cuts


def _changes(cuts: Cuts, place: int, count: int) -> Iterator[Cuts]:
    """A cut there or none; one that is there, a place earlier or later."""
    yield cuts ^ {place}
    if place in cuts:
        for other in (place - 1, place + 1):
            if 0 < other < count and other not in cuts:
                yield (cuts - {place}) | {other}


def _cuts(groups: Groups) -> Iterator[int]:
    """Where the readiness order is cut, of groups that are runs of it."""
    yield from list(accumulate(len(group) for group in groups))[:-1]
