"""A job with servers on virtual time, and its result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from byteprophet import _core, schedulers
from byteprophet.bound import bound_ns
from byteprophet.errors import UserError
from byteprophet.job import Job
from byteprophet.job.partitions import partitions_of_job
from byteprophet.job.times import Int64Array
from byteprophet.timeline.tables import TRANSFER, Transfers

ITERATIONS, WARMUP_ITERATIONS = 4, 5


@dataclass(frozen=True)
class SimulatedRun:
    """What came out of a job. Times are virtual nanoseconds since its start.

    ``start_ns``: shape (workers, warm-up + iterations + 1), the start of each iteration and the end
    of the last; ``backward_start_ns``: without the last column. ``busy_ns``, ``link_bytes``: shape
    (2, workers + servers), of each link, up then down, over the whole job. ``transfers``: of each
    worker, in order of completion, if recorded; else empty.
    """

    job: Job
    warmup_iterations: int
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
        measured: Int64Array = np.diff(self.start_ns, axis=1)[:, self.warmup_iterations :]
        slowest: Int64Array = measured.max(axis=0)
        return slowest

    @property
    def median_ns(self) -> int:
        """The median of ``iteration_ns``."""
        return int(np.median(self.iteration_ns))

    @property
    def bound_ratio(self) -> float:
        """The median over the bound."""
        return self.median_ns / bound_ns(self.job)

    @property
    def utilisation(self) -> npt.NDArray[np.float64]:
        """The share of time that each link is busy, shaped like ``busy_ns``."""
        return self.busy_ns / max(1, self.end_ns)


def simulate(
    job: Job,
    *,
    iterations: int = ITERATIONS,
    warmup_iterations: int = WARMUP_ITERATIONS,
    known_profile: bool = False,
    answer_by_priority: bool = True,
    record: bool = False,
) -> SimulatedRun:
    """Run ``job`` on virtual time; UserError where it makes no sense.

    All workers compute alike in all iterations, for the median times of the first worker.
    ``iterations`` are measured after ``warmup_iterations``. ``known_profile``: the policy knows
    from the start when tensors become ready. ``answer_by_priority``: servers answer the most urgent
    pull first, not the first due; as they do under all schedulers but "stock".

    "stock" is approximated: first in, first out, pulls requested after acknowledgements in the
    socket of the pushes, acknowledgements behind pull responses, a barrier at each step.
    """
    for what, count, least in (
        ("iterations", iterations, 1),
        ("warmup_iterations", warmup_iterations, 0),
    ):
        if count < least:
            raise UserError(f"simulated job: {what} must be at least {least}")
    policy, costs = job.push_policy, job.cluster.costs
    stock = policy.name == schedulers.STOCK
    parts = partitions_of_job(job)
    forward_ns, ready_ns, backward_ns, _ = job.times.medians(0)
    try:
        result: Mapping[str, Any] = _core.simulate(
            "fifo" if stock else policy.name,
            dict(policy.settings),
            forward_ns=forward_ns,
            ready_ns=ready_ns,
            first_partition=parts.first,
            size_bytes=parts.size_bytes,
            server=parts.server,
            backward_ns=backward_ns,
            iterations=warmup_iterations + iterations,
            worker_bandwidth_bps=np.array([host.up_bps for host in job.cluster.workers], np.int64),
            server_bandwidth_bps=np.array([host.up_bps for host in job.cluster.servers], np.int64),
            delay_ns=costs.delay_ns,
            message_cost_ns=costs.message_cost_ns,
            sum_bps=round(8e9 / costs.sum_ns_per_byte) if costs.sum_ns_per_byte else 0,
            sum_threads=costs.sum_threads,
            answer_by_priority=answer_by_priority and not stock,
            stock_transport=stock,
            barrier=stock,
            known_profile=known_profile,
            record=record,
        )
    except ValueError as error:
        raise UserError(str(error)) from None
    return SimulatedRun(
        job=job,
        warmup_iterations=warmup_iterations,
        start_ns=result["start_ns"],
        backward_start_ns=result["backward_start_ns"],
        busy_ns=result["busy_ns"],
        link_bytes=result["bytes"],
        transfers=tuple(raw.view(TRANSFER) for raw in result["transfers"]),
        end_ns=result["end_ns"],
        events=result["events"],
    )
