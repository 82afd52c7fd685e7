"""The order on which the workers of a predicted job would agree.

A policy with the setting ``common_order`` has all workers plan one order, from the slowest worker's
ready times and the smallest bandwidth (``torch/retuning/common_order.py``). The bandwidth is what a
worker's link carries to servers: no more than its share of their links.
"""

from __future__ import annotations

import numpy as np

from byteprophet.job.cluster import Cluster
from byteprophet.job.job import Job
from byteprophet.job.policy import Policy
from byteprophet.job.times import Int64Array
from byteprophet.job.transports import Carried, share_of_servers
from byteprophet.schedulers import COMMON_ORDER, PLANNED_FOR


def agreed_policy(job: Job) -> Policy:
    """The policy of ``job``, which has servers, with the order that its workers agree on.

    It stays as it is if it plans none, or has been given one, or if no link is limited.
    """
    policy = job.push_policy
    return _agreed(policy, job.cluster, _ready_ns(job)) if _agrees(policy) else policy


def agreed_policy_of(job: Job, served: Carried) -> Policy:
    """The same for ``job``, which has two transports, of which servers carry ``served``."""
    policy = served.job.push_policy
    if not _agrees(policy):
        return policy
    ready_ns = _ready_ns(job)
    of_tensors = np.stack(
        [ready_ns[:, list(places)].max(axis=1) for places in served.parameters], axis=1
    )
    return _agreed(policy, job.cluster, of_tensors, share_of_servers(job))


def _agrees(policy: Policy) -> bool:
    settings = policy.settings
    has_plan = settings.get(PLANNED_FOR) and policy.ready_times
    return bool(settings.get(COMMON_ORDER)) and not has_plan


def _ready_ns(job: Job) -> Int64Array:
    """Of every worker and gradient, from the end of its forward pass on, shape (W, P)."""
    return np.stack([job.times.medians(worker)[1] for worker in range(job.workers)])


def _agreed(policy: Policy, cluster: Cluster, ready_ns: Int64Array, share: float = 1.0) -> Policy:
    """``share``: of workers' links, for what goes to servers."""
    own = [share * host.slower_bps for host in cluster.workers if host.slower_bps]
    served = [host.slower_bps for host in cluster.servers if host.slower_bps]
    if served:
        own.append(min(served) * len(cluster.servers) / len(cluster.workers))
    if not own:
        return policy
    offsets_ns = ready_ns - ready_ns.min(axis=1, keepdims=True)
    slowest_ns = offsets_ns[offsets_ns.max(axis=1).argmax()]
    rows = tuple((place, -1 - place, int(at_ns), 0) for place, at_ns in enumerate(slowest_ns))
    given_bps = policy.settings.get(PLANNED_FOR)
    settings = {**policy.settings, PLANNED_FOR: given_bps or max(1, round(min(own)))}
    return Policy(policy.name, settings, rows)
