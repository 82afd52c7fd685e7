"""Which moves to make: dPRO's Algorithm 1, then annealing, within a budget of time.

The search starts from the job as it was recorded and from the passes' starts: from the best one of
each runtime or policy. Each of these is improved move by move: passes offer moves around the
critical path, the most promising first, and the first one that helps is made, until none does. This
happens in stages. In the first ones decisions are made only between blocks of the model, then
between modules, then anywhere, and a decision is tried for all equal parts of the model at once
(``view.py``).

Then it anneals from the best job of all: moves are drawn by lot, and one that costs a little is
sometimes made, so that the search leaves a hollow that no single move leaves. The same seed and the
same number of replays give the same answer.

So far, two workers stood for all (``fold.py``). The best jobs of all runtimes or policies are then
replayed with all workers, and those near the best one are improved once more, by a few moves: those
which two workers find nearly as good, the best first. Half of the budget is kept for that.

No move is worth less than ``LEAST_GAIN`` of an iteration: the replay knows no smaller differences.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from operator import itemgetter
from typing import Protocol

from byteprophet.errors import UserError
from byteprophet.job import Job
from byteprophet.job.strategy import DDP
from byteprophet.optimize.blame import blaming
from byteprophet.optimize.evaluate import Evaluator
from byteprophet.optimize.moves import Move, Pass
from byteprophet.optimize.view import View

RESUMED = "earlier search"
LEAST_GAIN = 0.0005
"""What a job must gain, as a share of an iteration, to count as faster by its replay."""

_FOLDED_SHARE = 0.5
"""The share of the budget in which two workers stand for all."""

_CONFIRMING = 8
"""The most replays with all workers in which the best jobs are improved."""

_NEAR = 0.02
"""Jobs that take so much longer than the best are not improved with all workers, and moves that
cost two workers so much are not tried with all."""

_LOOKED_AT = 64
"""The most moves from which those to try with all workers are chosen."""

_PROMISING = 0.05
"""It anneals from the best job of each runtime or policy that takes so much longer at most. Of ten
jobs, none became more than 1.5% faster by it."""
_HEAT = 0.004
"""After a move of the annealing that helped, one that costs so much is made one time in e."""
_FRUITLESS = 4
"""The annealing ends after so many times as many moves without a gain as there are moves."""
_LEAST_FRUITLESS = 64
"""And after no fewer: a small job has few moves, but a hollow may be several moves wide."""


@dataclass(frozen=True)
class Stage:
    """How closely a part of the search looks, as ``moves.Hints`` has it."""

    view: View
    symmetric: bool


STAGES = tuple(Stage(view, symmetric=True) for view in View)
"""Those of a search: from coarse to fine."""


@dataclass(frozen=True)
class Decision:
    """A move that was made: by which pass, what it changes, what it brings in the search.

    ``theorem``: the one that expected it to pay; "": none did, and the replay alone decided.
    """

    by: str
    what: str
    gain_ns: int
    theorem: str = ""


@dataclass(frozen=True)
class Checked:
    """How many of a theorem's moves were replayed, and how many of these paid as it expected."""

    replayed: int
    paid: int


@dataclass(frozen=True)
class Candidate:
    """A job, what an iteration of it takes in the search, and the moves that led to it."""

    job: Job
    iteration_ns: int
    decisions: tuple[Decision, ...] = ()


@dataclass(frozen=True)
class Found:
    """What a search has seen; ``replays``: how many it made.

    ``families``: the best candidate of each family of jobs (``family_of``), the best first. The
    first is ``best``, unless nothing is better than ``start``. ``start_fits``: whether the start is
    within the limit; if it is not, ``best`` may be slower.
    """

    start: Candidate
    best: Candidate
    families: tuple[Candidate, ...]
    replays: int
    start_fits: bool = True
    tested: Mapping[str, Checked] = field(default_factory=dict)


def family_of(job: Job) -> str:
    """Jobs that a replay compares well with each other, and less well with those of others.

    They have the same runtime or policy. Under DistributedDataParallel, they have about as many
    buckets, because a recorded job with few buckets tells little about what a bucket costs.
    """
    if job.policy is not None:
        return job.policy.name
    if job.strategy.runtime == DDP:
        return f"{DDP}, 2^{len(job.strategy.buckets).bit_length()} buckets"
    return job.strategy.runtime


