"""Predicts the jobs of ``hybrid.py``: their cluster, the simulator, and a naive baseline.

The cluster is one core per node, because every rank has a host of its own. Its operators are those
that ``byteprophet costs collect`` has measured on one core, and its links those of ``tc`` with
gloo's times and constants from ``hybrid_links.py``. The simulator counts two bytes per element
where the jobs have four, so rates of memory and links are halved.

A job under our own runtime is simulated as far as its computation goes. That makes it a workload,
which is planned and replayed as a recorded one would be. Its messages cost what is assumed where
none were recorded. The updater's threads are not paced, so updates are not slowed. Its exchange
takes less from operators beside it than gloo's: how much, a job of the model for tuning says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from hybrid_beside import Lost
from hybrid_cases import ELEMENT_BYTES, SIMULATED_BYTES, Case
from hybrid_links import Alone, fitted
from scipy.optimize import bisect

from byteprophet import job as jobs
from byteprophet.allreduce.strategies import strategy_for
from byteprophet.job.assumed_costs import mesh_costs
from byteprophet.network import PAYLOAD_SHARE
from byteprophet.optimize.evaluate import Evaluator
from byteprophet.simulate.calibrate.fit import Calibrated, calibrate
from byteprophet.simulate.clusters.beliefs import Beliefs, Source
from byteprophet.simulate.clusters.description import Cluster, Gpu, Network, Node
from byteprophet.simulate.compile.program import Program
from byteprophet.simulate.compile.steps import CollectiveKind, Compute
from byteprophet.simulate.costs.sources import with_collectives, with_costs
from byteprophet.simulate.costs.table import CostTable
from byteprophet.simulate.execute.simulate import block_costs, simulate_program
from byteprophet.simulate.execute.tables import Tables
from byteprophet.simulate.execute.workload import workload_of
from byteprophet.simulate.explain.collectives import Called, inferred_calls
from byteprophet.workload.as_job import model_of, times_of

Counted = Counter[tuple[str, str, int]]
"""Collectives by kind, axes and bytes."""

_HALVED = ELEMENT_BYTES // SIMULATED_BYTES
_ROOM = 4
"""Peaks are so many times what was measured: small operators are faster than large ones, since
caches hold them, and an efficiency is at most 1."""
_MEMORY_BYTES = 1 << 40
_BASE_NS, _STEP_NS, _EFFICIENCY = 1_000_000, 500_000, 0.95
"""Of gloo's collectives, before any is measured."""
_LEAST_LOST = 0.01
_LOST_UNCERTAINTY = 0.2
"""Of what operators and collectives lose to each other."""
_FITS = 3
"""The next fit begins with the constants that one gives, so that guesses count little."""
_ITERATIONS = 6
_LARGEST_SLOWDOWN, _SLOWDOWN_ERROR = 100.0, 0.001
_OVERLAP_PASSES = 4
"""How often it is found out how slowly a job computes while its link is busy."""
_UNKNOWN = 1.5
"""The uncertainty of these latencies."""
_UNCERTAINTIES = {
    "gpu.matmul_efficiency": 0.1,
    "gpu.attention_efficiency": 0.1,
    "gpu.memory_efficiency": 0.1,
    "gpu.launch_ns": 0.5,
    "node.base_ns": _UNKNOWN,
    "network.step_ns": _UNKNOWN,
    "network.efficiency": 0.1,
}
"""Relative standard deviations, before collectives and jobs are looked at."""


@dataclass(frozen=True)
class Ran:
    """A case that ran, as ``calibrate`` takes it."""

    case: Case
    program: Program
    measured_ns: float


def slowed(table: CostTable, times: float) -> CostTable:
    """The costs of operators on a core that is so many times slower. Collectives stay."""
    slower: dict[str, Any] = {}
    for field in fields(table):
        cost = getattr(table, field.name)
        if isinstance(cost, tuple) and field.name != "collectives":
            slower[field.name] = tuple((*what, ns * times) for *what, ns in cost)
        elif field.name in ("memory_bytes_per_s", "attention_flops_per_s", "update_bytes_per_s"):
            slower[field.name] = cost / times
    return replace(table, launch_ns=table.launch_ns * times, **slower)


