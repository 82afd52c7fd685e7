"""The cases that a bench compares (one row of the result each), and how long each one runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from byteprophet import schedulers
from byteprophet.bench.runtimes import BYTEPS, runtime_of
from byteprophet.errors import UserError
from byteprophet.job import Cluster, Host, Job, Policy, Strategy
from byteprophet.job.owners import Owners
from byteprophet.job.routes import Route
from byteprophet.job.strategy import MIXED, OURS, Delay
from byteprophet.job.strategy_file import check_servers, read_strategy_file
from byteprophet.launcher.given_strategy import servers_under
from byteprophet.network import Step, payload_bps
from byteprophet.paced.collective_settings import settles_after
from byteprophet.paced.worker_config import IDLE_S
from byteprophet.tune.request import Request
from byteprophet.tune.space import free_settings
from byteprophet.workload import Workload
from byteprophet.workload.as_job import limited_host, model_of, times_of

WARMUP_ITERATIONS = 5
"""Iterations before anything is measured. The first creates keys on the server, the second still
waits for all gradients because the order is not agreed yet, and the others let policies learn."""


@dataclass(frozen=True)
class Case:
    """One workload under one scheduler on one kind of link, or under another runtime than BytePS.

    ``workload`` is a built-in name or a path. ``bandwidth_bps`` is the rate of each worker's link
    per direction (None: not limited), and ``steps`` change it during the run. A worker whose index
    is in ``worker_bandwidth_bps`` has that rate instead. ``server_bandwidth_bps`` limits servers'
    links, by index. ``settings`` and ``partition_bytes`` override the scheduler's own.
    ``environment`` is added to that of all roles.
    ``tune_iterations``, 0 or at least 100: after warm-up, the scheduler tunes all settings that it
    can and that are not given, within this number of iterations; then the measured ones begin.
    ``owners``: how much each rank owns under our collective runtimes; None: equally much.
    ``runtime``: see ``runtimes.py``. A collective one has no servers and no scheduler, and
    ``settings`` are its own; ``all_reduce_case`` makes such a case.
    ``strategy``: a file that says what workers are told beyond that; ``strategy_case`` makes such a
    case, whose other members agree with the file. ``routes``: of a file of two transports.
    ``staleness``: the delays of averages that the file asks for. ``reduce_dtype``: the type in
    which gradients travel under it.
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
    owners: Owners | None = None
    server_bandwidth_bps: Mapping[int, int] = field(default_factory=dict)
    strategy: Path | None = None
    routes: tuple[Route, ...] = ()
    staleness: tuple[Delay, ...] = ()
    reduce_dtype: str = ""

    @property
    def name(self) -> str:
        """The strategy's file, else the scheduler, or the runtime if it has no scheduler."""
        if self.strategy is not None:
            return self.strategy.stem
        return self.runtime if runtime_of(self.runtime).collective else self.scheduler

    @property
    def rates_bps(self) -> list[int | None]:
        """The rate of each worker's link; None: not limited."""
        own = self.worker_bandwidth_bps
        return [own.get(worker, self.bandwidth_bps) for worker in range(self.workers)]

    @property
    def weights(self) -> tuple[int, ...]:
        """The weights of unequal owners; none: ranks own equally much, or nothing."""
        return () if self.owners is None else self.owners.unequal

    @property
    def slowest_bps(self) -> int | None:
        """The rate of the slowest worker's link; None if no link is limited."""
        rates_bps = [*self.worker_bandwidth_bps.values()]
        if self.bandwidth_bps is not None and len(self.worker_bandwidth_bps) < self.workers:
            rates_bps.append(self.bandwidth_bps)
        return min(rates_bps, default=None)

    @property
    def collective_settings(self) -> dict[str, int] | None:
        """All settings of a collective runtime; None under BytePS, UserError if one is wrong."""
        runtime = runtime_of(self.runtime)
        if not runtime.collective:
            return None
        return runtime.resolve(self.settings, payload_bps(self.slowest_bps))

    @property
    def tuning(self) -> Request | None:
        """The request for tuning; UserError if it is impossible."""
        if self.tune_iterations == 0:
            return None
        settings, _ = schedulers.resolve(self.scheduler, self.settings, self.partition_bytes)
        pinned = [*self.settings, *([] if self.partition_bytes is None else ["partition_bytes"])]
        free = free_settings(self.scheduler, pinned)
        return Request(self.scheduler, settings, self.tune_iterations, free)


