"""What the passes that the user has not allowed would add to the best job.

Each of them is tried alone: the search goes on from the best job with this pass, too. The result is
shown and never used. Start and end are replayed whole, with all workers, and what the pass adds is
the ratio of the two times. It is counted only if the pass made a move that led there: otherwise,
the allowed passes found more because they had more time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from byteprophet.job import Job
from byteprophet.optimize.evaluate import Evaluator
from byteprophet.optimize.explanation import by_pass
from byteprophet.optimize.moves import Effect, Pass, effect_in
from byteprophet.optimize.search import LEAST_GAIN, Decision, Limit, search

SHARE = 0.2
"""The share of a search's budget that is kept for this, if there is such a pass."""


@dataclass(frozen=True)
class Addition:
    """What a pass that is not allowed would add.

    ``ratio``: how many times as fast the best job would be; 1: the pass adds nothing; None: it was
    not looked at, and ``why_not`` says why. ``decisions``: what each pass did to get there.
    """

    name: str
    effect: Effect
    ratio: float | None
    decisions: tuple[Decision, ...] = ()
    why_not: str = ""

    @property
    def allowed_by(self) -> str:
        """The option that allows it."""
        return f"--allow {self.name}"

    @property
    def text(self) -> str:
        """What it would add, as one line."""
        start = f"{self.name} ({self.effect.value}): "
        if self.ratio is None:
            return f"{start}not looked at: {self.why_not}"
        if self.ratio == 1:
            return f"{start}would add nothing"
        return f"{start}{self.ratio:.2f} times as fast, with {self.allowed_by}"

    def as_json(self) -> dict[str, Any]:
        """As ``byteprophet optimize --json`` saves it."""
        return {
            "pass": self.name,
            "effect": self.effect.value,
            "allowed_by": self.allowed_by,
            "ratio": self.ratio,
            "why_not": self.why_not or None,
            "decisions": [
                {"pass": each.by, "what": each.what, "gain_ns": each.gain_ns}
                for each in self.decisions
            ],
        }


def would_add(
    best: Job,
    passes: Sequence[Pass],
    others: Sequence[Pass],
    left_out: Mapping[str, str],
    *,
    budget_s: float,
    seed: int = 0,
    limit: Limit | None = None,
    corrections: Mapping[str, float] | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> list[Addition]:
    """What each of ``others`` would add to ``best``, which ``passes`` found.

    ``left_out``: why some of them cannot be looked at, by name. ``budget_s``: for all of them
    together. ``corrections``: as ``Evaluator`` takes them.
    """
    tried = [each for each in others if each.name not in left_out]
    whole = Evaluator(partial=False, folds=False, corrections=corrections)
    additions = []
    for each in others:
        effect = effect_in(each, best)
        if each.name in left_out:
            why_not = left_out[each.name]
            additions.append(Addition(each.name, effect, None, why_not=why_not))
            continue
        say(f"looking at what {each.name} would add")
        found = search(
            best,
            [*passes, each],
            budget_s=budget_s / len(tried),
            seed=seed,
            limit=limit,
            evaluator=Evaluator(corrections=corrections),
        )
        decisions = by_pass(found.best.decisions)
        ratio = 1.0
        if any(decision.by == each.name for decision in decisions):
            ratio = whole(best).iteration_ns / whole(found.best.job).iteration_ns
        if ratio < 1 + LEAST_GAIN:
            ratio, decisions = 1.0, ()
        additions.append(Addition(each.name, effect, ratio, decisions))
    return additions
