"""The clocks of several machines as unknowns of linear programs.

Machine m's clock is wrong by ``f_m(c)``, linear in its own reading c; the reference's f is 0. An
effect at ``e`` on b, of a cause at ``c`` on a, had the one-way delay

    (e - f_b(e)) - (c - f_a(c))  >=  its minimum - tolerance

one row per piece of evidence, exact and linear in the unknowns. Three questions are asked of them:
``contradictions`` (how far must rows give way so that all can be kept), ``estimate`` (the clocks
that make the smallest one-way delays alike), ``extent`` (how far clocks that keep all rows differ).

Inside, times are counted from the recording's middle, on clocks corrected by whole ``rough``
offsets, and unknowns are microseconds: f_m = rough_m + 1000 (x_m + z_m * time / half the span).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.sparse import coo_array
from scipy.sparse.csgraph import breadth_first_order, connected_components

from byteprophet.timeline.alignment_evidence import Int64s, binding
from byteprophet.timeline.linear_program import Floats, LinearProgram

Pair = tuple[int, int]

_NS = 1000.0  # in a microsecond
_STRIPS = 16  # sizes per pair of machines whose smallest delays are compared
_AS_GOOD = 1e-3  # share of the smallest delay that is given up for smaller drifts
_NOISE_NS = 1.0  # less than this is the solver's rounding, no contradiction


@dataclass(frozen=True)
class Stamps:
    """Evidence between two machines by number, in nanoseconds on roughly aligned clocks."""

    pair: Pair
    times_ns: Int64s
    delays_ns: Int64s
    sizes: Int64s
    minimum_ns: int

    def only(self, chosen: npt.NDArray[np.generic]) -> Stamps:
        """Those with the indices, or where the mask is true."""
        columns = (self.times_ns[chosen], self.delays_ns[chosen], self.sizes[chosen])
        return Stamps(self.pair, *columns, self.minimum_ns)


@dataclass(frozen=True)
class Clock:
    """How wrong a clock still is: ``level_ns`` at the middle, ``slope_ns`` more at the end."""

    level_ns: float
    slope_ns: float


class Clocks:
    """``count`` machines, of which ``reference`` is right, over ``2 * half_ns`` of time.

    No clock's rate differs from the reference's by more than ``drift_limit`` (1e-6 is 1 ppm), and
    delays are known to ``tolerance_ns``.
    """

    def __init__(
        self,
        count: int,
        reference: int,
        half_ns: int,
        stamps: Sequence[Stamps],
        drift_limit: float,
        tolerance_ns: int,
    ) -> None:
        self._count, self._reference, self._half_ns = count, reference, half_ns
        self._slope = drift_limit * half_ns / _NS
        self._tolerance_ns = tolerance_ns
        # delay + slope * time is least where a row is tightest: (1 - d_b) delay + (d_a - d_b) time.
        self._steepest = 2 * drift_limit / (1 - drift_limit)
        self._stamps = stamps
        self._tightest = [self._binding(each) for each in stamps]

    def contradictions(self) -> dict[Pair, float]:
        """By how many nanoseconds evidence of which pairs must give way, in the least sum."""
        program = self._program()
        give = {each.pair: program.variable(lower=0.0) for each in self._tightest}
        for each in self._tightest:
            columns, values = self._difference(each)
            columns.append(give[each.pair])
            limits = self._limits(each)
            program.rows(columns, np.column_stack([values, -np.ones(len(limits))]), limits)
        found = program.minimise(dict.fromkeys(give.values(), 1.0))
        return {pair: found[i] * _NS for pair, i in give.items() if found[i] * _NS > _NOISE_NS}

    def estimate(self, give_ns: dict[Pair, float]) -> list[Clock]:
        """The clocks under which smallest one-way delays are alike, as the module's docs say.

        First the smallest delays that two machines have in both directions are made as large as
        can be, relative to each other. Of what that leaves open, evidence with no direct answer
        decides: on circles of machines it has alike smallest delays, elsewhere none at all, and
        drifts are small.
        """
        program = self._program()
        for each in self._tightest:
            program.rows(
                *self._difference(each), self._limits(each, give_ns.get(each.pair, 0.0) + _NOISE_NS)
            )
        two_way, circles, one_way = self._directions()
        strips = [self._strip(program, both) for both in two_way]
        if strips:
            found = program.minimise(dict.fromkeys(strips, -1.0))
            found = program.minimise({i: -1.0 / max(found[i], 1.0) for i in strips})
            for i in strips:
                program.lower[i] = found[i] - _AS_GOOD * abs(found[i])
        costs = defaultdict(float, {self._strip(program, circle): -1.0 for circle in circles})
        for each in one_way:
            columns, values = self._difference(each)
            for column, value in zip(columns, values.mean(axis=0), strict=True):
                costs[column] -= value
        for machine in range(self._count):
            size = program.variable()
            signs = np.array([[1.0, -1.0], [-1.0, -1.0]])
            program.rows([2 * machine + 1, size], signs, np.zeros(2))
            costs[size] = 1e-3
        found = program.minimise(costs)
        return [Clock(found[i] * _NS, found[i + 1] * _NS) for i in range(0, 2 * self._count, 2)]

    def extent(
        self, without: set[frozenset[int]], at: Sequence[float]
    ) -> list[list[tuple[float, float]]]:
        """The least and largest each clock can be wrong by, in ns, at times from -1 to 1.

        Evidence between the machines of ``without``, in either direction, is left out. Infinite
        where no evidence is a bound. Shape: machines, times.
        """
        kept = [each for each in self._tightest if frozenset(each.pair) not in without]
        program = self._program()
        for each in kept:
            program.rows(*self._difference(each), self._limits(each, _NOISE_NS))
        graph = self._graph(each.pair for each in kept)
        below_some = set(breadth_first_order(graph, self._reference, return_predecessors=False))
        above_some = set(breadth_first_order(graph.T, self._reference, return_predecessors=False))

        def least(machine: int, time: float, sign: float) -> float:
            if machine == self._reference:
                return 0.0
            if machine not in (above_some if sign > 0 else below_some):
                return -np.inf
            costs = {2 * machine: sign, 2 * machine + 1: sign * time}
            found = program.minimise(costs)
            return float(sum(cost * found[i] for i, cost in costs.items())) * _NS

        return [
            [(least(machine, time, 1.0), -least(machine, time, -1.0)) for time in at]
            for machine in range(self._count)
        ]

    def _program(self) -> LinearProgram:
        program = LinearProgram()
        for machine in range(self._count):
            known = machine == self._reference
            program.variable(*((0.0, 0.0) if known else ()))
            slope = 0.0 if known else self._slope
            program.variable(-slope, slope)
        return program

    def _binding(self, stamps: Stamps) -> Stamps:
        return stamps.only(binding(stamps.times_ns, stamps.delays_ns, self._steepest))

    def _difference(self, stamps: Stamps) -> tuple[list[int], Floats]:
        """``f_b(effect) - f_a(cause)`` as variables and, per row, their factors."""
        cause, effect = stamps.pair
        time = stamps.times_ns / self._half_ns
        later = (stamps.times_ns + stamps.delays_ns) / self._half_ns
        ones = np.ones(len(time))
        columns = [2 * effect, 2 * effect + 1, 2 * cause, 2 * cause + 1]
        return columns, np.column_stack([ones, later, -ones, -time])

    def _limits(self, stamps: Stamps, more_ns: float = 0.0) -> Floats:
        allowed_ns = stamps.delays_ns - stamps.minimum_ns + self._tolerance_ns + more_ns
        return np.asarray(allowed_ns / _NS, np.float64)

    def _strip(self, program: LinearProgram, evidence: Iterable[Stamps]) -> int:
        """A new variable that is at most the smallest one-way delay among ``evidence``."""
        smallest = program.variable()
        for each in evidence:
            columns, values = self._difference(each)
            columns.append(smallest)
            ones = np.ones(len(values))
            program.rows(columns, np.column_stack([values, ones]), each.delays_ns / _NS)
        return smallest

    def _directions(self) -> tuple[list[list[Stamps]], list[list[Stamps]], list[Stamps]]:
        """Evidence by what answers it: the other direction, a circle of machines, nothing."""
        of_pair: defaultdict[Pair, list[int]] = defaultdict(list)
        for i, each in enumerate(self._stamps):
            of_pair[each.pair].append(i)
        _, circle_of = connected_components(self._graph(of_pair), connection="strong")
        two_way: list[list[Stamps]] = []
        circles: defaultdict[int, list[Stamps]] = defaultdict(list)
        one_way: list[Stamps] = []
        for (a, b), there in of_pair.items():
            tightest = [self._tightest[i] for i in there]
            if (b, a) in of_pair:
                if a < b:
                    two_way.extend(self._alike(there, of_pair[b, a]))
            elif circle_of[a] == circle_of[b]:
                circles[circle_of[a]].extend(tightest)
            else:
                one_way.extend(tightest)
        return two_way, list(circles.values()), one_way

    def _alike(self, there: list[int], back: list[int]) -> Iterator[list[Stamps]]:
        """Evidence of two machines, by the sizes that went both ways; all of it if none did."""
        counts = [self._sizes(direction) for direction in (there, back)]
        both = {size: min(counts[0][size], counts[1][size]) for size in counts[0] & counts[1]}
        for size, _ in sorted(both.items(), key=lambda item: (-item[1], item[0]))[:_STRIPS]:
            evidence = [self._stamps[i] for i in there + back]
            yield [self._binding(each.only(each.sizes == size)) for each in evidence]
        if not both:
            yield [self._tightest[i] for i in there + back]

    def _sizes(self, numbers: list[int]) -> Counter[int]:
        counts: Counter[int] = Counter()
        for i in numbers:
            sizes, times = np.unique(self._stamps[i].sizes, return_counts=True)
            counts.update(dict(zip(sizes.tolist(), times.tolist(), strict=True)))
        return counts

    def _graph(self, pairs: Iterable[Pair]) -> coo_array:
        return graph_of(self._count, pairs)


def graph_of(count: int, pairs: Iterable[Pair]) -> coo_array:
    """The machines as a directed graph with an edge from cause to effect."""
    edges: npt.NDArray[np.intp] = np.array(sorted(set(pairs)), np.intp).reshape(-1, 2)
    return coo_array((np.ones(len(edges)), (edges[:, 0], edges[:, 1])), shape=(count, count))
