"""The job with servers and without, on given resources: what candidates are made from.

A search compares strategies of one transport, of the other, and of both. So it needs the job under
each. A recorded run has been under one of them: what messages of the other cost is then assumed
(``job/assumed_costs.py``), as ``byteprophet strategy explain`` does. A workload has been under
none, and assumes both. Trials tell what is wrong with that (``ranker.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from byteprophet import schedulers
from byteprophet.allreduce.strategies import strategy_for
from byteprophet.errors import UserError
from byteprophet.job import Cluster, Costs, Host, Job, Policy, Strategy
from byteprophet.job.assumed_costs import mesh_costs, served_costs
from byteprophet.job.strategy import BYTEPS, DEAR_PLANNED, MIXED, OURS
from byteprophet.job.strategy_file import Used
from byteprophet.measure.parameters import measure_parameters
from byteprophet.measure.run import Run
from byteprophet.measure.servers import Measured
from byteprophet.optimize.outcome import measured_ns, replayed
from byteprophet.optimize.recorded import check_model_known
from byteprophet.strategy.resources import Resources, check_roles, check_workers, on_resources
from byteprophet.workload.as_job import model_of, times_of
from byteprophet.workload.model import Workload

_ITERATIONS = 6


@dataclass(frozen=True)
class Bases:
    """A job, of which all candidates are variants.

    Attributes:
        mesh: without servers, under ``dear-planned`` or as it was recorded.
        served: with servers, under a policy; None if the resources have no servers.
        routed: the same gradient by gradient, for strategies of two transports, which shard what
            ``mesh`` may shard; None likewise.
        starts_servers: whether a strategy with servers must say how many there are, because the
            job is started without.
        measured_ns: an iteration as it was recorded; None of a workload.
        replay_error: of the recorded job's replay; 0 of a workload.
        recorded: the job under the strategy with which it was recorded; None of a workload. It has
            the servers of its record if the resources have none.
    """

    mesh: Job
    served: Job | None
    routed: Job | None
    starts_servers: bool
    measured_ns: int | None = None
    replay_error: float = 0.0
    recorded: Job | None = None

    @property
    def baseline(self) -> Job:
        """What runs beside the candidates of a trial (``trials.py``)."""
        return self.recorded or self.served or self.mesh

    @property
    def fits_recorded(self) -> bool:
        """Whether the resources have what the job needs as it was recorded."""
        return self.recorded is not None and (self.served is not None or not self.recorded.servers)

    @property
    def servers(self) -> tuple[Host, ...]:
        """The hosts of the servers that strategies may use."""
        return () if self.routed is None else self.routed.cluster.servers

    def used(self, job: Job) -> Used:
        """The strategy of ``job``, one of the variants, as a file has it."""
        servers = job.servers if self.starts_servers and job.policy is not None else 0
        return Used(job.model, job.strategy, 0, job.policy, servers)


def bases_of_workload(workload: Workload, resources: Resources) -> Bases:
    """The bases of a workload, which computes as it says on all workers of ``resources``."""
    check_roles(resources)
    workers = len(resources.workers)
    model, times = model_of(workload), times_of(workload, workers, _ITERATIONS)
    cluster = Cluster(
        tuple(host.link for host in resources.workers), costs=resources.costs(mesh_costs(0))
    )
    mesh = _under_dear(Job(model, times, cluster, Strategy(DEAR_PLANNED)))
    served = _with_servers(mesh, resources, resources.costs(served_costs(0)))
    return Bases(mesh, served, served, starts_servers=True)


def bases_of_run(run: Run, measured: Measured, resources: Resources) -> Bases:
    """The bases of the job that ``run`` recorded.

    Raises ``UserError`` if its script cannot be given other strategies, or if it does not fit
    ``resources``.
    """
    check_roles(resources)
    job = measured.job
    why = _why_not(run.config, job)
    if why:
        raise UserError(f"{run.directory}: {why}")
    check_model_known(run, job)
    check_workers(job, resources)
    was_ns, (_, _, error) = measured_ns(measured), replayed(measured)
    if job.strategy.runtime != BYTEPS:
        mesh = on_resources(job, resources)
        served = _with_servers(mesh, resources, served_costs(mesh.cluster.costs.delay_ns))
        return Bases(mesh, served, _routed(served, mesh), True, was_ns, error, mesh)
    model, times = measure_parameters(run, job)
    served = on_resources(job, resources) if resources.servers else None
    costs = mesh_costs(resources.costs(job.cluster.costs).delay_ns)
    cluster = Cluster(tuple(host.link for host in resources.workers), costs=costs)
    mesh = _under_dear(Job(model, times, cluster, Strategy(DEAR_PLANNED)))
    if served is None:
        with_servers = replace(
            cluster, servers=job.cluster.servers, costs=resources.costs(job.cluster.costs)
        )
        recorded = replace(job, cluster=with_servers)
        return Bases(mesh, None, None, False, was_ns, error, recorded)
    if served.servers != job.servers:
        raise UserError(
            f"{run.directory} was recorded with {job.servers} server(s), and the resources have "
            f"{served.servers}: what those carry was not measured"
        )
    strategy = replace(served.strategy, keys=(), numbers=())
    both = replace(served.cluster, mesh_costs=costs)
    routed = Job(model, times, both, strategy, served.policy)
    return Bases(mesh, served, routed, False, was_ns, error, served)


def _why_not(config: Mapping[str, Any], job: Job) -> str | None:
    """Why a recorded job cannot be given strategies of all kinds; None if it can."""
    if job.strategy.runtime == MIXED:
        return "it was recorded with both transports: give the search a run of one of them"
    if job.strategy.runtime not in (BYTEPS, *OURS):
        return (
            f"a script under {job.strategy.runtime} takes no strategies of other architectures: "
            "use byteprophet optimize"
        )
    if job.strategy.changes_gradients:
        return "its gradients are cast or accumulated: record it without that"
    if job.strategy.staleness:
        return "averages are delayed in it: record it without that"
    if config["local_ranks"] > 1:
        return "its workers have several local ranks, which only servers support"
    if job.policy is not None and job.policy.name == schedulers.STOCK:
        return f"{schedulers.STOCK} does not tell when its gradients were ready"
    return None


def _under_dear(job: Job) -> Job:
    return replace(job, strategy=strategy_for(job, DEAR_PLANNED))


def _with_servers(mesh: Job, resources: Resources, costs: Costs) -> Job | None:
    """``mesh`` with the servers of ``resources``, under the default policy; None: it has none.

    ``costs``: of messages to servers.
    """
    if not resources.servers:
        return None
    settings, partition_bytes = schedulers.resolve(schedulers.DEFAULT, {}, None)
    policy = Policy(schedulers.DEFAULT, {**settings, schedulers.PARTITION: partition_bytes})
    strategy = Strategy(
        BYTEPS,
        partition_bytes=partition_bytes,
        regions=mesh.strategy.regions,
        autocast=mesh.strategy.autocast,
    )
    hosts = tuple(host.link for host in resources.servers)
    cluster = Cluster(mesh.cluster.workers, hosts, costs, mesh.cluster.costs)
    return Job(mesh.model, mesh.times, cluster, strategy, policy)


def _routed(served: Job | None, mesh: Job) -> Job | None:
    """``served`` for strategies of two transports, which shard nothing that ``mesh`` may not."""
    if served is None:
        return None
    return replace(served, strategy=replace(served.strategy, shardable=mesh.strategy.shardable))
