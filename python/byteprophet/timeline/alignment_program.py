"""The clocks of several machines as unknowns of linear programs.

Machine m's clock is wrong by ``f_m(c)``, linear in its own reading c; the reference's f is 0. An
effect at ``e`` on b, of a cause at ``c`` on a, had the one-way delay

    (e - f_b(e)) - (c - f_a(c))  >=  its minimum - tolerance

one row per piece of evidence, exact and linear in the unknowns. Three questions are asked of them:
``contradictions`` (which rows must go so that all others can be kept), ``estimate`` (the clocks
that make smallest one-way delays alike), ``extent`` (how far apart clocks are that keep all rows).

Inside, clocks are roughly aligned already, times count from the recording's middle, and unknowns
are microseconds: x_m there, and z_m more at the recording's end.
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
"""Machines with evidence between them, in either direction."""

_NS = 1000.0  # in a microsecond
_NOISE_NS = 1.0  # less than this is the solver's rounding
_EQUAL_NS = 0.1
_TANGENTS = 5  # after three, clocks of real recordings move by less than 1 µs


@dataclass(frozen=True)
class Clock:
    """Wrong by: ``level_ns`` in the recording's middle, ``slope_ns`` more at its end."""

    level_ns: float
    slope_ns: float


class Clocks:
    """``count`` machines, of which ``reference`` is right, over ``2 * half_ns`` of time.

    No clock's rate differs from the reference's by more than ``drift_limit`` (1e-6 is 1 ppm), and
    effects may be stamped too early by ``tolerance_ns``.
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
        # With drifts per local second, a row leaves (1 - d_b) delay + (d_a - d_b) time.
        self._steepest = 2 * drift_limit / (1 - drift_limit)
        self._stamps = stamps
        self._tightest = [each.tightest(self._steepest) for each in stamps]

    def contradictions(self) -> set[Two]:
        """Between which machines evidence must be left out, so that the rest can be true.

        Again and again the machines between which evidence must give way most, where all give way
        by the least sum of time.
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
        """The clocks under which smallest one-way delays are alike.

        First the smallest delays that two machines have in both directions are made as large as
        can be, relative to each other; then what is fastest in each part of the recording is
        brought near them (``_near``). Of what that leaves open, evidence with no direct answer
        decides: on circles of machines it has alike smallest delays, elsewhere none at all. Drifts
        are small where nothing else is said. Evidence ``without`` decides last, as if it could give
        way: it is violated as little as the rest allows.
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
        """The least and largest each clock can be wrong by, in ns, at times from -1 to 1.

        Evidence ``without`` says nothing. Infinite where no evidence is a bound. Shape: machines,
        times.
        """
        program = self._program()
        kept = self._keep(program, without)
        # Evidence on a path to a machine bounds how far it is ahead, on a path from it how far
        # behind, each against the reference.
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
        """All evidence but that ``without``, now rows that must be kept."""
        kept = [each for each in self._tightest if Two(each.pair) not in without]
        for each in kept:
            program.rows(*self._difference(each), self._limits(each) + _NOISE_NS / _NS)
        return kept

    def _give_way(self, program: LinearProgram, evidence: Sequence[Stamps]) -> dict[Pair, int]:
        """New variables: by how much rows of ``evidence`` are violated at most, by their pair."""
        pairs = dict.fromkeys(each.pair for each in evidence)
        give = {pair: program.variable(lower=0.0) for pair in pairs}
        for each in evidence:
            columns, values = self._difference(each)
            columns.append(give[each.pair])
            ones = np.ones(len(values))
            program.rows(columns, np.column_stack([values, -ones]), self._limits(each))
        return give

    def _smallest(self, program: LinearProgram, evidence: Iterable[Stamps]) -> int:
        """A new variable: at most the smallest one-way delay among ``evidence``."""
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
        """Keep clocks under which the fastest messages are near the smallest delays, all the time.

        ``strips``: evidence by the variable that is its smallest delay. A direction in which nearly
        all messages queue has next to none that are fast, and says little about drift; one that has
        some in all parts of the recording says much. So it is the logarithm of what delays exceed
        the smallest by that is made small, part by part: few that are near count more than many
        that are far. The logarithm is concave: its tangents at ``found``, and again.
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
        """``f_b(effect) - f_a(cause)`` as variables and, per row, their factors."""
        cause, effect = stamps.pair
        time = stamps.times_ns / self._half_ns
        later = (stamps.times_ns + stamps.delays_ns) / self._half_ns
        ones = np.ones(len(time))
        columns = [2 * effect, 2 * effect + 1, 2 * cause, 2 * cause + 1]
        return columns, np.column_stack([ones, later, -ones, -time])

    def _limits(self, stamps: Stamps) -> Floats:
        allowed_ns = stamps.delays_ns - stamps.minimum_ns + self._tolerance_ns
        return np.asarray(allowed_ns / _NS, np.float64)
