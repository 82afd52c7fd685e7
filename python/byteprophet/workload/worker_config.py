"""The configuration file of a paced worker process, and the results file that it writes.

    workload = "resnet50"          # a built-in name, or the path of a workload file
    compute_ns = 900000000         # optional: forward and backward together; else the workload's
    scheduler = "prophet"          # or "stock": BytePS as shipped, through its own front; none
                                   # where a worker has no BytePS
    runtime = "ddp"                # optional: what such a worker reduces gradients with
    warmup_iterations = 3
    iterations = 20
    idle_s = 2.0                   # optional: how long the process is left idle at the end
    tune_iterations = 250          # optional: iterations between, in which settings change
    next_batch_size = 32           # optional: so many samples from update next_batch_at on; compute
    next_batch_at = 25             # changes in proportion (updates count from 0)
    settings = {bucket_cap_mb = 4} # optional: integers, of a worker without BytePS

A path is relative to the directory in which the workers run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import tomli_w

from byteprophet.errors import UserError
from byteprophet.whole_files import write_whole
from byteprophet.workload.builtin import load
from byteprophet.workload.files import check_fields, parse_table, read_text
from byteprophet.workload.model import Workload

RESULT_SCHEMA = 1

IDLE_S = 2.0
"""Long enough for what an idle process burns to be seen."""


@dataclass(frozen=True)
class WorkerConfig:
    """What a paced worker process is to do; the same for all workers of a job."""

    workload: str
    scheduler: str | None
    warmup_iterations: int
    iterations: int
    compute_ns: int | None = None
    idle_s: float = IDLE_S
    tune_iterations: int = 0
    next_batch_size: int | None = None
    next_batch_at: int | None = None
    settings: Mapping[str, int] = field(default_factory=dict)
    runtime: str | None = None

    def __post_init__(self) -> None:
        for name in ("workload", "scheduler", "runtime"):
            value = getattr(self, name)
            if name != "workload" and value is None:
                continue
            if type(value) is not str or not value:
                raise UserError(f"{name} must be a text that is not empty, got {value!r}")
        if self.scheduler is not None and self.runtime is not None:
            raise UserError("scheduler and runtime: a worker has BytePS or another; give one")
        for name, smallest in (
            ("warmup_iterations", 0),
            ("iterations", 1),
            ("tune_iterations", 0),
            ("next_batch_size", 1),
            ("next_batch_at", 1),
        ):
            value = getattr(self, name)
            if name.startswith("next_batch") and value is None:
                continue
            if type(value) is not int or value < smallest:
                raise UserError(f"{name} must be an integer from {smallest}, got {value!r}")
        if (self.next_batch_size is None) != (self.next_batch_at is None):
            raise UserError("next_batch_size and next_batch_at belong together: give both or none")
        if type(self.idle_s) not in (int, float) or not 0 <= self.idle_s <= 3600:
            raise UserError(f"idle_s must be a number from 0 to 3600, got {self.idle_s!r}")
        if not isinstance(self.settings, Mapping):
            raise UserError(f"settings must be a table, got {self.settings!r}")
        for name, value in self.settings.items():
            if type(value) is not int:
                raise UserError(f"settings.{name} must be an integer, got {value!r}")

    def load_workload(self) -> Workload:
        """The workload, at the speed asked for."""
        workload = load(self.workload)
        return workload if self.compute_ns is None else workload.scaled(self.compute_ns)

    def load_next_workload(self) -> Workload:
        """That from update ``next_batch_at`` on: compute in proportion to the batch."""
        first = self.load_workload()
        samples = self.next_batch_size or first.batch_size
        compute_ns = (first.forward_ns + first.backward_ns) * samples // first.batch_size
        return replace(first.scaled(compute_ns), batch_size=samples)

    @property
    def updates(self) -> int:
        """Iterations in all."""
        return self.warmup_iterations + self.tune_iterations + self.iterations

    def to_toml(self) -> str:
        """The text of a file from which ``read_worker_config`` gives an equal configuration."""
        fields = asdict(self)
        return tomli_w.dumps({name: v for name, v in fields.items() if v not in (None, {})})


def read_worker_config(path: str | Path) -> WorkerConfig:
    """The configuration in the file at ``path``; errors name the file and the field."""
    table: dict[str, Any] = parse_table(read_text(path), str(path))
    try:
        check_fields(
            table,
            ("workload", "warmup_iterations", "iterations"),
            (
                "scheduler",
                "compute_ns",
                "idle_s",
                "tune_iterations",
                "next_batch_size",
                "next_batch_at",
                "settings",
                "runtime",
            ),
        )
        return WorkerConfig(**{"scheduler": None, **table})
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


@dataclass(frozen=True)
class WorkerResult:
    """What one worker measured.

    Each of ``iteration_ns`` is from the start of a measured iteration to the start of the next, of
    ``tuning_ns`` the same for those between warm-up and them;
    CPU fractions are CPU seconds of the process per second, so that 1.0 is one core; stamps are
    nanoseconds of the machine's monotonic clock. ``idle_cpu_fraction`` is 0 where the process was
    not left idle. ``real_time``: whether compute never waited for a core (``real_time.py``).
    ``partition_bytes``: at the end; 0 where nothing is scheduled. ``wire_bytes``: sent and received
    over the measured iterations, headers included, by all interfaces of the worker's host but
    loopback, whoever else uses them.
    """

    rank: int
    size: int
    iteration_ns: tuple[int, ...]
    cpu_fraction: float
    idle_cpu_fraction: float
    parameters_sha256: str
    updates: int
    scheduled_partitions: int
    first_monotonic_ns: int
    last_monotonic_ns: int
    tuning_ns: tuple[int, ...] = ()
    real_time: bool = False
    partition_bytes: int = 0
    wire_bytes: tuple[int, int] = (0, 0)

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> WorkerResult:
        """From what ``write`` wrote in this version; ValueError says why it is not that."""
        if table.get("schema") != RESULT_SCHEMA:
            raise ValueError(f"schema is not {RESULT_SCHEMA}")
        fields = {name: value for name, value in table.items() if name != "schema"}
        try:
            for name in ("iteration_ns", "tuning_ns", "wire_bytes"):
                fields[name] = tuple(table[name])
            return cls(**fields)
        except (KeyError, TypeError) as error:
            raise ValueError(f"is not a worker's result: {error}") from None

    def write(self, run_directory: Path) -> None:
        """Write ``results/worker-<rank>.json``; readers see all of it or nothing."""
        directory = run_directory / "results"
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / f"worker-{self.rank}.json"
        write_whole(path, json.dumps({"schema": RESULT_SCHEMA, **asdict(self)}, indent=1) + "\n")
