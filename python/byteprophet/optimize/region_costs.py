"""Has the script of a recorded run measure what the regions of its model cost.

The recorded command runs once more, as one worker with nothing to wait for. Its process measures
in one of its first forward passes, saves the costs, and ends (``torch/regions/probe.py``). If
memory is limited, it trains on and measures that, too, before it ends. The file of costs is kept,
so the next search of the same run need not measure them again, and one that was stopped goes on.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from byteprophet.errors import UserError
from byteprophet.job.region_costs import RegionCosts, read_region_costs
from byteprophet.job.region_memory import RegionMemory, read_region_memory
from byteprophet.job.strategy import BF16, COMPILED, EAGER, RECOMPUTED, Region
from byteprophet.launcher import check_job, make_run_directory, run_job
from byteprophet.launcher.recorded_spec import spec_of_run
from byteprophet.launcher.spec import WEEK_S
from byteprophet.observe import recording
from byteprophet.optimize.recorded import check_given
from byteprophet.runtime_settings import (
    REGION_BUDGET_S,
    REGION_COSTS,
    REGION_MEMORY,
    REGION_MODES,
    STRATEGY,
)
from byteprophet.whole_files import make_directory

_OTHER_S = 900.0  # for all that a run does besides measuring regions, and for the last of these
_COSTS = "region-costs.json"


def modes_of(words: Collection[str]) -> list[str]:
    """All modes whose names consist of ``words``."""
    flags = [(False, True) if word in words else (False,) for word in (COMPILED, RECOMPUTED, BF16)]
    modes = [
        Region(("",), compiled, recomputed).mode(autocast)
        for compiled, recomputed, autocast in itertools.product(*flags)
    ]
    return [mode for mode in modes if mode != EAGER]


def known_region_costs(
    directory: Path, modes: Sequence[str], names: Collection[str]
) -> RegionCosts | None:
    """The costs that an earlier search kept in ``directory``; None if they do not answer.

    They do if each of ``modes`` was measured, or refused, for some region, and all parameters
    ``names`` are in the model that was measured. Of modes with autocast, they must have all units.
    """
    path = directory / _COSTS
    if not path.exists():
        return None
    costs = read_region_costs(path)
    if any(BF16 in mode.split("-") for mode in modes) and not costs.has_all_units:
        return None
    known = {mode for each in costs.regions.values() for mode in (*each.modes, *each.refused)}
    parameters = {name for each in costs.regions.values() for name in each.parameters}
    return costs if known.issuperset(modes) and parameters.issuperset(names) else None


def measure_region_costs(
    config: Mapping[str, Any],
    modes: Sequence[str],
    directory: Path,
    progress: Callable[[str], None],
    *,
    budget_s: float,
    memory: bool = False,
) -> tuple[RegionCosts, RegionMemory | None]:
    """The costs, in ``modes``, of the regions in the model that the job of ``config`` trains.

    ``config``: a run's ``config.toml``. ``directory``: where the files and the run are kept.
    ``budget_s``: no region begins to be measured after so many seconds of measuring regions.
    ``memory``: measure also what iterations take, for every mix of recomputed units; all units are
    measured then, however long that takes. Raises UserError if the script's model cannot be
    measured, JobFailed if its run fails.
    """
    make_directory(directory)
    path = directory.resolve() / _COSTS
    memory_path = directory.resolve() / "region-memory.json"
    spec = spec_of_run(config, directory)
    given = check_given(config)
    used = spec.environment.get(STRATEGY, "")
    if used and given is not None and given.strategy.changes_gradients:
        raise UserError(f"this run trains as {used} says: use the run that it came from")
    if config.get("elsewhere"):
        progress(
            "regions are measured on this machine, and the run was recorded with --on: do this on "
            "a host of its kind"
        )
    environment = {
        **spec.environment,
        recording.VARIABLE: "0",
        STRATEGY: used if spec.all_reduce else "",  # by which a script of BytePS has no servers
        REGION_COSTS: str(path),
        REGION_MODES: ",".join(modes),
        REGION_MEMORY: str(memory_path) if memory else "",
        REGION_BUDGET_S: f"{budget_s:.3f}",
    }
    spec = replace(
        spec,
        run_directory=make_run_directory(directory / "runs", "regions"),
        workers=1,
        local_ranks=1,
        servers=min(1, spec.servers),
        controller=False,
        bandwidth_bps=None,
        worker_bandwidth_bps={},
        server_bandwidth_bps={},
        steps=(),
        namespaces=False,
        timeout_s=WEEK_S if memory else budget_s + _OTHER_S,
        environment=environment,
    )
    check_job(spec)

    def echo(_role: str, line: str) -> None:
        if line.startswith("regions: "):
            progress(line)

    run_job(spec, echo).check()
    if not path.exists():
        raise UserError(
            f"{' '.join(spec.command[:4])}: measured no regions: its model must train for four "
            "steps, not compiled by the script, with byteprophet.torch.DistributedOptimizer or "
            "DistributedDataParallel"
        )
    costs = read_region_costs(path)
    if costs.unmeasured:
        runs = len(costs.unmeasured) + len(costs.regions)
        progress(
            f"regions: {len(costs.unmeasured)} of {runs} were not measured within {budget_s:g} s "
            "(--budget-s), and stay as they are; the same command measures more of them"
        )
    if not memory:
        return costs, None
    if not memory_path.exists():
        raise UserError(
            f"{' '.join(spec.command[:4])}: measured no memory: let it train for fourteen steps"
        )
    return costs, read_region_memory(memory_path)
