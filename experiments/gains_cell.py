"""Measures one cell of ``gains.py``: what the optimizer foretells, and what then happens.

Each step keeps what it has made, so that a cell that was stopped goes on, with the same effort and
code (``measured_with.py``). The optimizer runs as its users run it, by the command.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from gains_cells import DDP, Cell, job_of
from gains_opponents import opponents_of, tuned
from gains_tables import REGIONS
from measured_with import begin_with

from byteprophet.bench import describe_machine
from byteprophet.bench.grid_jobs import code_version
from byteprophet.cli.main import run_cli
from byteprophet.errors import JobFailed
from byteprophet.input_files import read_json
from byteprophet.job.region_costs import read_region_costs
from byteprophet.job.strategy import Region
from byteprophet.job.strategy_file import Used, read_strategy_file, write_strategy
from byteprophet.launcher import JobSpec, make_run_directory, run_job
from byteprophet.launcher.given_strategy import with_strategy
from byteprophet.measure.run import Run
from byteprophet.measure.servers import measure_run
from byteprophet.optimize.apply import BASELINE, OPTIMISED, Applied, run_in_turn
from byteprophet.optimize.rounds import Rounds
from byteprophet.whole_files import make_directory, write_whole

SCHEMA = 2
EAGER, WHOLE = REGIONS
_COSTS = "region-costs.json"
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Effort:
    """How thoroughly a cell is measured.

    ``trials``: candidates of the optimizer that run, and settings that each opponent tries.
    ``allow``: passes that may change results, by commas.
    """

    iterations: int
    rounds: int
    trials: int
    budget_s: float
    opponents: bool = True
    allow: str = "compile,tensor-fusion"  # the latter for DDP's buckets on three ranks or more


def measure_cell(cell: Cell, out: Path, effort: Effort, progress: Progress) -> dict[str, Any]:
    """Run what the cell needs; the result, as it is saved.

    Raises ``JobFailed`` if a job fails, and ``UserError`` if the cell was begun with another effort
    or other code.
    """
    directory = out / cell.name
    begin_with(directory, asdict(effort))
    runs = directory / "runs"
    size_bytes, compute_ns = computed(cell, out, effort.iterations, progress)
    bandwidth_bps = cell.bandwidth_bps(size_bytes, compute_ns)
    base = job_of(cell, bandwidth_bps, effort.iterations, runs)
    progress("as recorded")
    recorded = run_once(base, directory / "recorded")
    found = _optimised(cell, recorded, out, effort, progress)
    specs, digests = {BASELINE: base}, {BASELINE: ""}
    for variant, (used, path) in _variants(directory, found).items():
        specs[variant], digests[variant] = with_strategy(base, used, path), used.digest
    opponents = {}
    if effort.opponents:
        of_cell = opponents_of(cell, bandwidth_bps, effort.iterations, runs, effort.trials)
        opponents = tuned(of_cell, runs, directory / "opponents.json", progress)
    for name, (what, spec) in opponents.items():
        specs[name], digests[name] = spec, what
    finished = Rounds(directory / "rounds.json", digests)
    applied = run_in_turn(specs, runs, effort.rounds, progress, finished)
    was_ns = applied.median_ns(BASELINE)
    is_ns = applied.median_ns(OPTIMISED if OPTIMISED in specs else BASELINE)
    low_ns, high_ns = (end_ns * was_ns / found["baseline_ns"] for end_ns in found["interval_ns"])
    return {
        "schema": SCHEMA,
        "cell": cell.name,
        "set": cell.kind,
        "machine": describe_machine(),
        "code": code_version(),
        "effort": asdict(effort),
        "bandwidth_bps": bandwidth_bps,
        "compute_ns": compute_ns,
        "baseline_ns": was_ns,
        "optimised_ns": is_ns,
        "bound_ns": found["bound_ns"],
        "applied": OPTIMISED in specs,
        "predicted_gain": found["baseline_ns"] / found["predicted_ns"],
        "interval": [found["baseline_ns"] / end_ns for end_ns in reversed(found["interval_ns"])],
        "replay_error": found["replay_error"],
        "measured_gain": was_ns / is_ns,
        "held": low_ns <= is_ns <= high_ns,
        "trials": found.get("trials", []),
        "decisions": [f"{each['pass']}: {each['what']}" for each in found["decisions"]],
        "regions": {name: applied.median_ns(name) for name in (EAGER, WHOLE) if name in specs},
        "opponents": {
            name: {"tried": what, "iteration_ns": applied.median_ns(name)}
            for name, (what, _) in opponents.items()
        },
        "iteration_ns": _lists(applied),
    }


def computed(cell: Cell, out: Path, iterations: int, progress: Progress) -> tuple[int, int]:
    """Bytes of all gradients, and the compute of an iteration where links are not limited.

    Measured once per model and number of ranks, and kept in ``out``.
    """
    path = out / f"compute-{cell.model}-{cell.ranks}.json"
    if not path.exists():
        progress("compute")
        run = _run(job_of(cell, None, iterations, out / "runs", sync=DDP), out / "runs", "compute")
        job = measure_run(run).job
        took_ns = job.times.forward_ns.sum(axis=2) + job.times.backward_ns
        took_ns += job.times.update_ns.sum(axis=2)
        found = {"size_bytes": job.model.size_bytes, "compute_ns": int(np.median(took_ns))}
        write_whole(path, json.dumps(found) + "\n")
    data = read_json(path)
    return data["size_bytes"], data["compute_ns"]


def run_once(spec: JobSpec, kept: Path) -> Path:
    """The run directory of the job, which runs if the file ``kept`` does not name one yet."""
    runs = kept.parent / "runs"
    if not kept.exists():
        write_whole(kept, _run(spec, runs, kept.name).directory.name + "\n")
    return runs / kept.read_text().strip()


def _optimised(
    cell: Cell, run: Path, out: Path, effort: Effort, progress: Progress
) -> dict[str, Any]:
    """What ``byteprophet optimize`` says of the recorded run; it is asked once."""
    directory = out / cell.name / "optimized"
    result, costs = directory / "result.json", directory / "regions" / _COSTS
    if not result.exists():
        progress("optimize")
        shared = out / f"regions-{cell.model}" / _COSTS  # no link and no runtime changes them
        make_directory(costs.parent)
        make_directory(shared.parent)
        if shared.exists():
            shutil.copy(shared, costs)
        options = ["--budget-s", f"{effort.budget_s:g}", "--trials", str(effort.trials)]
        if effort.allow:
            options += ["--allow", effort.allow]
        options += ["--out", str(directory), "--json", str(result)]
        if run_cli(["optimize", str(run), *options]) != 0:
            raise JobFailed(f"byteprophet optimize {run} has failed")
        if costs.exists():
            shutil.copy(costs, shared)
    found: dict[str, Any] = read_json(result)
    return found


def _variants(directory: Path, found: dict[str, Any]) -> dict[str, tuple[Used, Path]]:
    """The strategy that was found; if it has compiled regions, also without, and with only one."""
    if found["strategy"] is None:
        return {}
    path = Path(found["strategy"])
    used = read_strategy_file(path)
    variants = {OPTIMISED: (used, path)}
    compiled = [region for region in used.strategy.regions if region.compiled]
    costs = directory / "optimized" / "regions" / _COSTS
    if not compiled or not costs.exists():
        return variants
    (whole,) = read_region_costs(costs).chains[0]
    if compiled[0].modules == whole:
        return variants
    for name, regions in ((EAGER, ()), (WHOLE, (Region(whole, compiled=True),))):
        changed = replace(used, strategy=replace(used.strategy, regions=regions))
        changed_path = directory / f"strategy-{'whole' if regions else 'eager'}.json"
        write_strategy(changed_path, changed)
        variants[name] = changed, changed_path
    return variants


def _run(spec: JobSpec, runs: Path, label: str) -> Run:
    directory = make_run_directory(runs, label)
    run_job(replace(spec, run_directory=directory)).check()
    return Run(directory)


def _lists(applied: Applied) -> dict[str, list[int]]:
    return {
        name: [int(time_ns) for times_ns in rounds for time_ns in times_ns]
        for name, rounds in applied.iteration_ns.items()
    }
