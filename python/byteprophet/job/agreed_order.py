"""The order on which the workers of a predicted job would agree.

A policy with the setting ``common_order`` has all workers plan one order, from the slowest worker's
ready times and the smallest bandwidth (``torch/retuning/common_order.py``). The bandwidth is what a
worker's link carries to servers: no more than its share of their links.
"""

from __future__ import annotations

import numpy as np

from byteprophet.job.job import Job
from byteprophet.job.policy import Policy
from byteprophet.schedulers import COMMON_ORDER, PLANNED_FOR


def with_agreed_order(job: Job) -> Policy:
    """The policy of ``job``, which has servers, with the order that its workers agree on.

    It stays as it is if it plans none, or has been given one, or if no link is limited.
    """
    policy = job.push_policy
    if not policy.settings.get(COMMON_ORDER) or policy.settings.get(PLANNED_FOR):
        return policy
    bandwidth_bps = _served_bps(job)
    if not bandwidth_bps:
        return policy
    ready_ns = np.stack([job.times.medians(worker)[1] for worker in range(job.workers)])
    ready_ns -= ready_ns.min(axis=1, keepdims=True)
    slowest = ready_ns[ready_ns.max(axis=1).argmax()]
    rows = tuple((place, -1 - place, int(at_ns), 0) for place, at_ns in enumerate(slowest))
    return Policy(policy.name, {**policy.settings, PLANNED_FOR: bandwidth_bps}, rows)


def _served_bps(job: Job) -> int:
    """The smallest rate to all servers together that a worker has; 0: no link is limited.

    A mesh with a rate of its own leaves them the rest of a worker's link.
    """
    mesh_bps = job.strategy.mesh_bps
    own = [max(1, host.slower_bps - mesh_bps) for host in job.cluster.workers if host.slower_bps]
    served = [host.slower_bps for host in job.cluster.servers if host.slower_bps]
    if served:
        own.append(min(served) * len(job.cluster.servers) // job.workers)
    return min(own, default=0)
