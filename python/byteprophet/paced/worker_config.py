"""The configuration file of a paced worker process, and the results file that it writes.

    workload = "resnet50"          # a built-in name, or the path of a workload file
    compute_ns = 900000000         # optional: forward plus backward; default: the workload's time
    scheduler = "prophet"          # or "stock": BytePS as shipped, with its own front; omitted for
                                   # a worker without BytePS
    runtime = "ddp"                # optional: the runtime of a worker without BytePS
    warmup_iterations = 3
    iterations = 20
    idle_s = 2.0                   # optional: how long the process idles at the end
    tune_iterations = 250          # optional: iterations after warm-up in which settings change
    next_batch_size = 32           # optional: the batch size from update next_batch_at on, with
    next_batch_at = 25             # compute times in proportion (updates count from 0)
    settings = {bucket_cap_mb = 4} # optional: integer settings of a worker without BytePS
    strategies = ["a.json"]        # optional, of in_turn.py: files of strategies ("": none), under
                                   # which the job trains in turn, warm-up included

Paths are relative to the directory in which the workers run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import tomli_w

from byteprophet.errors import UserError
from byteprophet.input_files import has_schema, parse_table, read_text
from byteprophet.whole_files import make_directory, write_whole
from byteprophet.workload.builtin import load
from byteprophet.workload.files import check_fields
from byteprophet.workload.model import LARGEST, Workload

RESULT_SCHEMA = 1
_LARGEST_AMOUNT = 1 << 62

IDLE_S = 2.0
"""Long enough to measure the CPU time of an idle process."""


@dataclass(frozen=True)
class WorkerConfig:
    """The configuration of a paced worker process, the same for all workers of a job."""

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
    strategies: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("workload", "scheduler", "runtime"):
            value = getattr(self, name)
            if name != "workload" and value is None:
                continue
            if type(value) is not str or not value:
                raise UserError(f"{name} must be a text that is not empty, got {value!r}")
        if self.scheduler is not None and self.runtime is not None:
            raise UserError("scheduler and runtime: they exclude each other; give one")
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
            if value > LARGEST:
                raise UserError(f"{name} must be at most 2^50, got {value!r}")
        if (self.next_batch_size is None) != (self.next_batch_at is None):
            raise UserError("next_batch_size and next_batch_at belong together: give both or none")
        if type(self.idle_s) not in (int, float) or not 0 <= self.idle_s <= 3600:
            raise UserError(f"idle_s must be a number from 0 to 3600, got {self.idle_s!r}")
        if not isinstance(self.settings, Mapping):
            raise UserError(f"settings must be a table, got {self.settings!r}")
        for name, value in self.settings.items():
            if type(value) is not int:
                raise UserError(f"settings.{name} must be an integer, got {value!r}")

        if type(self.strategies) is not tuple or any(
            type(path) is not str for path in self.strategies
        ):
            raise UserError(f"strategies must be a list of texts, got {self.strategies!r}")

    def load_workload(self) -> Workload:
        """The workload, scaled to ``compute_ns`` if that is given."""
        workload = load(self.workload)
        return workload if self.compute_ns is None else workload.scaled(self.compute_ns)

    def load_next_workload(self) -> Workload:
        """The workload from update ``next_batch_at`` on, with compute scaled to the batch size."""
        first = self.load_workload()
        samples = self.next_batch_size or first.batch_size
        compute_ns = (first.forward_ns + first.backward_ns) * samples // first.batch_size
        return replace(first.scaled(compute_ns), batch_size=samples)

    @property
    def updates(self) -> int:
        """The total number of iterations."""
        return self.warmup_iterations + self.tune_iterations + self.iterations

    def to_toml(self) -> str:
        """The text of a file from which ``read_worker_config`` reads an equal configuration."""
        fields = asdict(self)
        return tomli_w.dumps({name: v for name, v in fields.items() if v not in (None, {}, ())})


def numbered(name: str, number: int) -> str:
    """The name of a tensor in the model that trains under strategy ``number``, from 0."""
    return f"{number}.{name}"


def read_worker_config(path: str | Path) -> WorkerConfig:
    """Read the configuration from the file at ``path``.

    Raises ``UserError``, which names the file and the field, if it is invalid.
    """
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
                "strategies",
            ),
        )
        if isinstance(table.get("strategies"), list):
            table["strategies"] = tuple(table["strategies"])
        return WorkerConfig(**{"scheduler": None, **table})
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def _check_amount(name: str, value: object, *kinds: type) -> None:
    if type(value) not in kinds or not 0 <= value <= _LARGEST_AMOUNT:  # type: ignore[operator]
        raise ValueError(f"is not a worker's result: {name} is {value!r:.100}")


@dataclass(frozen=True)
class WorkerResult:
    """What one worker measured.

    Attributes:
        iteration_ns: the times from the start of each measured iteration to the start of the next.
        tuning_ns: the same for the iterations between warm-up and the measured ones.
        cpu_fraction: CPU seconds of the process per second, so that 1.0 is one core.
        idle_cpu_fraction: the same while idle; 0 if the process did not idle.
        first_monotonic_ns: the start of the measured iterations, by the machine's monotonic clock.
        last_monotonic_ns: their end, by the same clock.
        real_time: whether the thread that paces compute ran under SCHED_RR (``real_time.py``).
        partition_bytes: the partition size at the end; 0 if nothing is scheduled.
        wire_bytes: bytes sent and received during the measured iterations, with headers. They
            include the traffic of all programs on all interfaces of the host but loopback.
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
        """Make a result from a table that this version's ``write`` wrote.

        Raises ``ValueError``, which names the reason, if the table is invalid.
        """
        if not has_schema(table, RESULT_SCHEMA):
            raise ValueError(f"schema is not {RESULT_SCHEMA}")
        fields = {name: value for name, value in table.items() if name != "schema"}
        try:
            for name in ("iteration_ns", "tuning_ns", "wire_bytes"):
                fields[name] = tuple(table[name])
            result = cls(**fields)
        except (KeyError, TypeError) as error:
            raise ValueError(f"is not a worker's result: {error}") from None
        result._check()
        return result

    def _check(self) -> None:
        counts = ("rank", "size", "updates", "scheduled_partitions", "partition_bytes")
        for name in (*counts, "first_monotonic_ns", "last_monotonic_ns"):
            _check_amount(name, getattr(self, name), int)
        for name in ("cpu_fraction", "idle_cpu_fraction"):
            _check_amount(name, getattr(self, name), int, float)
        for name in ("iteration_ns", "tuning_ns", "wire_bytes"):
            for value in getattr(self, name):
                _check_amount(name, value, int)
        if not self.iteration_ns or 0 in self.iteration_ns or len(self.wire_bytes) != 2:
            raise ValueError("is not a worker's result: iterations or bytes are missing")
        if type(self.parameters_sha256) is not str or type(self.real_time) is not bool:
            raise ValueError(
                "is not a worker's result: parameters_sha256 or real_time has the wrong type"
            )

    def write(self, run_directory: Path) -> None:
        """Write ``results/worker-<rank>.json`` atomically."""
        directory = run_directory / "results"
        make_directory(directory)
        path = directory / f"worker-{self.rank}.json"
        write_whole(path, json.dumps({"schema": RESULT_SCHEMA, **asdict(self)}, indent=1) + "\n")
