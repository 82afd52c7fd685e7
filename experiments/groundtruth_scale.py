"""All-reduce between nodes: SimAI's shares of peak on 16 to 1,024 GPUs, and AWS's runs on 16.

SimAI gives the share of the adapters' peak that an all-reduce reaches, by its size and the number
of nodes. Its latencies grow with the number of GPUs, as a ring's do, so trees are left out. Two
constants are fitted on one half of the rows, for both halves in turn: the network's efficiency, and
the latency of a step between nodes. AWS's runs are two nodes of A100 with 4 adapters of 100 Gb/s,
and two nodes of H100 with 32 of them; the same constants are fitted for each. Their efficiency may
be larger than 1, because a tree of two nodes moves less than a ring.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from groundtruth_scores import Score, at_peak, fitted_and_tested, shares
from scipy.optimize import least_squares

from byteprophet.errors import UserError
from byteprophet.input_files import read_text
from byteprophet.simulate.clusters.description import Cluster, find_cluster
from byteprophet.simulate.compile.steps import CollectiveKind
from byteprophet.simulate.costs.collectives import CollectiveCosts, Group
from byteprophet.simulate.operation.mesh import Mesh

_SIMAI = "SimAI, 16 to 1,024 GPUs"
_SYSTEMS = {"2x p4de.24xlarg": "AWS, 16 A100", "2x p5.48xlarge": "AWS, 16 H100"}
_LEAST_BYTES = 1 << 20


@dataclass(frozen=True)
class Row:
    """A measurement: the algorithm's bandwidth times ``2 (n - 1) / n`` is the bus bandwidth."""

    text: str
    gpus: int
    size_bytes: int
    measured_ns: float


def rows(folder: Path) -> dict[str, list[Row]]:
    """The measurements in a folder, by system."""
    found: dict[str, list[Row]] = {_SIMAI: [], **{name: [] for name in _SYSTEMS.values()}}
    path = folder / "simai" / "nic_ratio.csv"
    peak = _cluster(_SIMAI).network_bytes_per_s * 8 / 1e9
    try:
        for row in csv.DictReader(read_text(path).splitlines()):
            for name, value in row.items():
                head, _, rest = name.partition("Node-")
                gpus = rest.partition("GPU")[0]
                if not gpus or not value:
                    continue
                size = int(row["Size"])
                moved = 2 * (int(gpus) - 1) / int(gpus) * size
                measured = moved / (float(value) * peak)
                found[_SIMAI].append(Row(f"{head} {size}", int(gpus), size, measured))
    except (KeyError, ValueError) as error:
        raise UserError(f"{path}: not SimAI's table: {error!r}") from None
    path = folder / "nccl_aws" / "nccl_allreduce.csv"
    try:
        for row in csv.DictReader(read_text(path).splitlines()):
            system = _SYSTEMS.get(row["system_as_written"])
            size = int(row["size_B"])
            if system and size >= _LEAST_BYTES and row["dtype"] == "float":
                measured = float(row["oop_time_us"]) * 1e3
                found[system].append(Row(f"{system} {size} {row['line']}", 16, size, measured))
    except (KeyError, ValueError) as error:
        raise UserError(f"{path}: not AWS's table: {error!r}") from None
    return found


def _cluster(system: str) -> Cluster:
    """The peaks of a system; SimAI's are those of H100 nodes with 8 adapters of 400 Gb/s."""
    if system == _SIMAI:
        found = find_cluster("dgx-h100")
        return replace(found, network=replace(found.network, ring_only=True))
    found = find_cluster("dgx-h100" if "H100" in system else "dgx-a100")
    adapters = 32 if "H100" in system else 4
    network = replace(found.network, adapters=adapters, adapter_bits_per_s=100_000_000_000)
    return replace(found, network=network)


def with_constants(system: str, values: Sequence[float]) -> Cluster:
    """The cluster with another efficiency and latency per step of its network."""
    cluster = _cluster(system)
    efficiency, step = values
    network = replace(cluster.network, efficiency=efficiency, step_ns=round(step * 1e5))
    node = replace(cluster.node, efficiency=1.0, own_step=0.0)
    return replace(cluster, network=network, node=node)


def predict(some: Sequence[Row], cluster: Cluster) -> list[float]:
    """Predicted times."""
    found = []
    for row in some:
        costs = CollectiveCosts(cluster, Mesh(dp=row.gpus))
        group = Group(8, row.gpus // 8)
        transfer = costs.transfer(CollectiveKind.ALL_REDUCE, group, row.size_bytes)
        found.append(transfer.latency_ns + transfer.size_bytes / costs.rate(transfer))
    return found


def fit(system: str, some: Sequence[Row]) -> list[float]:
    """The constants with the smallest errors."""
    measured = np.log([row.measured_ns for row in some])

    def errors(values: Sequence[float]) -> np.ndarray:
        return np.log(predict(some, with_constants(system, values))) - measured

    bounds = ([0.2, 0.01], [2.0, 100.0])
    found = least_squares(
        errors, [0.9, 0.2], bounds=bounds, loss="soft_l1", f_scale=0.05, diff_step=0.01
    )
    return [float(value) for value in found.x]


def score_scale(folder: Path, fit_folder: Path | None) -> list[Score]:
    """Errors of held-out rows, by system."""
    fit_rows = None if fit_folder is None else rows(fit_folder)
    scores = []
    for system, tested in rows(folder).items():
        others = None if fit_rows is None else fit_rows[system]
        parts: list[list[float]] = [[], [], [], []]
        constants = []
        for fitted, held_out in fitted_and_tested(tested, others):
            if not fitted or not held_out:
                continue
            values = fit(system, fitted)
            measured = [row.measured_ns for row in held_out]
            clusters = (
                with_constants(system, values),
                _cluster(system),
                at_peak(_cluster(system)),
            )
            for errors, cluster in zip(parts, clusters, strict=False):
                errors += shares(predict(held_out, cluster), measured)
            rate = np.median([_moved(row) / row.measured_ns for row in fitted])
            parts[3] += shares([_moved(row) / rate for row in held_out], measured)
            constants.append(f"efficiency {values[0]:.3f}, step {values[1] * 100:.1f} us")
        if parts[0]:
            words = f"{system}: {'; '.join(constants)}"
            scores.append(
                Score(f"all-reduce: {system}", parts[0], parts[3], parts[1], words, parts[2])
            )
    return scores


def _moved(row: Row) -> float:
    return 2 * (row.gpus - 1) / row.gpus * row.size_bytes
