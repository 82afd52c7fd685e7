"""What a search found for a recorded job, with the interval in which its iteration time will be.

The recorded job and the best one are replayed with all recorded iterations. The predicted time is
the measured one times the ratio of the two replays, so an error that both have is not in it. Where
a candidate ran in the real job, its measured ratio is a second estimate, and both are averaged. The
interval has the bootstrapped quantiles of the ratio of single iterations' medians, and what is
unsure otherwise (``uncertainty.py``). Where the whole replay finds no gain the outcome is the
recorded job.

The bound is that of the best job, whose costs are those of its replay. If what is predicted is less
than the replay, because trials or the measured time of the recorded job say so, these costs were
too large, and the bound is smaller by the same ratio. So it is never above the prediction.

For a job under another transport, the measured time of the job that ran there takes part: its
replays are off by another ratio. The errors of both replays then widen the interval, and so does
that the two measured jobs ran once each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from byteprophet.bound import bound_ns
from byteprophet.job import Job
from byteprophet.job.region_costs import RegionCosts
from byteprophet.job.strategy_file import Used
from byteprophet.job.times import Int64Array
from byteprophet.measure.servers import Measured
from byteprophet.optimize.critical_path import shares
from byteprophet.optimize.explanation import Reason, by_pass, reasons_of
from byteprophet.optimize.memory_limit import MemoryLimit
from byteprophet.optimize.passes.compile import Compile
from byteprophet.optimize.recorded import used_by
from byteprophet.optimize.regions import compile_ns
from byteprophet.optimize.search import Candidate, Decision, Found
from byteprophet.optimize.trials import Trial
from byteprophet.optimize.uncertainty import MODEL, ROUNDS, Estimate, of_median, spread_of
from byteprophet.replay.kinds import ReplayedJob
from byteprophet.replay.predict import kind_of, warmup_of

_DRAWS = 1000
_QUANTILES = (0.05, 0.95)
_LEAST_WHOLE_GAIN = 0.001
"""What the whole replay, or a trial, must gain before the recorded job is given up."""

_LEAST_END = 0.1
"""An interval reaches down to so much of its ratio at least: times are positive however wrong a
replay is."""


@dataclass(frozen=True)
class MemoryUse:
    """The most bytes of tensors on a rank: of the recorded job, of the best one, and the limit.

    ``baseline`` is None if it is not known.
    """

    baseline: int | None
    predicted: int
    budget: int


@dataclass(frozen=True)
class Outcome:
    """A recorded job and the best one that was found; times are of iterations of all workers.

    ``recorded`` and ``job``: the two. ``before`` and ``after`` are their replays. ``moves``: the
    decisions that led to ``job``, in this order; their ``gain_ns`` add up to what the search
    expects. ``reasons``: why it made them, by theorem. ``bound_ns``: no schedule of the best
    job is faster. ``path_before``, ``path_after``: what the critical path consists of, as shares of
    its time. ``compile_ns``: what compiling the job's regions takes, before it trains. ``memory``:
    if it was limited. ``typical``: the iteration of both replays that took about the median before.
    ``replay_error``: of the recorded job. ``other_error``: of the job under another transport, if
    the best one is there.
    """

    recorded: Job
    job: Job
    before: ReplayedJob
    after: ReplayedJob
    typical: int
    baseline_ns: int
    predicted_ns: int
    interval_ns: tuple[int, int]
    bound_ns: int
    moves: tuple[Decision, ...]
    reasons: tuple[Reason, ...]
    replay_error: float
    replays: int
    path_before: Mapping[str, float]
    path_after: Mapping[str, float]
    compile_ns: int = 0
    memory: MemoryUse | None = None
    other_error: float = 0.0

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """The moves of each pass as one decision, the largest gain first."""
        return by_pass(self.moves)

    @property
    def pays_after(self) -> int | None:
        """The iterations after which compiling has paid by what it gains itself.

        That is the part of the predicted gain that the search expected of it. None: it gains
        nothing, or it is not known which passes found the gain.
        """
        expected_ns = sum(each.gain_ns for each in self.moves)
        compiled_ns = sum(each.gain_ns for each in self.moves if each.by == Compile.name)
        predicted_ns = self.baseline_ns - self.predicted_ns
        if min(expected_ns, compiled_ns, predicted_ns) <= 0:
            return None
        return math.ceil(self.compile_ns * expected_ns / (compiled_ns * predicted_ns))

    def interval_from_ns(self, baseline_ns: int) -> tuple[int, int]:
        """The interval, if the recorded job takes ``baseline_ns`` when it runs again."""
        low_ns, high_ns = (
            round(end_ns * baseline_ns / self.baseline_ns) for end_ns in self.interval_ns
        )
        return low_ns, high_ns

    @property
    def gains(self) -> bool:
        """Whether another job than the recorded one is to be used."""
        return bool(self.moves)

    @property
    def used(self) -> Used:
        """The strategy, as a file has it."""
        return used_by(self.job, self.recorded)

    def holds(self, was_ns: int, is_ns: int) -> bool:
        """Whether ``is_ns`` is in the interval, where the recorded job now takes ``was_ns``."""
        low_ns, high_ns = self.interval_from_ns(was_ns)
        return low_ns <= is_ns <= high_ns

    def as_json(self, strategy: str | None, allowed: Sequence[str]) -> dict[str, Any]:
        """As ``byteprophet optimize --json`` saves it (docs/formats.md).

        ``strategy``: the file, if it was saved. ``allowed``: passes that may change results.
        """
        return {
            "schema": 1,
            "baseline_ns": self.baseline_ns,
            "predicted_ns": self.predicted_ns,
            "interval_ns": list(self.interval_ns),
            "bound_ns": self.bound_ns,
            "replay_error": self.replay_error,
            "replays": self.replays,
            "allowed": list(allowed),
            "strategy": strategy,
            "compile_ns": self.compile_ns,
            "memory_bytes": None if self.memory is None else asdict(self.memory),
            "critical_path": {"before": self.path_before, "after": self.path_after},
            "decisions": [
                {
                    "pass": each.by,
                    "what": each.what,
                    "gain_ns": each.gain_ns,
                    "theorem": each.theorem or None,
                }
                for each in self.decisions
            ],
            "reasons": [each.as_json() for each in self.reasons],
        }


def outcome_of(
    measured: Measured,
    found: Found,
    trial: Trial | None = None,
    costs: RegionCosts | None = None,
    limit: MemoryLimit | None = None,
    others: Sequence[Measured] = (),
    rounds: int = ROUNDS,
) -> Outcome:
    """The outcome of a search that started from ``measured``.

    ``costs``: those of regions, if a pass needed them. ``limit``: of memory, if there was one.
    ``trial``: the best of the candidates that ran in the real job, if any did. ``others``: the
    recorded command under other transports, if it ran there. ``rounds``: of ``--apply``, whose
    median the interval is for.
    """
    was_ns = measured_ns(measured)
    before, before_ns, replay_error = replayed(measured)
    chosen = found.best if trial is None else trial.candidate
    job = chosen.job
    after = kind_of(job).replay(job)
    after_ns = after.iterations_ns[warmup_of(measured) :]
    played_ns = float(np.median(after_ns))
    other_error = 0.0
    other = next((each for each in others if each.job.transport == job.transport), None)
    if other is not None:
        after_ns = after.iterations_ns[warmup_of(other) :]
        played_ns = float(np.median(after_ns))
        _, _, other_error = replayed(other)
        after_ns = np.rint(after_ns * (1 + replay_error) / (1 + other_error)).astype(np.int64)
    spread = spread_of(measured.iteration_ns[warmup_of(measured) :], trial.ratios if trial else ())
    unsure = abs(replay_error) + abs(other_error) + MODEL
    if other is not None:
        unsure = math.hypot(unsure, of_median(spread, 1))
    estimate = Estimate(float(np.median(after_ns) / np.median(before_ns)), unsure)
    if trial is not None:
        tried = Estimate(trial.ratio, of_median(spread, len(trial.ratios)))
        estimate = estimate.averaged(tried)
        correction = estimate.ratio * np.median(before_ns) / np.median(after_ns)
        after_ns = np.rint(after_ns * correction).astype(np.int64)
    moves, reasons = chosen.decisions, reasons_of(chosen.decisions, found.tested)
    slower = np.median(after_ns) > (1 - _LEAST_WHOLE_GAIN) * np.median(before_ns)
    if found.start_fits and (slower or (trial is not None and trial.ratio > 1 - _LEAST_WHOLE_GAIN)):
        job, after, after_ns = measured.job, before, before_ns
        played_ns = float(np.median(before_ns))
        moves, reasons = (), ()
        other_error = 0.0
    ratio = float(np.median(after_ns) / np.median(before_ns))
    low, high = _ratio_interval(before_ns, after_ns)
    if not moves:
        estimate = Estimate(1.0, 0.0)
    unsure = estimate.half_width(spread, rounds)
    return Outcome(
        recorded=measured.job,
        job=job,
        before=before,
        after=after,
        typical=_typical(before, after, len(before_ns)),
        baseline_ns=was_ns,
        predicted_ns=round(was_ns * ratio),
        interval_ns=(
            round(was_ns * low * max(1 - unsure, _LEAST_END)),
            round(was_ns * high * (1 + unsure)),
        ),
        bound_ns=round(min(was_ns * ratio, bound_ns(job) * min(1.0, was_ns * ratio / played_ns))),
        moves=moves,
        reasons=reasons,
        replay_error=replay_error,
        replays=found.replays,
        path_before=shares(before.replayed),
        path_after=shares(after.replayed),
        compile_ns=0 if costs is None else compile_ns(job.strategy, costs),
        memory=None if limit is None else _memory(limit, measured.job, job),
        other_error=other_error,
    )


def measured_ns(measured: Measured) -> int:
    """The measured iteration time, without warm-up."""
    return int(np.median(measured.iteration_ns[warmup_of(measured) :]))


def starts_of(
    others: Sequence[Measured], start: Candidate, limit: MemoryLimit | None
) -> list[Candidate]:
    """The recorded command under other transports, as candidates that take what they took.

    ``start``: the recorded job. Those that do not fit ``limit`` are left out.
    """
    candidates = []
    for each in others:
        if limit is None or limit.fits(each.job):
            took_ns = measured_ns(each)
            gain_ns = start.iteration_ns - took_ns
            decision = Decision("runtime", f"{each.job.title}, as it ran there", gain_ns)
            candidates.append(Candidate(each.job, took_ns, (decision,)))
    return candidates


def corrections_of(*runs: Measured) -> dict[str, float]:
    """Measured over replayed times, by transport (``evaluate.Evaluator``)."""
    return {each.job.transport: 1 / (1 + replayed(each)[2]) for each in runs}


def replayed(measured: Measured) -> tuple[ReplayedJob, Int64Array, float]:
    """The replay of the unchanged job, its iterations without warm-up, and its error."""
    played = kind_of(measured.job).replay(measured.job)
    times_ns = played.iterations_ns[warmup_of(measured) :]
    return played, times_ns, float(np.median(times_ns)) / measured_ns(measured) - 1


def _typical(before: ReplayedJob, after: ReplayedJob, count: int) -> int:
    """The one of the last ``count`` iterations before that took about the median."""
    times_ns = before.iterations_ns[-count:]
    typical = int(np.argmin(np.abs(times_ns - np.median(times_ns))))
    place = len(before.iterations_ns) - count + typical
    return min(place, len(after.iterations_ns) - 1)


def _memory(limit: MemoryLimit, recorded: Job, job: Job) -> MemoryUse:
    baseline = limit.peak_bytes(recorded) if limit.knows(recorded) else None
    return MemoryUse(baseline, limit.peak_bytes(job), limit.budget_bytes)


def _ratio_interval(before_ns: Int64Array, after_ns: Int64Array) -> tuple[float, float]:
    """The interval of the ratio of medians of the same iterations, drawn with replacement.

    If there are other numbers of iterations, they are drawn separately.
    """
    lot = np.random.default_rng(0)
    drawn = also_drawn = lot.integers(0, len(before_ns), (_DRAWS, len(before_ns)))
    if len(after_ns) != len(before_ns):
        also_drawn = lot.integers(0, len(after_ns), (_DRAWS, len(after_ns)))
    ratios = np.median(after_ns[also_drawn], axis=1) / np.median(before_ns[drawn], axis=1)
    low, high = np.quantile(ratios, _QUANTILES)
    return float(low), float(high)
