"""How many of the script's steps share one exchange of gradients and one update.

The update then uses the mean of all their gradients, as if the batch were larger by that factor, so
training takes another course. The learning rate stays what the script says.
"""

from __future__ import annotations

from collections.abc import Iterator

from byteprophet.job import Job
from byteprophet.optimize.gradient_changes import why_not_accumulate, with_accumulation
from byteprophet.optimize.moves import Effect, Hints, Move

_STEPS = (1, 2, 4, 8)


class Accumulation:
    """Offers to exchange gradients in every second, fourth or eighth step only."""

    name = "accumulation"
    effect = Effect.LOSSY
    changes_steps = True
    why = "Gradients of several steps travel once, so that most steps wait for nothing."

    def why_not(self, job: Job) -> str | None:
        """Why steps of ``job`` cannot be accumulated; None if they can."""
        return why_not_accumulate(job)

    def starts(self, job: Job) -> Iterator[Move]:
        """All numbers of steps."""
        if self.why_not(job) is None:
            for steps in _STEPS:
                if steps != job.strategy.accumulation:
                    yield _move(job, steps)

    def moves(self, job: Job, hints: Hints) -> Iterator[Move]:
        """The next larger and the next smaller number."""
        now = job.strategy.accumulation
        if self.why_not(job) is None and now in _STEPS:
            place = _STEPS.index(now)
            for steps in (*_STEPS[place + 1 : place + 2], *_STEPS[max(0, place - 1) : place]):
                yield _move(job, steps)


def _move(job: Job, steps: int) -> Move:
    what = f"exchange gradients in one of {steps} steps" if steps > 1 else "exchange in every step"
    return Move(what, with_accumulation(job, steps))