@dataclass(frozen=True)
class Left:
    """What an earlier search left: a job, and the decisions that led to it, if they are known."""

    move: Move
    decisions: tuple[Decision, ...] = ()


@dataclass(frozen=True)
class Repair:
    """What makes a job fit a limit. ``by``: the name of the pass that makes such moves."""

    by: str
    move: Move


class Limit(Protocol):
    """Which jobs a search may use (``memory_limit.py``)."""

    def fits(self, job: Job) -> bool:
        """Whether ``job`` may be used."""

    def repaired(self, job: Job) -> Repair | None:
        """What makes ``job`` one that may be used; None if nothing does."""


Progress = Callable[[Candidate, float], None]
"""Is told the best so far, and the share of the budget that is spent."""


def search(
    job: Job,
    passes: Sequence[Pass],
    *,
    budget_s: float,
    seed: int = 0,
    left: Sequence[Left] = (),
    limit: Limit | None = None,
    progress: Progress = lambda best, spent: None,
    evaluator: Evaluator | None = None,
    stages: Sequence[Stage] = STAGES,
) -> Found:
    """The best of ``job`` and all that ``passes`` make of it, within about ``budget_s`` seconds.

    ``left``: what earlier searches left: starts, too. ``limit``: only jobs within it are
    used, and starts beyond it are repaired; ``UserError`` if ``job`` cannot be. The first
    evaluations are made whatever the budget, so that the answer is never nothing. An ``evaluator``
    of one's own and other ``stages`` are for measuring what shortcuts bring.
    """
    lot = random.Random(seed)
    run = _Search(passes, budget_s, lot, progress, evaluator or Evaluator(), stages, limit)
    return run.run(job, left)


