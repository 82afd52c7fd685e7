"""The shortest iteration that any schedule can give a workload (prophet/bound.h)."""

from __future__ import annotations

from byteprophet import _core
from byteprophet.workload.model import Workload


def all_reduce_bound_ns(workload: Workload, *, bandwidth_bps: int | None, workers: int) -> int:
    """As ``iteration_bound_ns``, of workers that all-reduce among themselves.

    Of each tensor, every worker sends (workers - 1) / workers to reduce it and as much to gather
    it, whatever the algorithm, and receives the same. Prefixes of tensors in forward order are
    what must be through before a layer can run, as with servers.
    """
    moved = 2 * (workers - 1)
    return _core.iteration_bound_ns(
        [tensor.size_bytes * moved // workers for tensor in workload.tensors],
        workload.ready_ns(),
        [tensor.forward_ns for tensor in workload.tensors],
        backward_ns=workload.backward_ns,
        bandwidth_bps=bandwidth_bps,
        workers=workers,
        servers=workers,
        server_bandwidth_bps=None,
    )


def iteration_bound_ns(
    workload: Workload,
    *,
    bandwidth_bps: int | None,
    workers: int,
    servers: int,
    server_bandwidth_bps: int | None = None,
) -> int:
    """Nanoseconds; rates are of payload, per direction of each link (None: not limited)."""
    return _core.iteration_bound_ns(
        [tensor.size_bytes for tensor in workload.tensors],
        workload.ready_ns(),
        [tensor.forward_ns for tensor in workload.tensors],
        backward_ns=workload.backward_ns,
        bandwidth_bps=bandwidth_bps,
        workers=workers,
        servers=servers,
        server_bandwidth_bps=server_bandwidth_bps,
    )
