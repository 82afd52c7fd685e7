"""nccl-tests' all-reduce inside one node of A100 or V100, as vTrain's authors measured it."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from groundtruth_files import unpacked
from groundtruth_scores import Score, shares
from scipy.optimize import least_squares

from byteprophet.errors import UserError
from byteprophet.simulate.clusters.description import Cluster, find_cluster
from byteprophet.simulate.compile.steps import CollectiveKind
from byteprophet.simulate.costs.collectives import CollectiveCosts, Group
from byteprophet.simulate.operation.mesh import Mesh

CLUSTERS = {"a100": "dgx-a100", "v100": "dgx-1v"}
FITTED_ON = (2, 8)
"""Numbers of GPUs; the others are held out."""


@dataclass(frozen=True)
class Row:
    """A measurement, out of place."""

    gpus: int
    size_bytes: int
    measured_ns: float


def rows(folder: Path, gpu: str) -> list[Row]:
    """The measurements of one GPU type, above 1 MiB."""
    found = []
    for gpus in range(2, 9):
        path = folder / "vtrain" / gpu / f"AR_GPU{gpus}_1M_1024M_LUT.csv.gz"
        lines = list(csv.reader(unpacked(path).splitlines()))[1:]
        try:
            found += [
                Row(gpus, int(line[0]), float(line[3])) for line in lines if int(line[0]) > 1 << 20
            ]
        except (IndexError, ValueError) as error:
            raise UserError(f"{path}: not a table of nccl-tests: {error!r}") from None
    return found


def with_constants(name: str, values: Sequence[float]) -> Cluster:
    """The cluster with another efficiency, latency per step and collective, and own step."""
    cluster = find_cluster(name)
    efficiency, step, base, own = values
    node = replace(
        cluster.node,
        efficiency=efficiency,
        step_ns=round(step * 1e3),
        base_ns=round(base * 1e4),
        own_step=own,
    )
    return replace(cluster, node=node)


def predict(some: Sequence[Row], cluster: Cluster) -> list[float]:
    """Predicted times."""
    costs = CollectiveCosts(cluster, Mesh(tp=8))
    found = []
    for row in some:
        transfer = costs.transfer(CollectiveKind.ALL_REDUCE, Group(row.gpus, 1), row.size_bytes)
        found.append(transfer.latency_ns + transfer.size_bytes / costs.rate(transfer))
    return found


def fit(some: Sequence[Row], name: str) -> list[float]:
    """The constants with the smallest errors."""
    measured = np.log([row.measured_ns for row in some])

    def errors(values: Sequence[float]) -> np.ndarray:
        return np.log(predict(some, with_constants(name, values))) - measured

    bounds = ([0.3, 0.1, 0.1, 0.0], [1.0, 30.0, 20.0, 1.0])
    found = least_squares(
        errors, [0.8, 2.0, 2.0, 0.1], bounds=bounds, diff_step=0.01, loss="soft_l1", f_scale=0.03
    )
    return [float(value) for value in found.x]


def naive(fitted: Sequence[Row], tested: Sequence[Row]) -> list[float]:
    """One bus bandwidth for all numbers of GPUs and all sizes."""

    def moved(row: Row) -> float:
        return 2 * (row.gpus - 1) / row.gpus * row.size_bytes

    rate = np.median([moved(row) / row.measured_ns for row in fitted])
    return [moved(row) / rate for row in tested]


def score_allreduce(folder: Path, fit_folder: Path | None) -> list[Score]:
    """Errors of all numbers of GPUs, and of 3 to 7, which are held out.

    Without ``fit_folder``, constants were fitted on the rows of 2 and 8 GPUs among all.
    """
    scores = []
    for gpu, name in CLUSTERS.items():
        tested = rows(folder, gpu)
        fitted = [row for row in rows(fit_folder or folder, gpu) if row.gpus in FITTED_ON]
        values = fit(fitted, name)
        for words, held_out in (
            ("2 to 8", tested),
            ("3 to 7", [row for row in tested if row.gpus not in FITTED_ON]),
        ):
            measured = [row.measured_ns for row in held_out]
            scores.append(
                Score(
                    f"all-reduce on {words} {gpu.upper()}",
                    shares(predict(held_out, with_constants(name, values)), measured),
                    shares(naive(fitted, held_out), measured),
                    shares(predict(held_out, find_cluster(name)), measured),
                    f"{gpu}: efficiency {values[0]:.3f}, step {values[1] * 1e3:.0f} ns, "
                    f"base {values[2] * 1e4:.0f} ns, own step {values[3]:.2f}"
                    if words == "2 to 8"
                    else "",
                )
            )
    return scores
