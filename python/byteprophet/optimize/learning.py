"""What passes must know of a job before a search: which can take part, and what regions cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from byteprophet.errors import UserError
from byteprophet.job import Job
from byteprophet.job.region_costs import RegionCosts
from byteprophet.job.strategy import BF16, COMPILED
from byteprophet.measure.run import Run
from byteprophet.optimize.gradient_changes import ACCUMULATION, ChangesGradients
from byteprophet.optimize.memory_limit import MemoryLimit
from byteprophet.optimize.moves import NeedsRegionCosts, OnlyWithLimit, Pass
from byteprophet.optimize.region_costs import measure_region_costs, modes_of
from byteprophet.runtime_settings import FUSION_BYTES

_OF_A_BENCH = "worker.toml"  # the configuration of its workers, in their run directory


@dataclass(frozen=True)
class Learned:
    """``passes``: those that take part. ``costs``: of regions, if these or the limit need them."""

    passes: list[Pass]
    costs: RegionCosts | None
    limit: MemoryLimit | None


def learn(
    run: Run,
    job: Job,
    jobs: Sequence[Job],
    passes: Sequence[Pass],
    *,
    asked: bool,
    budget_bytes: int | None,
    directory: Path,
    say: Callable[[str], None],
) -> Learned:
    """Measure what ``passes`` must know of ``job``, which ``run`` recorded, and tell them.

    ``jobs``: this job and what it is under the other transport, as far as it is known when the
    gradient of each parameter was ready there.
    ``asked``: the user named the passes, so that none may be left out. ``budget_bytes``: of memory
    on a rank; None: no limit. ``directory``: where measurements are kept. Raises ``UserError``,
    also if no mix of recomputed modules fits.
    """
    passes = list(passes)
    for each in passes:
        why = _why_not(each, run, job, jobs, budget_bytes)
        if why is None:
            continue
        if asked:
            raise UserError(f"--pass {each.name}: {why}")
        say(f"without {each.name}: {why}")
    passes = [each for each in passes if _why_not(each, run, job, jobs, budget_bytes) is None]
    learning = [each for each in passes if isinstance(each, NeedsRegionCosts)]
    if budget_bytes is None and not learning:
        return Learned(passes, None, None)
    words = {word for each in learning for word in each.words}
    if budget_bytes is not None:
        if run.fused.parameters:
            raise UserError(f"--memory-budget: {_fused(run)}")
        words |= MemoryLimit.words
    costs, memory = measure_region_costs(
        run.config, modes_of(words), directory, say, memory=budget_bytes is not None
    )
    limit = None
    if budget_bytes is not None:
        assert memory is not None
        limit = MemoryLimit(memory, budget_bytes)
        for known in jobs:
            limit.learn(known, costs)
        if not limit.fits(job) and limit.repaired(job) is None:
            raise UserError(limit.why_not(job))
    for each in learning:
        for known in jobs:
            each.learn(known, costs)
    return Learned(passes, costs, limit)


def _why_not(
    each: Pass, run: Run, job: Job, jobs: Sequence[Job], budget_bytes: int | None
) -> str | None:
    """Why a pass cannot take part; None if it can."""
    if isinstance(each, OnlyWithLimit) and budget_bytes is None:
        return "it only pays with --memory-budget"
    if isinstance(each, ChangesGradients):
        if budget_bytes is not None:
            return "what memory its gradients take is not known, and --memory-budget limits it"
        if each.name == ACCUMULATION and (run.directory / _OF_A_BENCH).exists():
            return "the model of a bench counts its own steps: record a training script"
        reasons = [each.why_not(known) for known in (job, *jobs)]
        return None if None in reasons else reasons[0]
    if isinstance(each, NeedsRegionCosts):
        if not jobs:
            return _fused(run)
        if budget_bytes is not None and each.words & {COMPILED, BF16}:
            return "what memory its regions take is not known, and --memory-budget limits it"
    return None


def _fused(run: Run) -> str:
    return (
        f"{run.directory}: gradients shared buffers, so it is not known when each one was ready; "
        f"record the job with {FUSION_BYTES}=0"
    )
