"""The clocks of several machines as unknowns of linear programs.

Machine m's clock is wrong by ``f_m(c)``, a linear function of its own reading c. The reference's
error is 0. A cause at time ``c`` on machine a and its effect at time ``e`` on machine b have the
one-way delay

    (e - f_b(e)) - (c - f_a(c))  >=  its minimum - tolerance

Each piece of evidence gives one such row, which is exact and linear in the unknowns. The program
answers three questions. ``contradictions``: which rows must be dropped so that all others can
hold? ``estimate``: which clocks make the smallest one-way delays equal? ``extent``: how far apart
are the clocks that satisfy all rows?

Internally, clocks are already roughly aligned, and times count from the recording's middle. The
unknowns are errors in microseconds: x_m in the middle and x_m + z_m at the end of the recording.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.sparse.csgraph import breadth_first_order

from byteprophet.timeline.alignment_stamps import Pair, Stamps, answers, graph_of
from byteprophet.timeline.linear_program import Floats, LinearProgram

Two = frozenset[int]
"""Two machines with evidence between them, in either direction."""

_NS = 1000.0  # in a microsecond
_NOISE_NS = 1.0  # less than this is the solver's rounding
_EQUAL_NS = 0.1
_TANGENTS = 5  # after three, clocks of real recordings move by less than 1 µs


@dataclass(frozen=True)
class Clock:
    """A clock's error: ``level_ns`` in the recording's middle, ``slope_ns`` more at its end."""

    level_ns: float
    slope_ns: float


class Clocks:
    """The clocks of ``count`` machines during a recording of ``2 * half_ns``.

    The clock of machine ``reference`` is right. No clock's rate differs from its rate by more than
    ``drift_limit`` (1e-6 is 1 ppm). Effects may be stamped too early by up to ``tolerance_ns``.
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
        # With drifts per local second, a row becomes (1 - d_b) delay + (d_a - d_b) time.
        self._steepest = 2 * drift_limit / (1 - drift_limit)
        self._stamps = stamps
        self._tightest = [each.tightest(self._steepest) for each in stamps]

    def contradictions(self) -> set[Two]:
        """The pairs of machines whose evidence must be dropped so that the rest can be true.

        Each round finds the clocks that violate the remaining evidence least, in total time. It
        then drops the evidence between the two machines with the largest violation.
        """
        without: set[Two] = set()
        while True:  # at most once for any two machines
            program = self._program()
            kept = [each for each in self._tightest if Two(each.pair) not in without]
            give = self._give_way(program, kept)
            found = program.minimise(dict.fromkeys(give.values(), 1.0))
            most: Counter[Two] = Counter()
            for pair, i in give.items():
                most[Two(pair)] += round(found[i] * _NS)
            worst, by_ns = most.most_common(1)[0] if most else (Two(), 0)
            if by_ns <= _NOISE_NS:
                return without
            without.add(worst)

    def estimate(self, without: set[Two]) -> list[Clock]:
        """The clocks that make the smallest one-way delays as equal as possible.

        First, for every two machines with evidence in both directions, the smallest delay is made
        as large as possible, relative to those of other pairs. Then the fastest messages in each
        part of the recording are brought near these smallest delays (``_near``). Evidence without a
        direct answer decides what is still open. On cycles of machines, its smallest delay is made
        as large as possible; elsewhere, its delays are made as small as possible. Drifts that
        nothing else determines are kept small. The evidence between machines in ``without`` may be
        violated, but only as little as the rest allows.
        """
        program = self._program()
        self._keep(program, without)
        found_in = answers(
            self._count, [each for each in self._stamps if Two(each.pair) not in without]
        )
        strips = [self._smallest(program, alike) for alike in found_in.alike]
        if strips:
            found = program.minimise(dict.fromkeys(strips, -1.0))
            found = program.minimise({i: -1.0 / max(found[i], 1.0) for i in strips})
            self._near(program, dict(zip(strips, found_in.alike, strict=True)), found)
        costs: defaultdict[int, float] = defaultdict(float)
        for circle in found_in.circles:
            costs[self._smallest(program, circle)] = -1.0
        for each in found_in.unanswered:
            columns, values = self._difference(each.tightest(self._steepest))
            for column, value in zip(columns, values.mean(axis=0), strict=True):
                costs[column] -= value
        violated = [each for each in self._tightest if Two(each.pair) in without]
        costs.update(dict.fromkeys(self._give_way(program, violated).values(), 1.0))
        for machine in range(self._count):
            size = program.variable()
            signs = np.array([[1.0, -1.0], [-1.0, -1.0]])
            program.rows([2 * machine + 1, size], signs, np.zeros(2))
            costs[size] = 1e-3
        levels, slopes = program.minimise(costs)[: 2 * self._count].reshape(-1, 2).T * _NS
        return [Clock(*each) for each in zip(levels.tolist(), slopes.tolist(), strict=True)]

    def extent(self, without: set[Two], at: Sequence[float]) -> list[list[tuple[float, float]]]:
        """The smallest and largest possible error of each clock, in ns, at the times ``at``.

        Times are from -1 (the start of the recording) to 1 (its end). Evidence between machines in
        ``without`` is ignored. An error without a bound is infinite. Shape: machines, times.
        """
        program = self._program()
        kept = self._keep(program, without)
        # Evidence on a path from the reference to a machine bounds how far its clock is ahead.
        # Evidence on a path from the machine to the reference bounds how far it is behind.
        graph = graph_of(self._count, (each.pair for each in kept))
        ahead = set(breadth_first_order(graph, self._reference, return_predecessors=False))
        behind = set(breadth_first_order(graph.T, self._reference, return_predecessors=False))

        def least(machine: int, time: float, sign: float) -> float:
            if machine == self._reference:
                return 0.0
            if machine not in (behind if sign > 0 else ahead):
                return -np.inf
            costs = {2 * machine: sign, 2 * machine + 1: sign * time}
            found = program.minimise(costs)
            return float(sum(cost * found[i] for i, cost in costs.items())) * _NS

        return [
            [(least(machine, time, 1.0), -least(machine, time, -1.0)) for time in at]
            for machine in range(self._count)
        ]

    def _program(self) -> LinearProgram:
        """A program of the clocks alone: variable 2 m is x_m, 2 m + 1 is z_m."""
        program = LinearProgram()
        for machine in range(self._count):
            level = 0.0 if machine == self._reference else np.inf
            slope = 0.0 if machine == self._reference else self._slope
            program.variable(-level, level)
            program.variable(-slope, slope)
        return program

    def _keep(self, program: LinearProgram, without: set[Two]) -> list[Stamps]:
        """Adds rows for all evidence, except between machines in ``without``, and returns it."""
        kept = [each for each in self._tightest if Two(each.pair) not in without]
        for each in kept:
            program.rows(*self._difference(each), self._limits(each) + _NOISE_NS / _NS)
        return kept

    def _give_way(self, program: LinearProgram, evidence: Sequence[Stamps]) -> dict[Pair, int]:
        """Adds a variable per pair of machines: the largest violation of its ``evidence`` rows."""
        pairs = dict.fromkeys(each.pair for each in evidence)
        give = {pair: program.variable(lower=0.0) for pair in pairs}
        for each in evidence:
            columns, values = self._difference(each)
            columns.append(give[each.pair])
            ones = np.ones(len(values))
            program.rows(columns, np.column_stack([values, -ones]), self._limits(each))
        return give

    def _smallest(self, program: LinearProgram, evidence: Iterable[Stamps]) -> int:
        """Adds a variable that is at most the smallest one-way delay in ``evidence``."""
        smallest = program.variable()
        for each in evidence:
            tightest = each.tightest(self._steepest)
            columns, values = self._difference(tightest)
            columns.append(smallest)
            ones = np.ones(len(values))
            program.rows(columns, np.column_stack([values, ones]), tightest.delays_ns / _NS)
        return smallest

    def _near(
        self, program: LinearProgram, strips: Mapping[int, Sequence[Stamps]], found: Floats
    ) -> None:
        """Restricts clocks so that the fastest messages stay near the smallest delays throughout.

        ``strips``: for each smallest-delay variable, its evidence. If nearly all messages in a
        direction queue, few are fast, so the direction says little about drift. A direction with
        some fast messages in all parts of the recording says much. Therefore the logarithm of each
        part's excess over the smallest delay is minimised: a few messages near it count more than
        many far from it. The logarithm is concave, so it is replaced by its tangents at ``found``,
        and the program is solved again at each new solution.
        """
        rows = []
        for strip, evidence in strips.items():
            for each in evidence:
                columns, values = self._difference(each)
                delays_ns = each.delays_ns - values @ found[columns] * _NS
                fastest = each.fastest(delays_ns, self._half_ns)
                rows.append((strip, fastest.delays_ns / _NS, *self._difference(fastest)))
        for _ in range(_TANGENTS):
            costs: defaultdict[int, float] = defaultdict(float)
            for strip, delays, columns, values in rows:
                beyond = delays - values @ found[columns] - found[strip]
                weights = 1 / (np.maximum(beyond, 0.0) + max(found[strip], 1.0))
                costs[strip] -= weights.sum()
                for column, weight in zip(columns, weights @ values, strict=True):
                    costs[column] -= weight
            found = program.minimise(costs)
        columns, weights = list(costs), np.array([*costs.values()])
        least = weights @ found[columns] + np.abs(weights).sum() * _EQUAL_NS / _NS
        program.rows(columns, weights[np.newaxis], np.array([least]))

    def _difference(self, stamps: Stamps) -> tuple[list[int], Floats]:
        """``f_b(effect) - f_a(cause)``: the variables and, per row, their factors."""
        cause, effect = stamps.pair
        time = stamps.times_ns / self._half_ns
        later = (stamps.times_ns + stamps.delays_ns) / self._half_ns
        ones = np.ones(len(time))
        columns = [2 * effect, 2 * effect + 1, 2 * cause, 2 * cause + 1]
        return columns, np.column_stack([ones, later, -ones, -time])

    def _limits(self, stamps: Stamps) -> Floats:
        allowed_ns = stamps.delays_ns - stamps.minimum_ns + self._tolerance_ns
        return np.asarray(allowed_ns / _NS, np.float64)
