"""Searches for the groups (buckets) with the shortest iteration, using a model of the runtime.

With a profile, there is no need for trials during training. Ready times, sizes and alpha-beta costs
are known, and ``model.py`` predicts the iteration for any groups. The search only considers groups
that are obtained by cutting the readiness order. It starts from the best rules in ``groups.py``.
Then it adds, removes and moves single cuts as long as that makes the iteration shorter, or keeps
its time with fewer groups. Tests compare the result with all possible groups of small cases
(``tests/allreduce/test_grouping.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import accumulate, pairwise

from byteprophet.allreduce.groups import BUCKET_BYTES, Groups, fixed_size, merged_gradient
from byteprophet.allreduce.model import Order, predict
from byteprophet.allreduce.order import (
    RUNTIMES,
    allreduce,
    dear,
    earliest_deadline,
)
from byteprophet.allreduce.timing import Timing

_STARTS = 2
_SWEEPS = 8
_NO_GAIN = 0.005


_ORDERS: dict[str, Callable[[Timing, Groups], Order]] = {
    "allreduce": allreduce,
    "dear": dear,
    "dear-planned": earliest_deadline,
}

Cuts = frozenset[int]
Value = tuple[int, int]


def best_groups(runtime: str, timing: Timing) -> Groups:
    """The best groups that the search finds. It is deterministic."""
    search = _Search(timing, _ORDERS[runtime])
    sizes = (0, *BUCKET_BYTES, timing.size_bytes)
    rules = [merged_gradient(timing), *(fixed_size(timing, size) for size in sizes)]
    starts = sorted({frozenset(_cuts(groups)) for groups in rules}, key=search.value)[:_STARTS]
    return search.groups(min(map(search.improved, starts), key=search.value))


def best_plan(runtime: str, timing: Timing) -> tuple[Groups, Order]:
    """The groups and the order that ``runtime`` uses.

    If ``dear-planned`` is predicted to be less than 0.5% faster than DeAR's own order, it uses
    DeAR's order, because each rank then keeps and updates only its shard.
    """
    plan = _best_plan(runtime, timing)
    if runtime != "dear-planned":
        return plan
    simple = _best_plan("dear", timing)
    least_ns, simple_ns = (predict(timing, *each).iteration_ns for each in (plan, simple))
    return simple if simple_ns <= (1 + _NO_GAIN) * least_ns else plan


@lru_cache(16)  # that of dear is asked for twice where all runtimes are compared
def _best_plan(runtime: str, timing: Timing) -> tuple[Groups, Order]:
    groups = best_groups(runtime, timing)
    return groups, RUNTIMES[runtime](timing, groups)


class _Search:
    def __init__(self, timing: Timing, order: Callable[[Timing, Groups], Order]) -> None:
        self._timing = timing
        self._order = order
        self._values: dict[Cuts, Value] = {}

    def groups(self, cuts: Cuts) -> Groups:
        """The groups obtained by cutting the readiness order before each index in ``cuts``."""
        order = self._timing.by_readiness
        return tuple(order[a:b] for a, b in pairwise([0, *sorted(cuts), len(order)]))

    def value(self, cuts: Cuts) -> Value:
        """The value to minimise: the time of an iteration, then the number of groups."""
        if cuts not in self._values:
            groups = self.groups(cuts)
            order = self._order(self._timing, groups)
            predicted = predict(self._timing, groups, order)
            self._values[cuts] = predicted.iteration_ns, len(groups)
        return self._values[cuts]

    def improved(self, cuts: Cuts) -> Cuts:
        """Improve ``cuts`` by sweeps over all single changes, until a sweep finds none that helps.

        There are at most ``_SWEEPS`` sweeps.
        """
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
    """Yields changes at ``place``: add or remove its cut, or move it one place back or forth."""
    yield cuts ^ {place}
    if place in cuts:
        for other in (place - 1, place + 1):
            if 0 < other < count and other not in cuts:
                yield (cuts - {place}) | {other}


def _cuts(groups: Groups) -> Iterator[int]:
    """The indices at which ``groups`` cut the readiness order."""
    yield from list(accumulate(len(group) for group in groups))[:-1]
