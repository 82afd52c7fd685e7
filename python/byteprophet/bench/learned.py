"""What schedulers with plans learn in a job's first iterations, learned in advance.

The jobs of a grid have a few iterations, but a plan takes effect only after ten or so. So one
longer job per cell runs first, with a controller. The others then start with what it learned, like
a training job that is started a second time: with its profile (``byteprophet run --profile``), and
with the bandwidth for which its plan was made. If the plan has gradients go in order of arrival,
they do from the start.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from byteprophet import schedulers
from byteprophet.bench.case import Case, Plan
from byteprophet.bench.execute import run_case
from byteprophet.bench.grid_jobs import PreparedCell, Variant, code_version, fingerprint
from byteprophet.bench.result import bound_ns
from byteprophet.control.log import PLAN_NAME, read_plan
from byteprophet.errors import JobFailed
from byteprophet.profile.model import profile_path
from byteprophet.session.profiling import PROFILE
from byteprophet.whole_files import make_directory, write_whole

_AT_LEAST_S = 22.0  # a plan needs seconds as well as iterations
# At least, at most. The most, so that order of arrival can be compared with the plan's order.
_ITERATIONS = (24, 150)
_OF_PLAN = (schedulers.PLANNED_FOR, "in_order")


@dataclass(frozen=True)
class Learned:
    """What was learned in one cell: files in ``directory``."""

    directory: Path

    def given_to(self, case: Case) -> Case:
        """``case``, started with what was learned."""
        profile = {PROFILE: str(profile_path(self.directory, 0).absolute())}
        return replace(
            case,
            settings={**self._order(case.scheduler), **case.settings},
            environment={**case.environment, **profile},
        )

    def _order(self, scheduler: str) -> dict[str, int]:
        path = self.directory / PLAN_NAME
        known, _ = schedulers.resolve(scheduler, {})
        if known.keys().isdisjoint(_OF_PLAN) or not path.exists():
            return {}
        planned = read_plan(path).settings
        return {name: planned[name] for name in _OF_PLAN if name in planned}


def learn(prepared: PreparedCell, directory: Path, namespaces: bool) -> Learned:
    """Learn from a separate job, unless it has already run; JobFailed if it learned nothing.

    ``directory``: where the results of all cells are kept. If iterations are too short for a plan,
    the result is the profile alone.
    """
    variant = Variant(schedulers.DEFAULT)
    case = prepared.case(variant)
    iterations = round(_AT_LEAST_S * 1e9 / bound_ns(prepared.workload, case))
    iterations = min(max(iterations, _ITERATIONS[0]), _ITERATIONS[1])
    plan = Plan((case,), iterations, 1, controller=True, idle_s=0)
    learned = Learned(directory / f"{fingerprint(prepared, variant, plan)}-{code_version()}")
    if not profile_path(learned.directory, 0).exists():
        run = run_case(case, plan, prepared.workload, directory / "runs", namespaces).directory
        profile = profile_path(run, 0)
        if not profile.exists():
            raise JobFailed(f"{run}: no profile within {plan.updates} iterations")
        make_directory(learned.directory)
        for path in (run / PLAN_NAME, profile):  # the profile comes last and marks completion
            if path.exists():
                write_whole(learned.directory / path.name, path.read_text(encoding="utf-8"))
    return learned