def cluster_of(
    table: CostTable,
    times: Sequence[Alone],
    rate_bps: int,
    queue_ns: int = 0,
    lost: Lost | None = None,
) -> Cluster:
    """The cluster of the jobs, from what was measured alone: operators, collectives, and queues.

    ``lost``: what operators and collectives lose to each other, unless devices are paced.
    """
    cluster = _described(table, rate_bps)
    if lost is not None:
        gpu = replace(
            cluster.gpu,
            overlap_slowdown=max(_LEAST_LOST, lost.overlap),
            collective_slowdown=max(_LEAST_LOST, lost.collective),
        )
        source = Source("measured on this machine", _LOST_UNCERTAINTY)
        both = dict.fromkeys(("gpu.overlap_slowdown", "gpu.collective_slowdown"), source)
        beliefs = Beliefs({**cluster.beliefs.sources, **both})
        cluster = replace(cluster, gpu=gpu, beliefs=beliefs)
    if not times:
        return cluster
    some = _in_simulated_bytes(fitted(times))
    for _ in range(_FITS):
        found = calibrate(some, cluster, "collectives on this machine").cluster
        cluster = replace(found, beliefs=cluster.beliefs)
    cluster = found
    rows = [
        (one.program.kind.value, one.program.ranks, round(one.program.size_bytes), one.measured_ns)
        for one in _in_simulated_bytes(times)
    ]
    queued = replace(cluster, network=replace(cluster.network, queue_ns=queue_ns))
    return with_collectives(queued, rows)


def modelled_ns(times: Sequence[Alone], cluster: Cluster) -> list[float]:
    """What a cluster's constants alone say of collectives that were measured."""
    plain = replace(cluster, collectives=None)
    return [one.program.time_ns(plain) for one in _in_simulated_bytes(times)]


def _in_simulated_bytes(times: Iterable[Alone]) -> list[Alone]:
    return [
        replace(one, program=replace(one.program, size_bytes=one.program.size_bytes / _HALVED))
        for one in times
    ]


def _described(table: CostTable, rate_bps: int) -> Cluster:
    """The cluster, with guesses of what collectives cost."""
    fastest = max(2 * m * n * k / ns * 1e9 for m, n, k, ns in table.products)
    memory = table.memory_bytes_per_s / _HALVED
    gpu = Gpu(
        name="one core",
        multiprocessors=1,
        memory_bytes=_MEMORY_BYTES,
        flops_per_s=round(_ROOM * fastest),
        memory_bytes_per_s=round(_ROOM * memory),
        matmul_efficiency=1 / _ROOM,
        attention_efficiency=0.5 / _ROOM,
        memory_efficiency=1 / _ROOM,
        launch_ns=1,
        reserved_bytes=1,
    )
    unused = rate_bps // 8  # nothing travels in a node
    node = Node(gpus=1, gpu_bytes_per_s=unused, efficiency=1.0, step_ns=1, base_ns=_BASE_NS)
    network = Network(
        adapters=1,
        adapter_bits_per_s=rate_bps // _HALVED,
        efficiency=_EFFICIENCY,
        step_ns=_STEP_NS,
        ring_only=True,
        all_reduce_only=True,
        collectives_at_once=2,
        requests_in_line=True,
    )
    cluster = with_costs(
        Cluster("namespaces on this machine", gpu, node, network),
        replace(
            table,
            memory_bytes_per_s=memory,
            update_bytes_per_s=table.update_bytes_per_s / _HALVED,
        ),
    )
    exact = dict.fromkeys(("node.step_ns", "node.efficiency"), 0.0)
    sources = {
        name: Source("measured on this machine", uncertainty)
        for name, uncertainty in {**_UNCERTAINTIES, **exact}.items()
    }
    return replace(cluster, beliefs=Beliefs(sources))


def calibrated(cluster: Cluster, tuned: Sequence[Ran]) -> Calibrated:
    """The cluster with constants from the jobs that they may be fitted on."""
    return calibrate(tuned, cluster, "jobs on this machine")


def predicted_ns(
    case: Case, cluster: Cluster, times_slowed: int, own_slowdown: float | None = None
) -> float:
    """The predicted time of an iteration, whose operators are so many times slower than here.

    ``own_slowdown``: of operators beside our own exchange; None: as beside gloo's collectives.
    """
    if case.runtime:
        beside = cluster.gpu.overlap_slowdown if own_slowdown is None else own_slowdown
        return _own_ns(_own_job(case, cluster, times_slowed), beside)
    return float(simulate_program(case.program, cluster).iteration_ns)


def own_slowdown(ran: Ran, cluster: Cluster) -> float:
    """How much longer operators take beside our own exchange, from a job that ran under it."""
    job = _own_job(ran.case, cluster, 1)

    def late_ns(slowdown: float) -> float:
        return _own_ns(job, slowdown) - ran.measured_ns

    if late_ns(0.0) >= 0:
        return 0.0
    return float(bisect(late_ns, 0.0, _LARGEST_SLOWDOWN, xtol=_SLOWDOWN_ERROR))


