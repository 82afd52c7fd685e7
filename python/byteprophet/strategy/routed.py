"""A recorded job under a strategy of two transports: what the run tells, and what is assumed.

The run may have been recorded under either transport, or under both. It tells how workers compute,
how fast the links are, and what messages of its own transport cost. Another run of the same job may
tell those of the other transport; else they have the costs of ``job/assumed_costs.py``.
"""

from __future__ import annotations

from dataclasses import replace

from byteprophet.errors import UserError
from byteprophet.job import Cluster, Costs, Host, Job
from byteprophet.job.assumed_costs import mesh_costs, served_costs
from byteprophet.job.strategy import BYTEPS, MIXED, OURS
from byteprophet.job.strategy_file import Used
from byteprophet.job.transports import share_of_servers
from byteprophet.measure.parameters import measure_parameters
from byteprophet.measure.run import Run
from byteprophet.replay.all_reduce import with_updates
from byteprophet.replay.ps import on_link
from byteprophet.replay.under import check_computation, check_fits, checked_policy


def routable(run: Run, job: Job, servers: int | None, other: Job | None = None) -> Job:
    """``job``, which ``run`` recorded, gradient by gradient and with both transports' costs.

    ``servers``: how many a job that was recorded without is to have; their links are like the
    fastest worker's. ``other``: the same job as it was recorded under the other transport, whose
    messages cost what that record says. Raises ``UserError`` if ``servers`` is missing then, or
    differs from what was recorded, or if ``other`` has the same transport.
    """
    if job.servers:
        if servers not in (None, job.servers):
            raise UserError(
                f"--servers {servers}: {run.directory} was recorded with {job.servers} server(s), "
                "whose links it has measured: leave out --servers, or record the job with as many"
            )
        if job.strategy.runtime == MIXED:
            if other is not None:
                raise UserError(f"--other: {run.directory} was recorded with both transports")
            return job
        model, times = measure_parameters(run, job)
        strategy = replace(job.strategy, keys=(), numbers=())
        there = _other_costs(job, other) or mesh_costs(job.cluster.costs.delay_ns)
        cluster = replace(job.cluster, mesh_costs=there)
        return Job(model, times, cluster, strategy, job.policy)
    if servers is None or servers < 1:
        raise UserError(f"{run.directory} has no servers: say how many there are to be: --servers")
    rate_bps = max(host.slower_bps for host in job.cluster.workers)
    if not all(host.slower_bps for host in job.cluster.workers):
        rate_bps = 0
    costs = job.cluster.costs
    hosts = (Host(rate_bps, rate_bps),) * servers
    there = _other_costs(job, other) or served_costs(costs.delay_ns)
    cluster = Cluster(job.cluster.workers, hosts, there, costs)
    return replace(job, cluster=cluster)


def _other_costs(job: Job, other: Job | None) -> Costs | None:
    if other is None:
        return None
    if other.strategy.runtime not in (BYTEPS, *OURS):
        raise UserError(f"--other: recorded under {other.strategy.runtime}, which takes no part")
    if (other.servers > 0) == (job.servers > 0):
        how = "with servers" if job.servers else "without servers"
        raise UserError(f"--other: both runs were recorded {how}")
    return other.cluster.costs


def under_routes(
    run: Run,
    job: Job,
    used: Used,
    path: str,
    other: Job | None = None,
    servers: int | None = None,
) -> Job:
    """``job``, which ``run`` recorded, under the strategy ``used``; ``path`` names it in messages.

    ``other``: as in ``routable``. ``servers``: how many there are to be, if neither ``job`` nor the
    file says it. Raises ``UserError`` if the strategy is for another model or other servers, if its
    policy or a setting is unknown, or if workers would compute otherwise than in ``job``.
    """
    if used.servers and servers not in (None, used.servers):
        raise UserError(f"--servers {servers}: {path} says {used.servers}")
    if not job.servers:
        servers = used.servers or servers
    job = routable(run, job, servers, other)
    check_fits(path, used, job)
    check_computation(path, used, job)
    policy = checked_policy(path, used)
    return with_updates(replace(job, strategy=used.strategy, policy=policy), job)


def on_its_share(job: Job) -> Job:
    """``job`` with the partition size that its policy would choose for the servers' share of links.

    A policy that adapts its partitions to the link estimates what its own messages get of it.
    """
    slowest_bps = min(host.slower_bps for host in job.cluster.workers)
    return on_link(job, round(slowest_bps * share_of_servers(job)))
