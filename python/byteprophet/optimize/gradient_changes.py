"""Changes of gradients: the type in which they travel, and how many steps keep them.

The strategy says it, and ``job/as_executed.py`` turns it into sizes and times. A change also gives
the job what casting and keeping cost on this host, because recorded times do not have that.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from byteprophet import schedulers
from byteprophet.job import Job
from byteprophet.job.strategy_file import able_dtypes, may_accumulate
from byteprophet.optimize.gradient_costs import cast_ns_per_byte, keep_ns_per_byte

ACCUMULATION = "accumulation"
"""The name of the pass that accumulates gradients."""


class ChangesGradients:
    """A base of passes that change gradients. What memory their jobs take is not known."""

    name: str


def cast_pass(reduce_dtype: str) -> str:
    """The name of the pass that lets gradients travel in ``reduce_dtype``."""
    return f"{reduce_dtype}-gradients"


def may_cast(job: Job, reduce_dtype: str) -> bool:
    """Whether the job's gradients, which travel as they are, could travel in ``reduce_dtype``.

    ``stock`` uses BytePS' own optimizer, which knows no strategies.
    """
    strategy = job.strategy
    return (
        reduce_dtype in able_dtypes(strategy.runtime)
        and not (strategy.reduce_dtype or strategy.reduce_fixed or strategy.fixed)
        and not _is_stock(job)
    )


def was_cast_by_pass(job: Job, reduce_dtype: str) -> bool:
    """Whether a pass has decided that gradients travel in ``reduce_dtype``: no recorded job."""
    casts = job.cluster.costs.cast_ns_per_byte > 0
    return casts and job.strategy.reduce_dtype == reduce_dtype


def may_accumulate_steps(job: Job) -> bool:
    """Whether the job, which was recorded without accumulation, could have it."""
    return may_accumulate(job.strategy.runtime) and job.times.passes == 1 and not _is_stock(job)


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
    job: Job, reduce_dtype: str, accumulation: int, leave: Collection[str]
) -> Job | None:
    """``job`` with such gradients; None if it cannot have them, or no pass in ``leave`` may do it.

    ``leave``: names of passes.
    """
    if reduce_dtype != job.strategy.reduce_dtype:
        if cast_pass(reduce_dtype) not in leave or not may_cast(job, reduce_dtype):
            return None
        job = with_reduce_dtype(job, reduce_dtype)
    if accumulation != job.strategy.accumulation:
        if ACCUMULATION not in leave or not may_accumulate_steps(job):
            return None
        job = with_accumulation(job, accumulation)
    return job


def _is_stock(job: Job) -> bool:
    return job.policy is not None and job.policy.name == schedulers.STOCK
