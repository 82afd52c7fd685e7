"""What passes must know of a job before a search: which can take part, and what regions cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from byteprophet.errors import UserError
from byteprophet.job import Job
from byteprophet.job.region_costs import RegionCosts
from byteprophet.job.strategy import BF16, COMPILED, FSDP2
from byteprophet.measure.run import Run
from byteprophet.optimize.blame import blaming
from byteprophet.optimize.by_parameter import ByParameter
from byteprophet.optimize.gradient_changes import ChangesGradients
from byteprophet.optimize.memory_limit import MemoryLimit, why_unlimited
from byteprophet.optimize.moves import ChangesSteps, NeedsRegionCosts, OnlyWithLimit, Pass
from byteprophet.optimize.other_transport import Other
from byteprophet.optimize.recorded import OF_A_BENCH, why_not_distributed
from byteprophet.optimize.region_costs import (
    known_region_costs,
    measure_region_costs,
    modes_of,
)
from byteprophet.runtime_settings import DEFAULT_REGION_BUDGET_S

MEASURES = "--would-add"
"""The option that measures what passes need that the user has not allowed."""


@dataclass(frozen=True)
class Learned:
    """``passes``: those that take part. ``costs``: of regions, if these or the limit need them.

    ``left_out``: why passes that the user has not allowed cannot be looked at, by their names.
    ``sharded``: the recorded command under FSDP2, if it ran there.
    """

    passes: list[Pass]
    costs: RegionCosts | None
    limit: MemoryLimit | None
    left_out: Mapping[str, str] = field(default_factory=dict)
    sharded: Other | None = None


Sharded = Callable[[Sequence[Pass]], tuple[Other, int] | None]
"""Runs the recorded command under FSDP2, if one of the passes may move the job there."""


def learn(
    recorded: Sequence[tuple[Run, Job]],
    passes: Sequence[Pass],
    *,
    asked: bool,
    budget_bytes: int | None,
    directory: Path,
    say: Callable[[str], None],
    measuring_s: float = DEFAULT_REGION_BUDGET_S,
    others: Sequence[Pass] = (),
    measures: bool = False,
    sharded: Sharded = lambda passes: None,
) -> Learned:
    """Measure what ``passes`` must know of a recorded job, and tell them.

    Args:
        recorded: the run and its job; then the same under other transports, if it ran there.
        passes: those that may take part.
        asked: the user named the passes, so that none may be left out.
        budget_bytes: of memory on a rank; None: no limit.
        directory: where measurements are kept.
        say: is told of progress.
        measuring_s: how long regions may be measured; what is left stays as it is.
        others: passes that the user has not allowed. They are told what was measured before.
        measures: measure what ``others`` need, too.
        sharded: called if the recorded job does not fit the budget.

    Raises:
        UserError: a pass that was asked for cannot take part, a measurement failed, or no mix of
            recomputed modules fits the budget.
    """
    jobs = _Jobs(recorded, budget_bytes)
    left_out = {each.name: why for each in passes if (why := jobs.why_not(each)) is not None}
    for name, why in left_out.items():
        if asked:
            raise UserError(f"--pass {name}: {why}")
        say(f"without {name}: {why}")
    passes = [each for each in passes if each.name not in left_out]
    left_out = {each.name: why for each in others if (why := jobs.why_not(each)) is not None}
    learning = [each for each in passes if isinstance(each, NeedsRegionCosts)]
    words = {word for each in learning for word in each.words}
    wanted = [
        (each, modes_of(words | each.words))
        for each in others
        if isinstance(each, NeedsRegionCosts) and each.name not in left_out
    ]
    modes = modes_of(words if budget_bytes is None else words | MemoryLimit.words)
    if measures:
        modes = [*dict.fromkeys([*modes, *(mode for _, needed in wanted for mode in needed)])]
    costs = limit = None
    if modes:
        costs, limit = jobs.measured(modes, directory, say, measuring_s, lambda: sharded(passes))
        for each in learning:
            jobs.tell(each, costs)
    for other, needed in wanted:
        why = _told(jobs, other, directory, needed)
        if why is not None:
            left_out[other.name] = why
    return Learned(passes, costs if learning or limit else None, limit, left_out, jobs.sharded)


def _told(
    jobs: _Jobs, other: NeedsRegionCosts, directory: Path, needed: Sequence[str]
) -> str | None:
    """Tell a pass that is not allowed what was measured; why not, if nothing was that it needs."""
    try:
        known = known_region_costs(directory, needed, jobs.names)
    except UserError as error:
        return str(error)
    if known is None:
        return f"what its regions cost was not measured: {MEASURES} measures it"
    jobs.tell(other, known)
    return None


class _Jobs:
    """What is known of the recorded jobs, parameter by parameter.

    ``budget_bytes``: of memory; None: no limit.
    """

    def __init__(self, recorded: Sequence[tuple[Run, Job]], budget_bytes: int | None) -> None:
        self._run, self._job = recorded[0]
        self._recorded = [job for _, job in recorded]
        self._budget_bytes = budget_bytes
        self.sharded: Other | None = None  # the recorded command under FSDP2
        self._known: list[ByParameter] = []
        self._unknown = ""  # why it is not known when each gradient was ready
        for run, job in recorded:
            self._measure(run, job)

    def _measure(self, run: Run, job: Job) -> None:
        try:
            self._known.append(ByParameter.measured(run, job))
        except UserError as error:
            self._unknown = self._unknown or str(error)

    @property
    def names(self) -> list[str]:
        """The names of all parameters."""
        return [name for known in self._known for name in known.model.names]

    def why_not(self, each: Pass) -> str | None:
        """Why a pass cannot take part; None if it can."""
        with blaming(each):
            return self._why_not(each)

    def _why_not(self, each: Pass) -> str | None:
        if isinstance(each, OnlyWithLimit) and self._budget_bytes is None:
            return "it only pays with --memory-budget"
        if isinstance(each, ChangesGradients):
            if self._budget_bytes is not None:
                return "what memory its gradients take is not known, and --memory-budget limits it"
            reasons = [each.why_not(known) for known in self._recorded]
            if None not in reasons:
                return reasons[0]
        if isinstance(each, ChangesSteps) and (self._run.directory / OF_A_BENCH).exists():
            return "the model of a bench counts its own steps: record a training script"
        if isinstance(each, NeedsRegionCosts):
            if self._job.strategy.runtime == FSDP2:
                return f"under the runtime {FSDP2}, the script's modules run as they are"
            if not self._known:
                return self._unknown
            if self._budget_bytes is not None and each.words & {COMPILED, BF16}:
                return "what memory its regions take is not known, and --memory-budget limits it"
        return why_not_distributed(self._run, self._job) if isinstance(each, ChangesSteps) else None

    def tell(self, each: NeedsRegionCosts, costs: RegionCosts) -> None:
        """Tell a pass, or a limit, what regions cost."""
        for known in self._known:
            with blaming(each):
                each.learn(known.job, costs, known)

    def measured(
        self,
        modes: Sequence[str],
        directory: Path,
        say: Callable[[str], None],
        measuring_s: float,
        shard: Callable[[], tuple[Other, int] | None],
    ) -> tuple[RegionCosts, MemoryLimit | None]:
        """What regions cost in ``modes``, and the limit of memory if there is one.

        ``shard`` is called if the recorded job does not fit it.
        """
        limited = self._budget_bytes is not None
        if limited and not self._known:
            raise UserError(f"--memory-budget: {self._unknown}")
        why_not = why_unlimited(self._job) if limited else None
        if why_not is not None:
            raise UserError(f"--memory-budget: {why_not}")
        costs, memory = measure_region_costs(
            self._run.config, modes, directory, say, budget_s=measuring_s, memory=limited
        )
        if self._budget_bytes is None:
            return costs, None
        assert memory is not None
        limit = MemoryLimit(memory, self._budget_bytes)
        self.tell(limit, costs)
        moved = None if limit.fits(self._job) else shard()
        if moved is not None:
            self.sharded, peak_bytes = moved
            limit.learn_sharded(self.sharded.measured.job, peak_bytes)
        if not limit.fits(self._job) and limit.repaired(self._job) is None:
            raise UserError(limit.why_not(self._job))
        return costs, limit