class _Search:
    def __init__(
        self,
        passes: Sequence[Pass],
        budget_s: float,
        lot: random.Random,
        progress: Progress,
        evaluator: Evaluator,
        stages: Sequence[Stage],
        limit: Limit | None,
    ) -> None:
        self._limit = limit
        self._passes = passes
        self._lot = lot
        self._evaluate = evaluator
        self._stages = stages
        self._progress = progress
        self._families: dict[str, Candidate] = {}
        self._tested: dict[str, Checked] = {}
        self._most_replays = math.inf
        self._begun_s = time.monotonic()
        self._budget_s = budget_s

    def run(self, job: Job, left: Sequence[Left]) -> Found:
        unfolded = self._evaluate.unfolded(job)
        self._until = 1.0 if unfolded is None else _FOLDED_SHARE
        start = Candidate(job, self._evaluate(job).iteration_ns)
        self._begin_with(start)
        starts = [self._best]
        for each_left in left:
            starts += self._resumed(start, each_left)
        for each in self._passes:
            with blaming(each):
                for move in each.starts(job):
                    starts += self._started(start, each.name, move)
                    if self._spent >= 1:
                        break
        starts += self._moved(job, starts)
        starts.sort(key=lambda candidate: candidate.iteration_ns)
        of_families = {family_of(candidate.job): candidate for candidate in reversed(starts)}
        for candidate in sorted(of_families.values(), key=lambda each: each.iteration_ns):
            self._climb(candidate)
        for candidate in sorted(self._families.values(), key=lambda each: each.iteration_ns):
            if candidate.iteration_ns < (1 + _PROMISING) * self._best.iteration_ns:
                self._anneal(candidate)
        quick = self._evaluate
        if unfolded is not None:
            self._until = 1.0
            self._evaluate = unfolded
            start = self._confirm(start, quick)
        families = sorted(self._families.values(), key=lambda each: each.iteration_ns)
        fits = self._limit is None or self._limit.fits(job)
        replays = quick.replays + (0 if unfolded is None else unfolded.replays)
        return Found(start, self._best, tuple(families), replays, fits, self._tested)

    def _moved(self, job: Job, starts: list[Candidate]) -> Iterator[Candidate]:
        """What passes make of the best start under each other runtime than that of ``job``."""
        best_of: dict[str, Candidate] = {}
        for start in sorted(starts, key=lambda candidate: candidate.iteration_ns):
            if start.job.strategy.runtime != job.strategy.runtime:
                best_of.setdefault(start.job.strategy.runtime, start)
        for best in best_of.values():
            made_by = best.decisions[0].by  # all of its starts have been tried
            for each in (one for one in self._passes if one.name != made_by):
                with blaming(each):
                    for move in each.starts(best.job):
                        if self._spent < 1:
                            yield from self._started(best, each.name, move)

    def _fits(self, move: Move) -> bool:
        """Whether its job is within the limit; without one, the job is not made for that."""
        return self._limit is None or self._limit.fits(move.job)

    def _begin_with(self, start: Candidate) -> None:
        """Take ``start`` as the best so far, or what becomes of it within the limit.

        The latter may be the result, as what was recorded may not. So it is kept.
        """
        self._best = start
        if self._limit is None or self._limit.fits(start.job):
            return
        repair = self._limit.repaired(start.job)
        if repair is None:
            raise UserError(f"{start.job.title}: nothing makes it fit the limit")
        self._best = self._changed(start, repair.by, repair.move)
        self._keep(self._best)

    def _resumed(self, start: Candidate, left: Left) -> list[Candidate]:
        """A start that an earlier search left, with its decisions."""
        if not left.decisions or not self._fits(left.move):
            return self._started(start, RESUMED, left.move)
        made = self._changed(start, RESUMED, left.move)
        was_ns = sum(each.gain_ns for each in left.decisions)
        decisions = _rescaled(left.decisions, was_ns, start.iteration_ns - made.iteration_ns)
        made = replace(made, decisions=decisions)
        for each in left.decisions:
            self._count(each.theorem, each.gain_ns > 0)
        self._keep(made)
        return [made]

    def _started(self, start: Candidate, by: str, move: Move) -> list[Candidate]:
        """The start that a pass offers, repaired if it must be; none if nothing can repair it."""
        if self._fits(move):
            return [self._made(start, by, move)]
        repair = None if self._limit is None else self._limit.repaired(move.job)
        if repair is None:
            return []
        return [self._made(self._changed(start, by, move), repair.by, repair.move)]

    def _confirm(self, start: Candidate, quick: Evaluator) -> Candidate:
        """Replay what was found with all workers, and improve the best of it. Returns the start.

        ``quick``: for which two workers stand for all.
        """
        families = sorted(self._families.values(), key=lambda each: each.iteration_ns)
        folded_best, folded_ns = self._best, start.iteration_ns
        self._families = {}
        start = Candidate(start.job, self._evaluate(start.job).iteration_ns)
        self._begin_with(start)
        if folded_best.decisions and folded_best not in families:
            families.insert(0, folded_best)
        for candidate in families:
            if self._spent < 1 or candidate is families[0]:
                iteration_ns = self._evaluate(candidate.job).iteration_ns
                decisions = _rescaled(
                    candidate.decisions,
                    folded_ns - candidate.iteration_ns,
                    start.iteration_ns - iteration_ns,
                )
                self._keep(Candidate(candidate.job, iteration_ns, decisions))
        self._most_replays = self._evaluate.replays + _CONFIRMING
        for candidate in sorted(self._families.values(), key=lambda each: each.iteration_ns):
            if candidate.iteration_ns < (1 + _NEAR) * self._best.iteration_ns:
                while better := self._better(candidate, self._promising(candidate.job, quick)):
                    candidate = better
        return start

    def _promising(self, job: Job, quick: Evaluator) -> list[tuple[Pass, Move]]:
        """The moves of ``job`` that ``quick`` finds near it, the best first."""
        most_ns = (1 + _NEAR) * quick(job).iteration_ns
        timed = []
        for by, move in islice(self._offered(job, self._stages[-1], quick), _LOOKED_AT):
            if self._spent >= 1:
                break
            with blaming(by):
                timed.append((quick(move.job).iteration_ns, by, move))
        timed.sort(key=itemgetter(0))
        return [(by, move) for took_ns, by, move in timed if took_ns < most_ns]

    @property
    def _spent(self) -> float:
        """The share of the time for this part of the search; 1 and more: none is left."""
        return (time.monotonic() - self._begun_s) / (self._budget_s * self._until)

    def _offered(self, job: Job, stage: Stage, evaluate: Evaluator) -> Iterator[tuple[Pass, Move]]:
        """The moves of all passes, the most promising of each pass first."""
        hints = evaluate(job).hints
        hints = replace(hints, view=stage.view, symmetric=stage.symmetric)
        for each in self._passes:
            with blaming(each):
                for move in each.moves(job, hints):
                    if self._fits(move):
                        yield each, move

    def _made(self, before: Candidate, by: str, move: Move) -> Candidate:
        """The candidate after a move within the limit; the best so far is kept."""
        known = self._evaluate.replays
        made = self._changed(before, by, move)
        if self._evaluate.replays > known:
            self._count(move.theorem, made.iteration_ns < before.iteration_ns)
        self._keep(made)
        return made

    def _count(self, theorem: str, paid: bool) -> None:
        """Count a replayed move that ``theorem`` expected to pay, if there was one."""
        if theorem:
            was = self._tested.get(theorem, Checked(0, 0))
            self._tested[theorem] = Checked(was.replayed + 1, was.paid + paid)

    def _changed(self, before: Candidate, by: str, move: Move) -> Candidate:
        iteration_ns = self._evaluate(move.job).iteration_ns
        gain_ns = before.iteration_ns - iteration_ns
        decision = Decision(by, move.what, gain_ns, move.theorem)
        return Candidate(move.job, iteration_ns, (*before.decisions, decision))

    def _keep(self, candidate: Candidate) -> None:
        """Remember a candidate if it is the best of its family, or of all."""
        family = family_of(candidate.job)
        known = self._families.get(family)
        if known is None or candidate.iteration_ns < known.iteration_ns:
            self._families[family] = candidate
        if candidate.iteration_ns < (1 - LEAST_GAIN) * self._best.iteration_ns:
            self._best = candidate
            self._progress(candidate, min(1.0, self._spent * self._until))

    def _climb(self, candidate: Candidate) -> None:
        """Make moves that help until none does, at one stage after the other."""
        for stage in self._stages:
            moves = self._offered(candidate.job, stage, self._evaluate)
            while better := self._better(candidate, moves):
                candidate = better
                moves = self._offered(candidate.job, stage, self._evaluate)

    def _better(self, candidate: Candidate, moves: Iterable[tuple[Pass, Move]]) -> Candidate | None:
        """After the first of ``moves`` that helps; None if none does, or no time is left."""
        for by, move in moves:
            if self._spent >= 1 or self._evaluate.replays >= self._most_replays:
                return None
            with blaming(by):
                made = self._made(candidate, by.name, move)
            if made.iteration_ns < (1 - LEAST_GAIN) * candidate.iteration_ns:
                return made
        return None

    def _anneal(self, at: Candidate) -> None:
        """Moves by lot, from ``at`` on; the longer none has helped, the less they may cost.

        Time ends this, but decides nothing in it: a busy machine draws the same moves.
        """
        best_ns = at.iteration_ns
        fruitless = 0
        offered: list[tuple[Pass, Move]] | None = None  # from where it is
        while self._spent < 1:
            if offered is None:
                offered = list(self._offered(at.job, self._stages[-1], self._evaluate))
            most = max(_LEAST_FRUITLESS, _FRUITLESS * len(offered))
            if not offered or fruitless >= most:
                return
            by, move = self._lot.choice(offered)
            with blaming(by):
                made = self._made(at, by.name, move)
            costs = made.iteration_ns / at.iteration_ns - 1
            heat = _HEAT * (1 - fruitless / most)
            fruitless += 1
            if made.iteration_ns < (1 - LEAST_GAIN) * best_ns:
                best_ns, fruitless = made.iteration_ns, 0
            if costs <= 0 or self._lot.random() < math.exp(-costs / heat):
                at, offered = made, None


def _rescaled(decisions: Sequence[Decision], was_ns: int, is_ns: int) -> tuple[Decision, ...]:
    """The decisions with gains that add up to ``is_ns``; they added up to ``was_ns``."""
    if not decisions:
        return ()
    scale = is_ns / was_ns if was_ns else 0.0
    scaled = [replace(each, gain_ns=round(each.gain_ns * scale)) for each in decisions]
    rest_ns = is_ns - sum(each.gain_ns for each in scaled)
    scaled[-1] = replace(scaled[-1], gain_ns=scaled[-1].gain_ns + rest_ns)
    return tuple(scaled)