def job_of(case: Case, workload: Workload) -> Job:
    """The job that ``case`` runs, on links with their configured rates."""
    served_bps = [case.server_bandwidth_bps.get(server) for server in range(case.servers)]
    collective = runtime_of(case.runtime).collective
    return Job(
        model_of(workload),
        times_of(workload, case.workers),
        Cluster(
            _hosts(case.rates_bps),
            () if collective else _hosts(served_bps),
        ),
        Strategy(
            MIXED if case.routes else case.runtime,
            owners=case.weights,
            routes=case.routes,
            staleness=case.staleness,
            reduce_dtype=case.reduce_dtype,
        ),
        None if collective else Policy(case.scheduler, case.settings),
    )


def _hosts(rates_bps: Iterable[int | None]) -> tuple[Host, ...]:
    return tuple(limited_host(payload_bps(rate_bps)) for rate_bps in rates_bps)


def all_reduce_case(case: Case, runtime: str, settings: Mapping[str, int]) -> Case:
    """``case`` under a collective runtime."""
    return replace(
        case,
        runtime=runtime,
        scheduler=schedulers.DEFAULT,
        servers=0,
        server_bandwidth_bps={},
        partition_bytes=None,
        settings=settings,
        tune_iterations=0,
    )


def strategy_case(case: Case, path: Path, servers: int | None = None) -> Case:
    """``case`` under the strategy in the file ``path``.

    ``servers``: how many servers a strategy that needs some gets; None: as the file says, or else
    as ``case`` does. Raises ``UserError`` if the file is damaged, if its runtime cannot be given a
    strategy, or if it needs other servers.
    """
    used = read_strategy_file(path)
    strategy, policy = used.strategy, used.policy
    if strategy.runtime not in (BYTEPS, *OURS, MIXED):
        able = ", ".join((BYTEPS, *OURS, MIXED))
        raise UserError(f"{path}: runtime {strategy.runtime!r}: paced jobs can be given {able}")
    if strategy.compressors or strategy.local_sgd:
        raise UserError(
            f"{path}: the gradients of paced jobs mean nothing: compress or update by real ones"
        )
    if strategy.accumulation > 1:
        raise UserError(
            f"{path}: accumulation {strategy.accumulation}: steps of paced jobs are compared one "
            "by one, and most would exchange nothing: use a file without it"
        )
    weights = Owners.of(strategy.owners, case.workers)
    owners = None if weights.are_equal else weights
    if policy is not None and strategy.staleness:
        raise UserError(f"{path}: paced jobs delay averages only without servers")
    if policy is None:
        return replace(
            all_reduce_case(case, strategy.runtime, {}),
            owners=owners,
            strategy=path,
            staleness=strategy.staleness,
            reduce_dtype=strategy.reduce_dtype,
        )
    given = case.servers if servers is None and not used.servers else servers
    count = servers_under(path, used, given)
    check_servers(str(path), strategy, count)
    return replace(
        case,
        scheduler=policy.name,
        settings={
            name: value for name, value in policy.settings.items() if name != schedulers.PARTITION
        },
        partition_bytes=strategy.partition_bytes,
        servers=count,
        owners=owners,
        strategy=path,
        routes=strategy.routes,
        reduce_dtype=strategy.reduce_dtype,
    )


def warmup_of(cases: Iterable[Case]) -> int:
    """The number of iterations after which none of ``cases`` changes its settings any more."""
    settled = (settles_after(case.runtime, case.settings) for case in cases)
    return max((WARMUP_ITERATIONS, *settled))


@dataclass(frozen=True)
class Plan:
    """The cases, and the measured iterations of each, split evenly over ``rounds`` jobs.

    In each round all cases run once, in order, so that changes of the machine affect all of them.
    All jobs without tuning make the same number of updates, so their parameters can be compared. A
    job fails if it still searches for its buckets after warm-up (``warmup_of``). ``controller``:
    schedulers that use plans get one. ``record``: save transfers and spans in the run directories.
    """

    cases: tuple[Case, ...]
    iterations: int
    rounds: int = 2
    warmup_iterations: int = WARMUP_ITERATIONS
    controller: bool = False
    record: bool = False
    idle_s: float = IDLE_S  # time for which workers idle at the end, to measure idle processor use

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
