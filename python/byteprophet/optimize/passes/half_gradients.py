"""Whether gradients travel, and are summed, in bfloat16 or float16: half as many bytes.

Parameters, their updates, and parameters that sharded buckets all-gather stay in single precision.
bfloat16 has the range of float32 and 8 bits of precision. float16 has 11 bits, but a gradient above
65,504 becomes infinite and one below 6e-8 becomes 0. BytePS sends bfloat16 as float32, so with
servers only float16 is offered.
"""

from __future__ import annotations

from collections.abc import Iterator

from byteprophet.job import Job
from byteprophet.job.strategy import BF16, FP16
from byteprophet.optimize.gradient_changes import (
    was_cast_by_pass,
    why_not_cast,
    with_reduce_dtype,
)
from byteprophet.optimize.moves import Effect, Hints, Move


class _HalfGradients:
    """Turns the smaller type on, and off again."""

    effect = Effect.LOSSY
    reduce_dtype: str

    def why_not(self, job: Job) -> str | None:
        """Why gradients of ``job`` cannot travel in the smaller type; None if they can."""
        return why_not_cast(job, self.reduce_dtype)

    def starts(self, job: Job) -> Iterator[Move]:
        """Gradients in the smaller type."""
        if self.why_not(job) is None:
            yield Move(
                f"gradients as {self.reduce_dtype}", with_reduce_dtype(job, self.reduce_dtype)
            )

    def moves(self, job: Job, hints: Hints) -> Iterator[Move]:
        """The other one of the two. What a job was recorded with is not taken back."""
        yield from self.starts(job)
        if was_cast_by_pass(job, self.reduce_dtype):
            yield Move("gradients in their own type", with_reduce_dtype(job, ""))


class Bf16Gradients(_HalfGradients):
    """Lets gradients travel as bfloat16, without servers."""

    name = "bf16-gradients"
    why = "Gradients in bfloat16 are half as many bytes, and casting them takes less than it saves."
    reduce_dtype = BF16


class Fp16Gradients(_HalfGradients):
    """Lets gradients travel as float16."""

    name = "fp16-gradients"
    why = "Gradients in float16 are half as many bytes, and casting them takes less than it saves."
    reduce_dtype = FP16
