"""Simulates one iteration of a training job."""

from __future__ import annotations

from byteprophet.errors import UserError
from byteprophet.replay import replay
from byteprophet.simulate.clusters.description import Cluster
from byteprophet.simulate.compile.program import Program, compile_program
from byteprophet.simulate.costs.blocks import BlockCosts
from byteprophet.simulate.execute.conditions import ALIKE, Conditions
from byteprophet.simulate.execute.job_graph import build
from byteprophet.simulate.execute.queues import queued_ns
from byteprophet.simulate.execute.requests import waits_in_line
from byteprophet.simulate.execute.result import Simulated, memory_of
from byteprophet.simulate.execute.sharding import reduces_each
from byteprophet.simulate.execute.tables import LARGEST_GRAPH
from byteprophet.simulate.models.module import Model
from byteprophet.simulate.operation.mesh import AXES
from byteprophet.simulate.tree.strategy import PRECISIONS, Strategy

_PARAMETER_BYTES = 2
"""Of an element of parameters as operators read them."""


def simulate(
    model: Model, strategy: Strategy, cluster: Cluster, conditions: Conditions = ALIKE
) -> Simulated:
    """Predict the time and memory of an iteration.

    Args:
        model: the model, with as many samples as ``strategy`` has in a micro-batch.
        strategy: how it is trained.
        cluster: on what.
        conditions: how its ranks differ.

    Raises:
        UserError: the strategy fits neither the model nor the cluster, or is too large.
    """
    return simulate_program(compile_for(model, strategy, cluster), cluster, conditions)


def compile_for(model: Model, strategy: Strategy, cluster: Cluster) -> Program:
    """Compile a model for a cluster; raises as ``simulate`` does."""
    if model.samples != strategy.samples:
        raise UserError(
            f"model {model.name} was made for {model.samples} samples per micro-batch, but the "
            f"strategy has {strategy.samples}"
        )
    _check_places(strategy, cluster, "node", cluster.node.gpus)
    if cluster.network.nodes_per_leaf:
        per_leaf = cluster.network.nodes_per_leaf * cluster.node.gpus
        _check_places(strategy, cluster, "leaf switch", per_leaf)
    if 2 * strategy.micro_batches * strategy.stages > LARGEST_GRAPH:
        raise UserError(
            f"strategy: {strategy.micro_batches} micro-batches on {strategy.stages} stages: more "
            f"than {LARGEST_GRAPH:,} operations"
        )
    return compile_program(model, strategy)


def _check_places(strategy: Strategy, cluster: Cluster, place: str, gpus: int) -> None:
    """Refuse groups that lie across nodes or leaves unevenly: their ranks would not be alike."""
    mesh = strategy.mesh
    if mesh.ranks <= gpus:
        return
    if mesh.ranks % gpus:
        raise UserError(
            f"cluster {cluster.name}: {mesh.ranks} GPUs: must be a multiple of the {gpus} per "
            f"{place}"
        )
    together = 1
    for axis in AXES:
        together *= mesh.sizes[axis]
        if gpus % together and together % gpus:
            raise UserError(
                f"cluster {cluster.name}: groups of {together} neighbouring ranks (up to {axis}) "
                f"lie across {'nodes' if place == 'node' else 'leaf switches'} of {gpus} GPUs "
                f"unevenly: must divide {gpus}, or be a multiple"
            )


def simulate_program(
    program: Program, cluster: Cluster, conditions: Conditions = ALIKE
) -> Simulated:
    """Predict the time and memory of an iteration of a compiled program."""
    costs = block_costs(program, cluster)
    mesh = program.strategy.mesh
    replicas = conditions.replicas(mesh)
    job = build(program, costs, replicas=replicas)
    replayed = replay(job.graph)
    waits = waits_in_line(job.messages, replayed.end_ns)
    delays_ns = queued_ns(job, replayed, cluster.network.queue_ns)
    if waits or delays_ns:
        job = build(program, costs, replicas=replicas, waits=waits, delays_ns=delays_ns)
        replayed = replay(job.graph)
    return Simulated(
        program=program,
        gpus=mesh.ranks,
        iteration_ns=replayed.makespan_ns,
        costs=costs,
        memory_limit_bytes=cluster.gpu.memory_bytes,
        flops_per_s=cluster.gpu.flops_per_s,
        job=job,
        replayed=replayed,
    )


def block_costs(program: Program, cluster: Cluster) -> BlockCosts:
    """The times of a program's blocks. Raises UserError if its precision is not the cluster's."""
    strategy = program.strategy
    precision = PRECISIONS[strategy.precision]
    if precision.product_bytes == 1 and not cluster.gpu.fp8_flops_per_s:
        raise UserError(
            f"cluster {cluster.name}: precision {strategy.precision} needs gpu.fp8_flops_per_s, "
            "which it does not have"
        )
    sums = strategy.copies and not reduces_each(strategy)
    # PyTorch reads two gradients and writes one, for all micro-batches but the first. Where the
    # precision adds them up, no other operator does.
    summed = 3 * (1 - 1 / strategy.micro_batches) if sums else 0.0
    adds = precision.added_bytes / _PARAMETER_BYTES or summed
    return BlockCosts(
        cluster,
        strategy.mesh,
        fp8=precision.product_bytes == 1,
        copies=strategy.copies,
        adds=adds,
        launch_blocking=strategy.launch_blocking,
        merges=strategy.copies and strategy.ring and strategy.mesh.cp > 1,
        eager=strategy.eager,
    )


def least_memory(program: Program, cluster: Cluster) -> int:
    """The least bytes that the fullest rank needs: with one micro-batch in flight."""
    pp = program.strategy.mesh.pp
    kept = [
        max(stage.saved_bytes + stage.recomputed_bytes for stage in program.stages[rank::pp])
        for rank in range(pp)
    ]
    memory = memory_of(program, block_costs(program, cluster), kept)
    return max(rank.total for rank in memory)
