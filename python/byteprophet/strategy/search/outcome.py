"""What a search found: its strategy, how near it is to the bound of all, and what limits it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from byteprophet.strategy.explanation import Explanation
from byteprophet.strategy.search.candidates import Candidate
from byteprophet.strategy.search.trials import Trial

NEAR_BOUND, NOTHING_BETTER, BUDGET, NO_TRIALS = (
    "the best is within the engine's error of the bound",
    "no candidate is expected to be faster by more than the engine's error",
    "all trials were used",
    "no trials were asked for",
)
"""Why a search ended."""


@dataclass(frozen=True)
class Outcome:
    """The result of a search.

    Attributes:
        best: the strategy that was chosen.
        iteration_ns: measured, if it ran, else predicted.
        bound_ns: no strategy that sums every byte in one place is faster. It is at most the time
            of the best one, which may show that costs of the engine were too large.
        engine_error: how far predictions are off, as a part of the time (``ranker.py``).
        candidates: all, the fastest by the engine first.
        trials: those that ran, the fastest first.
        baseline_ns: the recorded job, or the workload's default: measured beside trials, or else
            predicted.
        ended: why the search ended.
        replays: how many routings the engine replayed.
        search_s: how long the search on the engine took.
        explanation: of the best one's links.
    """

    best: Candidate
    iteration_ns: int
    bound_ns: int
    engine_error: float
    candidates: Sequence[Candidate]
    trials: Sequence[Trial]
    baseline_ns: int
    ended: str
    replays: int
    search_s: float
    explanation: Explanation

    @property
    def is_measured(self) -> bool:
        """Whether the best one ran, in a trial or as the baseline."""
        return bool(self.trials)

    @property
    def gap(self) -> float:
        """How far the best is above the bound, as a part of the bound."""
        return self.iteration_ns / self.bound_ns - 1

    def as_json(self) -> dict[str, Any]:
        """As ``byteprophet strategy search --json`` saves it (docs/formats.md)."""
        return {
            "schema": 1,
            "best": self.best.name,
            "digest": self.best.digest,
            "iteration_ns": self.iteration_ns,
            "measured": self.is_measured,
            "bound_ns": self.bound_ns,
            "gap": self.gap,
            "engine_error": self.engine_error,
            "baseline_ns": self.baseline_ns,
            "ended": self.ended,
            "replays": self.replays,
            "search_s": self.search_s,
            "candidates": [
                {
                    "name": each.name,
                    "digest": each.digest,
                    "engine_ns": each.engine_ns,
                    "by": each.by,
                    "by_hand": each.is_by_hand,
                }
                for each in self.candidates
            ],
            "trials": [
                {
                    "name": trial.candidate.name,
                    "digest": trial.candidate.digest,
                    "engine_ns": trial.candidate.engine_ns,
                    "ratios": list(trial.ratios),
                    "times_ns": list(trial.times_ns),
                }
                for trial in self.trials
            ],
            "explanation": self.explanation.as_json(),
        }
