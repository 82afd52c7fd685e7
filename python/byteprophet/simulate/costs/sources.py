"""Where costs come from besides a cluster's description: a table in a file, or a package's tables.

Costs are chosen by name, never by chance: ``--costs``, or ``costs`` in the cluster's file.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from byteprophet.errors import UserError
from byteprophet.simulate.clusters.beliefs import Source
from byteprophet.simulate.clusters.collective_times import CollectiveTimes, Ratios
from byteprophet.simulate.clusters.description import Cluster, Gpu, find_cluster
from byteprophet.simulate.clusters.shapes import Shapes
from byteprophet.simulate.compile.steps import CollectiveKind
from byteprophet.simulate.costs import aiconfigurator
from byteprophet.simulate.costs.collectives import OneCollective
from byteprophet.simulate.costs.measured_kernels import curves, kernels_of
from byteprophet.simulate.costs.roofline import Roofline
from byteprophet.simulate.costs.table import CostTable, MeasuredCollective, read_table
from byteprophet.simulate.operation.mesh import Mesh

_LEAST_EFFICIENCY = 0.01
"""Of large operators: what reaches less of a cluster's peak was measured on another device."""
_LARGE_FLOPS = 1e10
"""Of matrix products that show what a device reaches at most."""
_UNCERTAINTIES = {
    "gpu.matmul_efficiency": 0.03,
    "gpu.memory_efficiency": 0.05,
    "gpu.attention_efficiency": 0.1,
    "gpu.launch_ns": 0.2,
    "node.efficiency": 0.1,
    "node.base_ns": 0.2,
    "node.step_ns": 0.2,
}
"""Relative standard deviations of what was measured: other machines of the kind, other software."""


def cluster_with_costs(name: str, costs: str = "") -> Cluster:
    """A cluster by name or file, with these costs, or those that its file names.

    Raises:
        UserError: there is no such cluster, or no such costs, or it was calibrated with others.
    """
    cluster = find_cluster(name)
    table = find_costs(costs or cluster.costs, cluster)
    if table is None:
        return cluster
    before = cluster.before_costs
    if before is None:
        found = with_costs(cluster, table)
        return replace(found, costs=costs or cluster.costs, before_costs=cluster)
    if costs and table != find_costs(cluster.costs, cluster):
        raise UserError(
            f"--costs {costs}: {name} was saved with {cluster.costs}, and its constants fit those: "
            "leave out --costs, or calibrate the cluster that it was made from"
        )
    return replace(
        with_costs(before, table),
        gpu=cluster.gpu,
        node=cluster.node,
        network=cluster.network,
        beliefs=cluster.beliefs,
        costs=cluster.costs,
        before_costs=before,
    )


def find_costs(name: str, cluster: Cluster) -> CostTable | None:
    """The costs that are called ``name``; None if it is empty.

    Raises:
        UserError: there are no such costs, or the file is wrong.
    """
    if not name:
        return None
    if name == aiconfigurator.NAME:
        return aiconfigurator.read(cluster.gpu.name, cluster.node.gpus)
    return read_table(Path(name))


