"""Simulates one iteration of a training job."""

from __future__ import annotations

from byteprophet.errors import UserError
from byteprophet.replay import replay
from byteprophet.simulate.clusters.description import Cluster
from byteprophet.simulate.compile.program import Program, compile_program
from byteprophet.simulate.costs.blocks import BlockCosts
from byteprophet.simulate.execute.job_graph import build
from byteprophet.simulate.execute.result import Simulated, memory_of
from byteprophet.simulate.models.module import Model
from byteprophet.simulate.operation.mesh import AXES
from byteprophet.simulate.tree.strategy import Strategy

LARGEST_GRAPH = 3_000_000
"""Actions of all pipeline ranks."""


def simulate(model: Model, strategy: Strategy, cluster: Cluster) -> Simulated:
    """Predict the time and memory of an iteration.

    Args:
        model: the model, with as many samples as ``strategy`` has in a micro-batch.
        strategy: how it is trained.
        cluster: on what.

    Raises:
        UserError: the strategy fits neither the model nor the cluster, or is too large.
    """
    return simulate_program(compile_for(model, strategy, cluster), cluster)


def compile_for(model: Model, strategy: Strategy, cluster: Cluster) -> Program:
    """Compile a model for a cluster; raises as ``simulate`` does."""
    mesh = strategy.mesh
    if model.samples != strategy.samples:
        raise UserError(
            f"model {model.name} was made for {model.samples} samples per micro-batch, but the "
            f"strategy has {strategy.samples}"
        )
    gpus = cluster.node.gpus
    if mesh.ranks > gpus and mesh.ranks % gpus:
        raise UserError(
            f"cluster {cluster.name}: {mesh.ranks} GPUs: must be a multiple of the {gpus} per node"
        )
    if mesh.ranks > gpus:
        _check_nodes(strategy, cluster)
    if 2 * strategy.micro_batches * strategy.stages > LARGEST_GRAPH:
        raise UserError(
            f"strategy: {strategy.micro_batches} micro-batches on {strategy.stages} stages: more "
            f"than {LARGEST_GRAPH:,} actions"
        )
    return compile_program(model, strategy)


def _check_nodes(strategy: Strategy, cluster: Cluster) -> None:
    """Refuse groups that lie across nodes unevenly: their ranks would not be alike."""
    together, gpus = 1, cluster.node.gpus
    for axis in AXES:
        together *= strategy.mesh.sizes[axis]
        if gpus % together and together % gpus:
            raise UserError(
                f"cluster {cluster.name}: groups of {together} neighbouring ranks (up to {axis}) "
                f"lie across nodes of {gpus} GPUs unevenly: must divide {gpus}, or be a multiple"
            )


def simulate_program(program: Program, cluster: Cluster) -> Simulated:
    """Predict the time and memory of an iteration of a compiled program."""
    mesh = program.strategy.mesh
    costs = BlockCosts(cluster, mesh)
    job = build(program, costs)
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


def least_memory(program: Program, cluster: Cluster) -> int:
    """The least bytes that the fullest rank needs: with one micro-batch in flight."""
    pp = program.strategy.mesh.pp
    kept = [max(stage.saved_bytes for stage in program.stages[rank::pp]) for rank in range(pp)]
    memory = memory_of(program, BlockCosts(cluster, program.strategy.mesh), kept)
    return max(rank.total for rank in memory)
