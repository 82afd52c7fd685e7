"""A recorded job under a strategy of two transports: what it needs of the run, and links' loads.

Such jobs cannot be replayed yet. So their loads are sums of what each gradient's way moves. Of an
all-reduce of m bytes, of which a rank owns s, m + (P - 2) s cross its link in each direction.
What goes to servers crosses each worker's link once, and P times that of its server.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from byteprophet.errors import UserError
from byteprophet.job import Host, Job
from byteprophet.job.owners import Owners
from byteprophet.job.partitions import partitions_of_job
from byteprophet.job.routes import MESH, SERVERS, bytes_of
from byteprophet.job.strategy_file import Used, check_servers
from byteprophet.measure.parameters import measure_parameters
from byteprophet.measure.run import Run
from byteprophet.replay.under import check_computation, first_difference
from byteprophet.strategy.mixed import served_job


def routable(run: Run, job: Job, servers: int | None) -> Job:
    """``job``, which ``run`` recorded, gradient by gradient and with servers in its cluster.

    ``servers``: how many a job that was recorded without is to have; their links are like the
    fastest worker's. Raises ``UserError`` if it is missing then, or differs from what was recorded.
    """
    if job.servers:
        if servers not in (None, job.servers):
            raise UserError(
                f"--servers {servers}: {run.directory} was recorded with {job.servers} server(s), "
                "whose links it has measured"
            )
        model, times = measure_parameters(run, job)
        strategy = replace(job.strategy, keys=(), numbers=())
        return Job(model, times, job.cluster, strategy, job.policy)
    if servers is None or servers < 1:
        raise UserError(f"{run.directory} has no servers: say how many there are to be: --servers")
    rate_bps = max(host.slower_bps for host in job.cluster.workers)
    if not all(host.slower_bps for host in job.cluster.workers):
        rate_bps = 0
    hosts = (Host(rate_bps, rate_bps),) * servers
    return replace(job, cluster=replace(job.cluster, servers=hosts))


def under_routes(run: Run, job: Job, used: Used, path: str) -> Job:
    """``job``, which ``run`` recorded, under the strategy ``used``; ``path`` names it in messages.

    Raises ``UserError`` if the strategy is for another model or other servers, or if workers would
    compute otherwise than in ``job``.
    """
    job = routable(run, job, None if job.servers else used.servers)
    difference = first_difference(used.model, job.model)
    if difference:
        raise UserError(f"{path} is the strategy of another model: {difference}")
    check_computation(path, used, job)
    check_servers(path, used.strategy, job.servers)
    if used.strategy.owners and len(used.strategy.owners) != job.workers:
        raise UserError(
            f"{path}: it has owners' weights for {len(used.strategy.owners)} ranks, and the job "
            f"has {job.workers}"
        )
    return replace(job, strategy=used.strategy, policy=used.policy)


def moved_bytes(job: Job) -> dict[str, int]:
    """What crosses each link of ``job`` in one iteration, in each direction, by the host's name.

    Small gradients that share buffers are counted as if they did not.
    """
    strategy = job.strategy
    divisor = 2 if strategy.reduce_dtype else 1
    served_bytes = sum(bytes_of(job.model, strategy.routes, SERVERS)) // divisor
    meshed = [size // divisor for size in bytes_of(job.model, strategy.routes, MESH)]
    owners = Owners.of(strategy.owners, job.workers)
    owned = [owners.sizes(size_bytes) for size_bytes in meshed]
    found = {}
    for rank in range(job.workers):
        own_bytes = sum(sizes[rank] for sizes in owned)
        found[f"worker {rank}"] = served_bytes + sum(meshed) + (job.workers - 2) * own_bytes
    parts = partitions_of_job(served_job(job))
    summed = np.bincount(parts.server, parts.size_bytes, job.servers)
    for server in range(job.servers):
        found[f"server {server}"] = job.workers * int(summed[server])
    return found
