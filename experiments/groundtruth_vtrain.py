"""vTrain's multi-node measurements: Megatron-LM's GPT on up to 512 A100, as of 2022.

What the table does not say is taken from the paper and from Megatron-LM of that time: fp16, full
recomputation, unfused attention with dropout, 1F1B, gradients all-reduced after the last backward
pass, and nodes of 8 A100 with 4 x 200 Gb/s.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from groundtruth_scores import Score, fitted_and_tested, shares
from scipy.optimize import least_squares
from scipy.stats import kendalltau

from byteprophet.errors import UserError
from byteprophet.input_files import read_text
from byteprophet.simulate.clusters.description import Cluster, find_cluster
from byteprophet.simulate.compile.program import Program, compile_program
from byteprophet.simulate.execute.simulate import simulate_program
from byteprophet.simulate.models.catalogue import gpt
from byteprophet.simulate.models.transformer import build
from byteprophet.simulate.tree.one_line import parse_strategy

CLUSTER = "a100-4xhdr"
CONSTANTS = ("matmul_efficiency", "memory_efficiency", "launch_ns", "network_efficiency")


@dataclass(frozen=True)
class Row:
    """A measurement. ``text``: as published."""

    text: str
    program: Program
    measured_ns: float


def rows(folder: Path) -> list[Row]:
    """The measurements in a folder."""
    path = folder / "vtrain" / "ground_truth_multi.csv"
    lines = read_text(path).lstrip("\ufeff").splitlines()
    try:
        pairs = zip(lines[1:], csv.DictReader(lines), strict=True)
        return [_row(line, row) for line, row in pairs]
    except (KeyError, ValueError) as error:
        raise UserError(f"{path}: not vTrain's table: {error!r}") from None


def _row(line: str, row: Mapping[str, str]) -> Row:
    def number(name: str) -> int:
        return int(row[name])

    dp, micro_batch = number("data parallelism"), number("micro batch")
    tp, pp = number("tensor parallelism"), number("pipeline parallelism")
    micro_batches = number("global batch") // (dp * micro_batch)
    strategy = parse_strategy(
        f"tp={tp} pp={pp} dp={dp} micro_batch={micro_batch} micro_batches={micro_batches} "
        "recompute=full overlap=0 precision=fp16 scatter_gather=1",
        tp * pp * dp,
    )
    config = gpt(
        number("# layers"),
        number("hidden size"),
        number("attention heads"),
        number("sequence length"),
    )
    config = replace(config, fused_attention=False, dropout=True)
    model = build("gpt", config, strategy.samples)
    return Row(line, compile_program(model, strategy), float(row["iteration time (ms)"]) * 1e6)


def with_constants(values: Sequence[float]) -> Cluster:
    """The cluster with other constants, in the order of ``CONSTANTS``."""
    cluster = find_cluster(CLUSTER)
    matmul, memory, launch, network = values
    gpu = replace(
        cluster.gpu,
        matmul_efficiency=matmul,
        memory_efficiency=memory,
        launch_ns=round(launch * 1e4),
    )
    return replace(cluster, gpu=gpu, network=replace(cluster.network, efficiency=network))


def predict(some: Sequence[Row], cluster: Cluster) -> list[float]:
    """Predicted iteration times."""
    return [float(simulate_program(row.program, cluster).iteration_ns) for row in some]


def fit(some: Sequence[Row]) -> list[float]:
    """The constants with the smallest errors. Large errors of few rows count less (soft L1)."""
    measured = np.log([row.measured_ns for row in some])

    def errors(values: Sequence[float]) -> np.ndarray:
        return np.log(predict(some, with_constants(values))) - measured

    found = least_squares(
        errors,
        [0.8, 0.8, 0.6, 0.9],
        bounds=([0.3, 0.3, 0.05, 0.3], [1.0, 1.0, 3.0, 1.0]),
        loss="soft_l1",
        f_scale=0.03,
        diff_step=0.02,
        max_nfev=12,
    )
    return [float(value) for value in found.x]


def naive(fitted: Sequence[Row], tested: Sequence[Row]) -> list[float]:
    """One rate of model FLOPs per GPU."""

    def work(row: Row) -> float:
        strategy = row.program.strategy
        return row.program.model.flops() * strategy.micro_batches / strategy.mesh.ranks

    rate = np.median([work(row) / row.measured_ns for row in fitted])
    return [work(row) / rate for row in tested]


def score_vtrain(folder: Path, fit_folder: Path | None) -> list[Score]:
    """Errors of held-out rows."""
    others = None if fit_folder is None else rows(fit_folder)
    pairs = fitted_and_tested(rows(folder), others)
    errors: list[float] = []
    of_naive: list[float] = []
    of_shipped: list[float] = []
    constants = []
    ranked: list[tuple[Row, float]] = []
    shipped = find_cluster(CLUSTER)
    for fitted, held_out in pairs:
        values = fit(fitted)
        measured = [row.measured_ns for row in held_out]
        predicted = predict(held_out, with_constants(values))
        ranked += zip(held_out, predicted, strict=True)
        errors += shares(predicted, measured)
        of_naive += shares(naive(fitted, held_out), measured)
        of_shipped += shares(predict(held_out, shipped), measured)
        named = zip(CONSTANTS, (*values[:2], values[2] * 1e4, values[3]), strict=True)
        constants.append(", ".join(f"{name} {value:.4g}" for name, value in named))
    name = "vTrain, 64 to 512 A100"
    words = f"vtrain: {'; '.join(constants)}; {_ranking(ranked)}"
    return [Score(name, errors, of_naive, of_shipped, words)]


def _ranking(ranked: Sequence[tuple[Row, float]]) -> str:
    """How well strategies of one model and batch are ranked, averaged over models.

    The regret is how much slower the strategy that is predicted to be fastest is than the fastest.
    """
    groups: dict[tuple[str, ...], list[tuple[float, float]]] = defaultdict(list)
    for row, predicted_ns in ranked:
        groups[tuple(row.text.split(",")[:3])].append((predicted_ns, row.measured_ns))
    taus, regrets = [], []
    for pairs in groups.values():
        predicted, measured = zip(*pairs, strict=True)
        taus.append(float(kendalltau(predicted, measured).statistic))
        regrets.append(min(pairs)[1] / min(measured) - 1)
    return f"Kendall's tau {np.mean(taus):.2f}, mean regret {np.mean(regrets):.1%}"
