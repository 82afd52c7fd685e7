"""What passes must know of a job before a search: which can take part, and what regions cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from byteprophet.errors import UserError
from byteprophet.job import Job
from byteprophet.job.region_costs import RegionCosts
from byteprophet.job.strategy import BF16, COMPILED
from byteprophet.measure.run import Run
from byteprophet.optimize.memory_limit import MemoryLimit
from byteprophet.optimize.moves import NeedsRegionCosts, OnlyWithLimit, Pass
from byteprophet.optimize.recorded import why_unchangeable
from byteprophet.optimize.region_costs import (
    known_region_costs,
    measure_region_costs,
    modes_of,
)
from byteprophet.runtime_settings import FUSION_BYTES

MEASURES = "--would-add"
"""The option that measures what passes need that the user has not allowed."""


@dataclass(frozen=True)
class Learned:
    """``passes``: those that take part. ``costs``: of regions, if these or the limit need them.

    ``left_out``: why passes that the user has not allowed cannot be looked at, by their names.
    """

    passes: list[Pass]
    costs: RegionCosts | None
    limit: MemoryLimit | None
    left_out: Mapping[str, str] = field(default_factory=dict)


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
    others: Sequence[Pass] = (),
    measures: bool = False,
) -> Learned:
    """Measure what ``passes`` must know of ``job``, which ``run`` recorded, and tell them.

    ``jobs``: this job and what it is under the other transport, as far as it is known when the
    gradient of each parameter was ready there.
    ``asked``: the user named the passes, so that none may be left out. ``budget_bytes``: of memory
    on a rank; None: no limit. ``directory``: where measurements are kept. ``others``: passes that
    the user has not allowed. They are told what is in ``directory`` already, and with ``measures``
    what they need is measured, too. Raises ``UserError``, also if no mix of recomputed modules
    fits.
    """
    passes = list(passes)
    for each in passes:
        why = _why_not(each, run, jobs, budget_bytes)
        if why is None:
            continue
        if asked:
            raise UserError(f"--pass {each.name}: {why}")
        say(f"without {each.name}: {why}")
    passes = [each for each in passes if _why_not(each, run, jobs, budget_bytes) is None]
    left_out: dict[str, str] = {}
    for each in others:
        why = why_unchangeable(run, job, each) or _why_not(each, run, jobs, budget_bytes)
        if why is not None:
            left_out[each.name] = why
    learning = [each for each in passes if isinstance(each, NeedsRegionCosts)]
    words = {word for each in learning for word in each.words}
    wanted = [
        (each, modes_of(words | each.words))
        for each in others
        if isinstance(each, NeedsRegionCosts) and each.name not in left_out
    ]
    modes = modes_of(words | (MemoryLimit.words if budget_bytes is not None else set()))
    if measures:
        modes = [*dict.fromkeys([*modes, *(mode for _, those in wanted for mode in those)])]
    costs, limit = None, None
    if modes:
        costs, limit = _measured(run, job, jobs, modes, budget_bytes, directory, say)
    for each in learning:
        assert costs is not None
        for known in jobs:
            each.learn(known, costs)
    for other, those in wanted:
        found = known_region_costs(directory, those, [n for one in jobs for n in one.model.names])
        if found is None:
            left_out[other.name] = f"what its regions cost was not measured: {MEASURES} measures it"
            continue
        for known in jobs:
            other.learn(known, found)
    return Learned(passes, costs if learning or limit else None, limit, left_out)


def _measured(
    run: Run,
    job: Job,
    jobs: Sequence[Job],
    modes: Sequence[str],
    budget_bytes: int | None,
    directory: Path,
    say: Callable[[str], None],
) -> tuple[RegionCosts, MemoryLimit | None]:
    """What regions cost in ``modes``, and the limit of memory if there is a budget."""
    if budget_bytes is not None and run.fused.parameters:
        raise UserError(f"--memory-budget: {_fused(run)}")
    costs, memory = measure_region_costs(
        run.config, modes, directory, say, memory=budget_bytes is not None
    )
    if budget_bytes is None:
        return costs, None
    assert memory is not None
    limit = MemoryLimit(memory, budget_bytes)
    for known in jobs:
        limit.learn(known, costs)
    if not limit.fits(job) and limit.repaired(job) is None:
        raise UserError(limit.why_not(job))
    return costs, limit


def _why_not(each: Pass, run: Run, jobs: Sequence[Job], budget_bytes: int | None) -> str | None:
    """Why a pass cannot take part; None if it can."""
    if isinstance(each, OnlyWithLimit) and budget_bytes is None:
        return "it only pays with --memory-budget"
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
