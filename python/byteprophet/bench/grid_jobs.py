"""The jobs that a grid is measured with, and how one is recognised when a run goes on.

A job is one policy, or one runtime beside BytePS, in one cell in one round of a phase. Its record
answers for it as long as its ``fingerprint`` is the same: everything that the job is told, the
workload's tensors included, with the policy's defaults filled in. Beside it stands the version of
the code that ran in the job.
"""

from __future__ import annotations

import functools
import hashlib
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
from byteprophet.whole_files import write_whole
from byteprophet.workload import Workload, to_toml

TUNING_ITERATIONS = 300
"""Iterations of a job of the phase "tuning" after warm-up, all of which count."""

_TUNED_WITHIN = 250
"""In so many of them a tuner has settled; the rest it makes use of what it found."""

_RUNS_IN_JOBS = (
    "allreduce",
    "control",
    "engine",
    "hooks",
    "network",
    "observe",
    "profile",
    "timeline",
    "torch",
    "tune",
    "workload",
)


@dataclass(frozen=True)
class Variant:
    """A scheduler with what is set differently from its defaults; ``tuner``: it tunes itself.

    Or a collective ``runtime``, which has no scheduler: then that is ``schedulers.DEFAULT``, and
    ``of_runtime`` makes it.
    """

    scheduler: str
    settings: Mapping[str, int] = field(default_factory=dict)
    tuner: bool = False
    runtime: str = BYTEPS

    @classmethod
    def of_runtime(cls, runtime: str, settings: Mapping[str, int]) -> Variant:
        """A collective runtime with what is set differently from its defaults."""
        return cls(schedulers.DEFAULT, settings, runtime=runtime)

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> Variant:
        """As a record says (docs/formats.md)."""
        scheduler = record["scheduler"] or schedulers.DEFAULT
        runtime = record.get("runtime", BYTEPS)  # there was no other once
        return cls(scheduler, record["settings"], record["tuner"], runtime)

    @property
    def told_scheduler(self) -> str | None:
        """As records have it: none of a collective runtime."""
        return self.scheduler if self.runtime == BYTEPS else None

    @property
    def name(self) -> str:
        """The runtime, or the scheduler where it is BytePS."""
        return self.scheduler if self.runtime == BYTEPS else self.runtime

    @property
    def label(self) -> str:
        """As it is called in records and reports; unique."""
        settings = schedulers.settings_text(dict(sorted(self.settings.items())))
        return self.name + (f"[{settings}]" if settings else "") + ("+tuner" * self.tuner)


@dataclass(frozen=True)
class Job:
    """One job of a phase of a grid; ``round`` counts from 1."""

    phase: str
    cell: Cell
    variant: Variant
    round: int

    @property
    def key(self) -> tuple[str, str, str, int]:
        """What a record says it is of."""
        return self.phase, self.cell.name, self.variant.label, self.round


@dataclass(frozen=True)
class PreparedCell:
    """A cell with its workload, which lies in a file for the workers to read."""

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
            worker_bandwidth_bps=self.cell.worker_bandwidth_bps,
            tune_iterations=_TUNED_WITHIN if variant.tuner else 0,
        )
        if variant.runtime == BYTEPS:
            return case
        return all_reduce_case(case, variant.runtime, variant.settings)


def prepare_cell(cell: Cell, directory: Path) -> PreparedCell:
    """Loads the cell's workload and writes it to ``directory``.

    The file's name tells its content: jobs of another grid that run from ``directory`` meanwhile
    never find another workload in theirs.
    """
    workload = cell.load_workload()
    text = to_toml(workload)
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", cell.name)
    path = directory / f"{name}-{_digest(text.encode())}.toml"
    if not path.exists():
        directory.mkdir(parents=True, exist_ok=True)
        write_whole(path, text)
    return PreparedCell(cell, workload, path.absolute())


def plan_of(grid: Grid, phase: str, case: Case) -> Plan:
    """How long a job of the phase is."""
    iterations = grid.iterations
    if phase == "tuning":
        iterations = TUNING_ITERATIONS - case.tune_iterations
    return Plan((case,), iterations, 1, grid.warmup_iterations, idle_s=0)


def fingerprint(prepared: PreparedCell, variant: Variant, plan: Plan) -> str:
    """Of all that the job is told; what is only a name is left out."""
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
    return _digest(json.dumps(told, sort_keys=True).encode())


@functools.cache
def code_version() -> str:
    """Of the code that runs in a job: what is compiled, BytePS too, and what workers import.

    Reports, the command line and the bench itself are not in it: a change there changes no figure.
    """
    package = Path(byteprophet.__file__).parent
    files = set(package.glob("*.py"))
    for room in _RUNS_IN_JOBS:
        files |= set((package / room).rglob("*.py"))
    content = b"".join(path.name.encode() + path.read_bytes() for path in sorted(files))
    return _digest(_core.SOURCES.encode() + content)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:12]
