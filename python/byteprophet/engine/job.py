"""One simulated job: what it is, and what came out of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from byteprophet import _core, schedulers
from byteprophet.engine.layout import Int64Array, layout
from byteprophet.errors import UserError
from byteprophet.network import payload_bps
from byteprophet.timeline.tables import TRANSFER, Transfers
from byteprophet.workload import Workload
from byteprophet.workload.bound import iteration_bound_ns


@dataclass(frozen=True)
class Costs:
    """What a network and its hosts cost beside bandwidth.

    ``delay_ns``: one way, of everything; an acknowledgement is back after two. ``message_cost_ns``:
    of the sender's link, per push and per answer to a pull. ``sum_bps``: at which one of a server's
    ``sum_threads`` copies or adds up (None: in no time).
    """

    delay_ns: int = 200_000
    message_cost_ns: int = 30_000
    sum_bps: int | None = None
    sum_threads: int = 4


@dataclass(frozen=True)
class SimulatedJob:
    """A paced job, as ``bench.Case`` describes one, on a simulated network.

    Links have the rates that they would be configured to: ``bandwidth_bps`` each worker's, per
    direction; ``worker_bandwidth_bps`` those, by index, that have another; ``server_bandwidth_bps``
    each server's. None: not limited. ``settings`` and ``partition_bytes`` override the scheduler's
    own. ``known_profile``: the policy knows from the start when tensors become ready.
    ``answer_by_priority``: servers answer the most urgent pull first, not the first due; as they do
    under all schedulers but "stock".
    Measured are the ``iterations`` after ``warmup_iterations``.

    "stock" is approximated: first in, first out, pulls requested after acknowledgements in the
    socket of the pushes, acknowledgements behind pull responses, a barrier at each step.
    """

    workload: Workload
    scheduler: str
    settings: Mapping[str, int] = field(default_factory=dict)
    partition_bytes: int | None = None
    workers: int = 2
    servers: int = 1
    bandwidth_bps: int | None = None
    worker_bandwidth_bps: Mapping[int, int | None] = field(default_factory=dict)
    server_bandwidth_bps: int | None = None
    costs: Costs = field(default_factory=Costs)
    answer_by_priority: bool = True
    known_profile: bool = False
    iterations: int = 4
    warmup_iterations: int = 5
    record: bool = False

    @property
    def bound_ns(self) -> int:
        """The shortest possible iteration of the job's slowest worker."""
        rates_bps = [rate for rate in self.rates_bps() if rate is not None]
        return iteration_bound_ns(
            self.workload,
            bandwidth_bps=payload_bps(min(rates_bps, default=None)),
            workers=self.workers,
            servers=self.servers,
            server_bandwidth_bps=payload_bps(self.server_bandwidth_bps),
        )

    def rates_bps(self) -> list[int | None]:
        """Of the workers' links, as configured."""
        return [
            self.worker_bandwidth_bps.get(worker, self.bandwidth_bps)
            for worker in range(self.workers)
        ]


@dataclass(frozen=True)
class SimulatedRun:
    """What came out of a job. Times are virtual nanoseconds since its start.

    ``start_ns``: shape (workers, warm-up + iterations + 1), the start of each iteration and the end
    of the last; ``backward_start_ns``: without the last column. ``busy_ns``, ``link_bytes``: shape
    (2, workers + servers), of each link, up then down, over the whole job. ``transfers``: of each
    worker, in order of completion, if recorded; else empty.
    """

    job: SimulatedJob
    start_ns: Int64Array
    backward_start_ns: Int64Array
    busy_ns: Int64Array
    link_bytes: Int64Array
    transfers: tuple[Transfers, ...]
    end_ns: int
    events: int

    @property
    def iteration_ns(self) -> Int64Array:
        """Of the slowest worker, shape (iterations,), after warm-up."""
        measured: Int64Array = np.diff(self.start_ns, axis=1)[:, self.job.warmup_iterations :]
        slowest: Int64Array = measured.max(axis=0)
        return slowest

    @property
    def median_ns(self) -> int:
        """The median of ``iteration_ns``."""
        return int(np.median(self.iteration_ns))

    @property
    def bound_ratio(self) -> float:
        """The median over the bound."""
        return self.median_ns / self.job.bound_ns

    @property
    def utilisation(self) -> npt.NDArray[np.float64]:
        """The share of time that each link is busy, shaped like ``busy_ns``."""
        return self.busy_ns / max(1, self.end_ns)


def simulate(job: SimulatedJob) -> SimulatedRun:
    """Run ``job`` on virtual time; UserError where it makes no sense."""
    stock = job.scheduler == schedulers.STOCK
    settings, partition_bytes = schedulers.resolve(job.scheduler, job.settings, job.partition_bytes)
    _check(job)
    arrays = layout(job.workload, partition_bytes, job.servers)
    try:
        result: dict[str, Any] = _core.simulate(
            "fifo" if stock else job.scheduler,
            settings,
            forward_ns=arrays.forward_ns,
            ready_ns=arrays.ready_ns,
            first_partition=arrays.first_partition,
            size_bytes=arrays.size_bytes,
            server=arrays.server,
            backward_ns=job.workload.backward_ns,
            iterations=job.warmup_iterations + job.iterations,
            worker_bandwidth_bps=_rates(*job.rates_bps()),
            server_bandwidth_bps=_rates(*[job.server_bandwidth_bps] * job.servers),
            delay_ns=job.costs.delay_ns,
            message_cost_ns=job.costs.message_cost_ns,
            sum_bps=job.costs.sum_bps or 0,
            sum_threads=job.costs.sum_threads,
            answer_by_priority=job.answer_by_priority and not stock,
            stock_transport=stock,
            barrier=stock,
            known_profile=job.known_profile,
            record=job.record,
        )
    except ValueError as error:
        raise UserError(str(error)) from None
    return SimulatedRun(
        job=job,
        start_ns=result["start_ns"],
        backward_start_ns=result["backward_start_ns"],
        busy_ns=result["busy_ns"],
        link_bytes=result["bytes"],
        transfers=tuple(raw.view(TRANSFER) for raw in result["transfers"]),
        end_ns=result["end_ns"],
        events=result["events"],
    )


def _check(job: SimulatedJob) -> None:
    for name, smallest in (
        ("workers", 1),
        ("servers", 1),
        ("iterations", 1),
        ("warmup_iterations", 0),
    ):
        if getattr(job, name) < smallest:
            raise UserError(f"simulated job: {name} must be at least {smallest}")
    for worker in job.worker_bandwidth_bps:
        if not 0 <= worker < job.workers:
            raise UserError(f"simulated job: worker_bandwidth_bps: there is no worker {worker}")


def _rates(*rates_bps: int | None) -> Int64Array:
    """What the core takes: of payload, 0 for not limited."""
    return np.array([payload_bps(rate) or 0 for rate in rates_bps], dtype=np.int64)