def _own_ns(job: jobs.Job, overlap_slowdown: float) -> float:
    """The iteration of a job under our own runtime, which computes slower while its link is busy.

    Replay knows no such slowdown, so all operators take longer by the link's share of the time.
    """
    ranks, rate_bps = job.workers, job.cluster.workers[0].up_bps
    link_ns = 2 * (ranks - 1) / ranks * job.model.size_bytes * 8e9 / rate_bps
    iteration_ns = float(Evaluator()(job).iteration_ns)
    for _ in range(_OVERLAP_PASSES if overlap_slowdown else 0):
        factor = 1 + overlap_slowdown * min(1.0, link_ns / iteration_ns)
        slower = replace(job, times=job.times.scaled(factor))
        iteration_ns = float(Evaluator()(slower).iteration_ns)
    return iteration_ns


def _own_job(case: Case, cluster: Cluster, times_slowed: int) -> jobs.Job:
    """The job of a case under our own runtime."""
    program = case.program
    costs = block_costs(program, cluster)
    simulated = workload_of(program, costs)
    tensors = (
        replace(tensor, size_bytes=_HALVED * tensor.size_bytes) for tensor in simulated.tensors
    )
    workload = replace(simulated, tensors=tuple(tensors))
    rate_bps = round(PAYLOAD_SHARE * _HALVED * cluster.network.adapter_bits_per_s)
    job = jobs.Job(
        model_of(workload),
        times_of(workload, case.ranks, _ITERATIONS),
        jobs.Cluster((jobs.Host(rate_bps, rate_bps),) * case.ranks, costs=mesh_costs(0)),
        jobs.Strategy(case.runtime),
    )
    strategy = strategy_for(job, case.runtime)
    updates_ns = Tables(program, costs, folded=True).optimizer_time(0).time_ns / times_slowed
    parts = np.array(job.model.sizes_bytes) / job.model.size_bytes
    sharded = {name for bucket in strategy.buckets if bucket.sharded for name in bucket.parameters}
    parts[[name in sharded for name in job.model.names]] /= case.ranks
    update_ns = np.broadcast_to(
        np.rint(parts * updates_ns).astype(np.int64), job.times.ready_ns.shape
    )
    return replace(job, times=replace(job.times, update_ns=update_ns), strategy=strategy)


def naive_ns(case: Case, table: CostTable, rate_bps: int) -> float:
    """FLOPs over the rate of all measured products, and bytes over the link's, of the busiest rank.

    Compute and communication do not overlap, there is no bubble, and no latency.
    """
    flops_per_ns = sum(2 * m * n * k for m, n, k, _ in table.products) / sum(
        ns for *_, ns in table.products
    )
    program = case.program
    mesh, pp = program.strategy.mesh, program.strategy.mesh.pp
    twice = {CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE_SCATTER}  # gloo's is an all-reduce
    found = []
    for pp_rank, calls in enumerate(inferred_calls(program)):
        flops = 0.0
        for stage in program.stages[pp_rank::pp]:
            for block in stage.blocks:
                steps = (*block.compiled.forward, *block.compiled.backward)
                flops += sum(_flops(step, program) for step in steps if isinstance(step, Compute))
        moved = sum(
            count
            * _HALVED
            * call.size_bytes
            * _share(call, mesh.parts(call.axes), 2 if call.kind in twice else 1)
            for call, count in calls.items()
        )
        computes_ns = flops * program.strategy.micro_batches / flops_per_ns
        found.append(computes_ns + moved * 8e9 / rate_bps)
    return max(found)


def _flops(step: Compute, program: Program) -> float:
    parts = program.strategy.mesh.parts(axis for _, axes in step.splits for axis in axes)
    phase = step.phase.value
    operator = step.operator
    if phase in ("forward", "recompute"):
        return operator.flops / parts
    both = operator.kind.value == "matmul" and bool(operator.parameters)
    return operator.backward_flops / parts / (2 if both else 1)


def _share(call: Called, ranks: int, passes: int) -> float:
    """The part of the tensor that a ring moves through each rank."""
    if call.kind is CollectiveKind.SEND:
        return 1.0
    return passes * (ranks - 1) / ranks


def inferred(case: Case) -> list[Counted]:
    """What the simulator infers for each pipeline rank, in the jobs' bytes."""
    return [
        Counter(
            {
                (call.kind.value, " ".join(sorted(call.axes)), _HALVED * call.size_bytes): count
                for call, count in calls.items()
            }
        )
        for calls in inferred_calls(case.program)
    ]


def called(rows: Sequence[Sequence[object]]) -> Counted:
    """What a rank has called."""
    return Counter({(str(kind), str(axes), int(str(size))): int(str(count))
                    for kind, axes, size, count in rows})  # fmt: skip


def by_kind(calls: Mapping[tuple[str, str, int], int]) -> Counter[tuple[str, str]]:
    """The bytes of each kind and group."""
    found: Counter[tuple[str, str]] = Counter()
    for (kind, axes, size), count in calls.items():
        found[kind, axes] += size * count
    return found
