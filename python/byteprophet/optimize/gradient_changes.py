"""Changes of gradients: the type in which they travel, and how many steps keep them.

The strategy says it, and ``job/as_executed.py`` turns it into sizes and times. A change also gives
the job what casting and keeping cost on this host, because recorded times do not have that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol, runtime_checkable

from byteprophet import schedulers
from byteprophet.job import Job
from byteprophet.job.strategy import BYTEPS
from byteprophet.job.strategy_file import able_dtypes, may_accumulate
from byteprophet.optimize.gradient_costs import cast_ns_per_byte, keep_ns_per_byte
from byteprophet.optimize.moves import ChangesSteps, Pass


@runtime_checkable
class ChangesGradients(Protocol):
    """A pass that changes gradients. What memory its jobs take is not known."""

    def why_not(self, job: Job) -> str | None:
        """Why the gradients of ``job`` cannot be changed so; None if they can."""


@runtime_checkable
class CastsGradients(Protocol):
    """A pass that lets gradients travel in ``reduce_dtype``."""

    reduce_dtype: str


def why_not_cast(job: Job, reduce_dtype: str) -> str | None:
    """Why the job's gradients could not travel in ``reduce_dtype``; None if they could."""
    strategy = job.strategy
    if reduce_dtype not in able_dtypes(strategy.runtime):
        if strategy.runtime == BYTEPS:
            return f"BytePS does not send gradients as {reduce_dtype}"
        return f"under the runtime {strategy.runtime}, gradients travel as they are"
    if strategy.reduce_dtype:
        return f"its gradients travel as {strategy.reduce_dtype}"
    return strategy.reduce_fixed or strategy.fixed or _why_not_told(job)


def was_cast_by_pass(job: Job, reduce_dtype: str) -> bool:
    """Whether a pass has decided that gradients travel in ``reduce_dtype``: no recorded job."""
    casts = job.cluster.costs.cast_ns_per_byte > 0
    return casts and job.strategy.reduce_dtype == reduce_dtype


def why_not_accumulate(job: Job) -> str | None:
    """Why the job, as it was recorded, could not accumulate steps; None if it could."""
    if not may_accumulate(job.strategy.runtime):
        return f"under the runtime {job.strategy.runtime}, gradients cannot be accumulated"
    if job.times.passes > 1:
        return f"it was recorded with {job.times.passes} accumulated steps"
    return _why_not_told(job)


def with_reduce_dtype(job: Job, reduce_dtype: str) -> Job:
    """``job`` with gradients that travel in ``reduce_dtype``; "": as they are."""
    cast_ns = cast_ns_per_byte(reduce_dtype) if reduce_dtype else 0.0
    costs = replace(job.cluster.costs, cast_ns_per_byte=cast_ns)
    return replace(
        job,
        cluster=replace(job.cluster, costs=costs),
        strategy=replace(job.strategy, reduce_dtype=reduce_dtype),
    )


def with_accumulation(job: Job, steps: int) -> Job:
    """``job`` with an exchange and an update in one of ``steps`` steps."""
    keep_ns = keep_ns_per_byte() if steps > 1 else 0.0
    costs = replace(job.cluster.costs, keep_ns_per_byte=keep_ns)
    return replace(
        job,
        cluster=replace(job.cluster, costs=costs),
        strategy=replace(job.strategy, accumulation=steps),
    )


def with_changes_of(
    job: Job, reduce_dtype: str, accumulation: int, passes: Sequence[Pass]
) -> Job | None:
    """``job`` with such gradients; None if it cannot have them, or none of ``passes`` may do it."""
    if reduce_dtype != job.strategy.reduce_dtype:
        casting = [each for each in passes if isinstance(each, CastsGradients)]
        may_cast = any(each.reduce_dtype == reduce_dtype for each in casting)
        if not may_cast or why_not_cast(job, reduce_dtype):
            return None
        job = with_reduce_dtype(job, reduce_dtype)
    if accumulation != job.strategy.accumulation:
        may_keep = any(isinstance(each, ChangesSteps) for each in passes)
        if not may_keep or why_not_accumulate(job):
            return None
        job = with_accumulation(job, accumulation)
    return job


def _why_not_told(job: Job) -> str | None:
    if job.policy is not None and job.policy.name == schedulers.STOCK:
        return f"{schedulers.STOCK} uses BytePS' own optimizer, which takes no strategy"
    return None
