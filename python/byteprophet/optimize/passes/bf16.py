"""Whether the model computes in bfloat16 where torch's autocast says so.

Parameters, gradients and updates stay in single precision, so only computation changes. Whether it
becomes faster depends on the processor and on the layers; that is measured, module by module.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from byteprophet.job import Job
from byteprophet.job.strategy import BF16
from byteprophet.optimize.computing import Computing
from byteprophet.optimize.moves import Effect, Hints, Move


class Bf16(Computing):
    """Turns autocast on or off."""

    name = BF16
    effect = Effect.LOSSY
    why = "Computing in bfloat16 takes less time, so that gradients are ready earlier."
    words = frozenset({BF16})

    def starts(self, job: Job) -> Iterator[Move]:
        """Autocast with the regions that the job has."""
        return self.moves(job, Hints())

    def moves(self, job: Job, hints: Hints) -> Iterator[Move]:
        """The other one of the two."""
        on = not job.strategy.autocast
        changed = self.changed(job, replace(job.strategy, autocast=on))
        if changed is not None:
            yield Move("autocast to bfloat16" if on else "no autocast", changed)
