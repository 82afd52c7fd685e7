"""What a bench compares: cases (one row of the result each) and how long each is run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from byteprophet import schedulers
from byteprophet.bench.runtimes import BYTEPS, runtime_of
from byteprophet.errors import UserError
from byteprophet.network import Step, payload_bps
from byteprophet.tune.request import Request
from byteprophet.tune.space import free_settings
from byteprophet.workload.collective_settings import settles_after
from byteprophet.workload.worker_config import IDLE_S

WARMUP_ITERATIONS = 5
"""Before anything is measured: the first creates the keys on the server, the second still runs
barriered because the order is not agreed, then policies that learn have seen some iterations."""


@dataclass(frozen=True)
class Case:
    """One workload under one scheduler on one kind of link, or under another runtime than BytePS.

    ``workload`` is a built-in name or a path, ``bandwidth_bps`` of each worker's link per direction
    (None: not limited), which ``steps`` change in mid-run; a worker in ``worker_bandwidth_bps``, by
    its index, has that rate instead. ``settings`` and ``partition_bytes`` override the scheduler's
    own; ``environment`` is added to all roles'.
    ``tune_iterations``, 0 or at least 100: after warm-up, all settings that the scheduler can tune
    and that are not given are tuned in so many iterations; then the measured ones begin.
    ``runtime``: see ``runtimes.py``. A collective one has no servers and no scheduler, and
    ``settings`` are its own; ``all_reduce_case`` makes such a case.
    """

    workload: str
    scheduler: str
    bandwidth_bps: int | None
    workers: int = 2
    servers: int = 1
    compute_ns: int | None = None
    partition_bytes: int | None = None
    settings: Mapping[str, int] = field(default_factory=dict)
    steps: tuple[Step, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    worker_bandwidth_bps: Mapping[int, int] = field(default_factory=dict)
    tune_iterations: int = 0
    runtime: str = BYTEPS

    @property
    def name(self) -> str:
        """What is compared: the scheduler, or the runtime that has none."""
        return self.runtime if runtime_of(self.runtime).collective else self.scheduler

    @property
    def slowest_bps(self) -> int | None:
        """The rate of the slowest worker's link, which decides; None: no link is limited."""
        rates_bps = [*self.worker_bandwidth_bps.values()]
        if self.bandwidth_bps is not None and len(self.worker_bandwidth_bps) < self.workers:
            rates_bps.append(self.bandwidth_bps)
        return min(rates_bps, default=None)

    @property
    def collective_settings(self) -> dict[str, int] | None:
        """All settings of a collective runtime; None under BytePS, UserError if they don't fit."""
        runtime = runtime_of(self.runtime)
        if not runtime.collective:
            return None
        return runtime.resolve(self.settings, payload_bps(self.slowest_bps))

    @property
    def tuning(self) -> Request | None:
        """What is tuned; UserError if that cannot be."""
        if self.tune_iterations == 0:
            return None
        settings, _ = schedulers.resolve(self.scheduler, self.settings, self.partition_bytes)
        pinned = [*self.settings, *([] if self.partition_bytes is None else ["partition_bytes"])]
        free = free_settings(self.scheduler, pinned)
        return Request(self.scheduler, settings, self.tune_iterations, free)


def all_reduce_case(case: Case, runtime: str, settings: Mapping[str, int]) -> Case:
    """``case`` under a collective runtime."""
    return replace(
        case,
        runtime=runtime,
        scheduler=schedulers.DEFAULT,
        servers=0,
        partition_bytes=None,
        settings=settings,
        tune_iterations=0,
    )


def warmup_of(cases: Iterable[Case]) -> int:
    """Iterations after which each of ``cases`` stays as it is."""
    settled = (settles_after(case.runtime, case.settings) for case in cases)
    return max((WARMUP_ITERATIONS, *settled))


@dataclass(frozen=True)
class Plan:
    """The cases, and the measured iterations of each, split evenly over ``rounds`` jobs.

    In each round all cases run once, in order, so that what changes on the machine meanwhile meets
    all of them. All jobs without tuning make the same number of updates, so their parameters can be
    compared. Jobs fail that still look for their groups after warm-up (``warmup_of``).
    ``controller``: schedulers that use plans have one. ``record``: transfers and spans are saved in
    the run directories.
    """

    cases: tuple[Case, ...]
    iterations: int
    rounds: int = 2
    warmup_iterations: int = WARMUP_ITERATIONS
    controller: bool = False
    record: bool = False
    idle_s: float = IDLE_S  # how long each worker is left idle at the end, to see what it burns

    def __post_init__(self) -> None:
        if not self.cases:
            raise UserError("bench: nothing to compare")
        if self.iterations < 1:
            raise UserError(f"--iterations {self.iterations}: must be at least 1")
        if not 1 <= self.rounds <= self.iterations:
            raise UserError(f"--rounds {self.rounds}: must be from 1 to --iterations")

    @property
    def iterations_per_job(self) -> int:
        """Measured iterations of one job; rounded up, so a bench never measures less than asked."""
        return -(-self.iterations // self.rounds)

    @property
    def updates(self) -> int:
        """Parameter updates that one job makes, warm-up included, tuning not."""
        return self.warmup_iterations + self.iterations_per_job
