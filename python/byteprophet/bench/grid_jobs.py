"""The jobs that measure a grid, and how a job is recognised when a run continues.

A job is one policy, or one runtime other than BytePS, in one cell in one round of a phase. Its
record is valid as long as the job's ``fingerprint`` is the same. The fingerprint covers everything
that the job is given: the workload's tensors, and all settings including the policy's defaults. The
record also has the version of the code that ran in the job.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import byteprophet
from byteprophet import _core, schedulers
from byteprophet.bench.case import Case, Plan, all_reduce_case
from byteprophet.bench.grid import Cell, Grid
from byteprophet.bench.runtimes import BYTEPS
from byteprophet.digests import digest_of
from byteprophet.whole_files import make_directory, write_whole
from byteprophet.workload import Workload, to_toml

TUNING_ITERATIONS = 300
"""Iterations of a job of the phase "tuning" after warm-up, all of which are measured."""

_TUNED_WITHIN = 250
"""Iterations that a tuner gets; in the remaining ones it uses the settings that it found."""

RUNS_IN_JOBS = (
    "allreduce",
    "control",
    "engine",
    "hooks",
    "job",
    "memory",
    "monitor",
    "network",
    "observe",
    "paced",
    "profile",
    "session",
    "timeline",
    "torch",
    "tune",
    "workload",
)


@dataclass(frozen=True)
class Variant:
    """A scheduler with the settings that differ from its defaults; ``tuner``: it tunes itself.

    ``environment`` is added to that of all roles.
    Or a collective ``runtime``, made by ``of_runtime``. It has no scheduler, so ``scheduler`` is
    ``schedulers.DEFAULT`` then.
    """

    scheduler: str
    settings: Mapping[str, int] = field(default_factory=dict)
    tuner: bool = False
    runtime: str = BYTEPS
    environment: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of_runtime(cls, runtime: str, settings: Mapping[str, int]) -> Variant:
        """A collective runtime with the settings that differ from its defaults."""
        return cls(schedulers.DEFAULT, settings, runtime=runtime)

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> Variant:
        """The variant that a record describes (docs/formats.md)."""
        scheduler = record["scheduler"] or schedulers.DEFAULT
        runtime = record.get("runtime", BYTEPS)  # older records do not have the field
        environment = record.get("environment", {})
        return cls(scheduler, record["settings"], record["tuner"], runtime, environment)

    @property
    def told_scheduler(self) -> str | None:
        """The scheduler as records have it: None for a collective runtime."""
        return self.scheduler if self.runtime == BYTEPS else None

    @property
    def name(self) -> str:
        """The runtime, or the scheduler under BytePS."""
        return self.scheduler if self.runtime == BYTEPS else self.runtime

    @property
    def label(self) -> str:
        """The unique name in records and reports."""
        settings = schedulers.settings_text(dict(sorted(self.settings.items())))
        told = "".join(f"+{name}={value}" for name, value in sorted(self.environment.items()))
        return self.name + (f"[{settings}]" if settings else "") + ("+tuner" * self.tuner) + told


@dataclass(frozen=True)
class Job:
    """One job of a phase of a grid; ``round`` counts from 1."""

    phase: str
    cell: Cell
    variant: Variant
    round: int

    @property
    def key(self) -> tuple[str, str, str, int]:
        """The fields that identify the job in its record."""
        return self.phase, self.cell.name, self.variant.label, self.round


@dataclass(frozen=True)
class PreparedCell:
    """A cell with its workload, which is in a file for the workers to read."""

    cell: Cell
    workload: Workload
    path: Path

    def case(self, variant: Variant) -> Case:
        """The cell under ``variant``."""
        case = Case(
            workload=str(self.path),
            scheduler=variant.scheduler,
            bandwidth_bps=self.cell.bandwidth_bps(self.workload),
            workers=self.cell.workers,
            servers=self.cell.servers,
            settings=variant.settings,
            environment=variant.environment,
            worker_bandwidth_bps=self.cell.worker_bandwidth_bps,
            tune_iterations=_TUNED_WITHIN if variant.tuner else 0,
        )
        if variant.runtime == BYTEPS:
            return case
        return all_reduce_case(case, variant.runtime, variant.settings)


def prepare_cell(cell: Cell, directory: Path) -> PreparedCell:
    """Load the cell's workload and write it to ``directory``.

    The file's name depends on its content, so that jobs of another grid that run from ``directory``
    at the same time never find a changed workload.
    """
    workload = cell.load_workload()
    text = to_toml(workload)
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", cell.name)
    path = directory / f"{name}-{digest_of(text)}.toml"
    if not path.exists():
        make_directory(directory)
        write_whole(path, text)
    return PreparedCell(cell, workload, path.absolute())


def plan_of(grid: Grid, phase: str, case: Case) -> Plan:
    """The plan of one job of the phase."""
    iterations = grid.iterations
    if phase == "tuning":
        iterations = TUNING_ITERATIONS - case.tune_iterations
    return Plan((case,), iterations, 1, grid.warmup_iterations, idle_s=0)


def fingerprint(prepared: PreparedCell, variant: Variant, plan: Plan) -> str:
    """A hash of everything that the job is given, without mere names."""
    settings = plan.cases[0].collective_settings
    if settings is None:
        settings, _ = schedulers.resolve(variant.scheduler, variant.settings)
    told: dict[str, Any] = {
        "workload": [
            (t.name, t.size_bytes, t.forward_ns, t.backward_ns, t.burst)
            for t in prepared.workload.tensors
        ],
        "bandwidth_bps": prepared.cell.bandwidth_bps(prepared.workload),
        "workers": prepared.cell.workers,
        "servers": prepared.cell.servers,
        "scheduler": variant.name,
        "settings": settings,
        "tune_iterations": plan.cases[0].tune_iterations,
        "iterations": plan.iterations,
        "warmup_iterations": plan.warmup_iterations,
    }
    if prepared.cell.slow_worker is not None:
        told["worker_bandwidth_bps"] = list(prepared.cell.worker_bandwidth_bps.items())
    if variant.environment:
        told["environment"] = dict(variant.environment)
    return digest_of(json.dumps(told, sort_keys=True))


@functools.cache
def code_version() -> str:
    """A hash of the code that runs in a job: compiled code, BytePS too, and what workers import.

    Reports, the command line and the bench itself are not part of it, because changing them does
    not change figures.
    """
    package = Path(byteprophet.__file__).parent
    files = set(package.glob("*.py"))
    for room in RUNS_IN_JOBS:
        files |= set((package / room).rglob("*.py"))
    content = b"".join(path.name.encode() + path.read_bytes() for path in sorted(files))
    return digest_of(_core.SOURCES.encode() + content)
