"""The shortest iteration that any schedule can give a workload (prophet/bound.h)."""

from __future__ import annotations

from byteprophet import _core
from byteprophet.workload.model import Workload


def all_reduce_bound_ns(workload: Workload, *, bandwidth_bps: int | None, workers: int) -> int:
    """As ``iteration_bound_ns``, of workers that all-reduce among themselves.

    Prefixes of tensors in forward order are what must be through before a layer can run, as with
    servers.
    """
    moved = [all_reduced_bytes(tensor.size_bytes, workers) for tensor in workload.tensors]
    return _bound_ns(workload, moved, bandwidth_bps, workers, workers, None)


def all_reduced_bytes(size_bytes: int, workers: int) -> int:
    """What every worker sends of so many bytes that all of them reduce, and receives.

    (workers - 1) / workers to reduce them and as much to gather them, whatever the algorithm.
    """
    return size_bytes * 2 * (workers - 1) // workers


def iteration_bound_ns(
    workload: Workload,
    *,
    bandwidth_bps: int | None,
    workers: int,
    servers: int,
    server_bandwidth_bps: int | None = None,
) -> int:
    """Nanoseconds; rates are of payload, per direction of each link (None: not limited)."""
    sizes = [tensor.size_bytes for tensor in workload.tensors]
    return _bound_ns(workload, sizes, bandwidth_bps, workers, servers, server_bandwidth_bps)


def _bound_ns(
    workload: Workload,
    moved_bytes: list[int],
    bandwidth_bps: int | None,
    workers: int,
    servers: int,
    server_bandwidth_bps: int | None,
) -> int:
    return _core.iteration_bound_ns(
        moved_bytes,
        workload.ready_ns(),
        [tensor.forward_ns for tensor in workload.tensors],
        backward_ns=workload.backward_ns,
        bandwidth_bps=bandwidth_bps,
        workers=workers,
        servers=servers,
        server_bandwidth_bps=server_bandwidth_bps,
    )