def with_costs(cluster: Cluster, table: CostTable | None) -> Cluster:
    """The cluster with measured costs in place of estimates, and their source.

    Efficiencies become what large operators reach. Of other matrix products, and of attention,
    convolutions and operators that memory limits, the measured time over that of the model is kept
    by shape.

    Raises:
        UserError: more was measured than the cluster's peaks allow, or next to nothing of them.
    """
    if table is None:
        return cluster
    gpu, node = cluster.gpu, cluster.node
    values: dict[str, float] = {}
    if table.products:
        large = [
            2 * m * n * k / ns for m, n, k, ns in table.products if 2 * m * n * k >= _LARGE_FLOPS
        ]
        every = [2 * m * n * k / ns for m, n, k, ns in table.products]
        reached = float(np.quantile(large, 0.9)) if large else max(every)
        values["gpu.matmul_efficiency"] = reached * 1e9 / gpu.flops_per_s
    if table.memory_bytes_per_s:
        values["gpu.memory_efficiency"] = table.memory_bytes_per_s / gpu.memory_bytes_per_s
    if table.attention_flops_per_s:
        values["gpu.attention_efficiency"] = table.attention_flops_per_s / gpu.flops_per_s
    if table.launch_ns:
        values["gpu.launch_ns"] = max(1, round(table.launch_ns))
    if table.node_bytes_per_s and node.gpus > 1:
        own = (node.gpus - 1 + node.own_step) / (node.gpus - 1)
        values["node.efficiency"] = min(1.0, own * table.node_bytes_per_s / node.gpu_bytes_per_s)
    if table.node_latency_ns and node.gpus > 1:
        steps = 2 * (node.gpus - 1)
        slower = table.node_latency_ns / (node.base_ns + steps * node.step_ns)
        values["node.base_ns"] = max(1, round(node.base_ns * slower))
        values["node.step_ns"] = max(1, round(node.step_ns * slower))
    for name, value in values.items():
        if name.endswith("efficiency") and value > 1:
            raise UserError(
                f"costs: {table.source}: {name} would be {value:.2f}: the cluster's peak is lower "
                "than what was measured"
            )
        if name in ("gpu.matmul_efficiency", "gpu.memory_efficiency") and value < _LEAST_EFFICIENCY:
            raise UserError(
                f"costs: {table.source}: {name} would be {value:.1g}: these were measured on "
                f"another device than {gpu.name}"
            )
    by_part: dict[str, dict[str, float]] = {"gpu": {}, "node": {}}
    for name, value in values.items():
        part, key = name.split(".")
        by_part[part][key] = value
    gpu = replace(gpu, **by_part["gpu"])  # type: ignore[arg-type]
    shapes = _shapes(table, gpu) if table.products else None
    sources = {name: Source(table.source, _UNCERTAINTIES[name]) for name in values}
    found = replace(
        cluster,
        gpu=gpu,
        operators=curves(table, gpu),
        kernels=kernels_of(table, gpu, shapes),
        node=replace(node, **by_part["node"]),  # type: ignore[arg-type]
        shapes=shapes,
        costs_source=table.source,
        beliefs=replace(cluster.beliefs, sources={**cluster.beliefs.sources, **sources}),
    )
    return with_collectives(found, table.collectives)


def with_collectives(cluster: Cluster, measured: Iterable[MeasuredCollective]) -> Cluster:
    """The cluster, on which collectives take as long as they were measured to."""
    model = replace(cluster, collectives=None)
    found: dict[str, dict[int, list[tuple[float, float]]]] = {}
    for name, ranks, size_bytes, measured_ns in sorted(measured):
        modelled_ns = OneCollective(CollectiveKind(name), ranks, size_bytes).time_ns(model)
        of_ranks = found.setdefault(name, {}).setdefault(ranks, [])
        of_ranks.append((math.log(size_bytes), measured_ns / modelled_ns))
    if not found:
        return cluster
    ratios = {
        name: {ranks: _ratios(rows) for ranks, rows in of_ranks.items()}
        for name, of_ranks in found.items()
    }
    return replace(cluster, collectives=CollectiveTimes(ratios))


def _ratios(rows: Sequence[tuple[float, float]]) -> Ratios:
    sizes, ratios = np.array(rows, np.float64).T
    return sizes, ratios


def measured_sources(cluster: Cluster) -> list[str]:
    """The source of the measured costs that a cluster has; none if it has none."""
    return [cluster.costs_source] if cluster.costs_source else []


@lru_cache(maxsize=4)
def _shapes(table: CostTable, gpu: Gpu) -> Shapes:
    model = Roofline(gpu, Mesh())
    sizes = np.array([row[:3] for row in table.products], np.float64)
    predicted = [model.product_ns(1, *row[:3]) for row in table.products]
    measured = np.array([row[3] for row in table.products])
    return Shapes(np.log(sizes), measured / np.array(predicted))
