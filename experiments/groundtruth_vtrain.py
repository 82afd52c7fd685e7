"""vTrain's multi-node measurements: Megatron-LM's GPT on up to 512 A100, as of 2022.

What the table does not say is taken from the paper and from Megatron-LM of that time: full
recomputation, unfused attention with dropout, a cross entropy of several kernels, 1F1B in which a
stage receives when it is idle, gradients that an operator adds up and that are all-reduced after
the last backward pass, and nodes of 8 A100 with 4 x 200 Gb/s. Gradients are fp32 (bf16 training):
3.6B parameters with tp=1 ran with 8 samples per micro-batch, for which fp16 with two more bytes of
state per parameter has not enough memory.

Three errors are scored:

- Six constants are fitted on four of five parts of the rows, for each part in turn, and for two
  divisions into parts.
- They are fitted on models of up to 18.4B parameters; errors are those of larger models.
- No iteration time is used: matrix products and memory are fitted on the operators of Sailor's
  largest model, links in the node on nccl-tests' all-reduce, and the network has the share of its
  peak that SimAI measured.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import groundtruth_allreduce
import groundtruth_sailor
import numpy as np
from groundtruth_programs import naive, predict
from groundtruth_scores import Score, at_peak, repeated_folds, shares
from scipy.optimize import least_squares
from scipy.stats import kendalltau

from byteprophet.errors import UserError
from byteprophet.input_files import read_text
from byteprophet.simulate.clusters.description import Cluster, find_cluster
from byteprophet.simulate.compile.program import Program, compile_program
from byteprophet.simulate.models.catalogue import gpt
from byteprophet.simulate.models.transformer import build
from byteprophet.simulate.tree.one_line import parse_strategy

CLUSTER = "a100-4xhdr"
CONSTANTS = {
    "matmul_efficiency": (0.87, 0.3, 1.0, 1.0),
    "memory_efficiency": (0.57, 0.3, 1.0, 1.0),
    "launch_ns": (1.95, 0.02, 3.0, 1e5),
    "network_efficiency": (0.95, 0.3, 1.0, 1.0),
    "node_efficiency": (0.95, 0.3, 1.0, 1.0),
    "base_ns": (0.75, 0.1, 5.0, 1e5),
}
"""The fitted constants: first value and bounds, in units of the last number."""
FOLDS, REPEATS = 5, 2
_DIFFERENCE = 0.02
"""Of logarithms of constants, for slopes."""
_FAR = 0.2
"""Of logarithms of constants: further than this, times are not linear in them."""
SMALL = 18.4
"""Billions of parameters of the models on which constants for larger ones are fitted."""
LAUNCH_NS = 5_000
"""A round estimate, which is below what any of the rows waits for."""
LARGEST = "OPT-30"
"""The largest of Sailor's models; its hidden size of 7,168 is roughly that of vTrain's."""
NETWORK = 0.95
"""SimAI's share of the network's peak for 1 GiB and more on 2 to 8 nodes."""


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
    pipelined = f"overlap_p2p=0 scatter_gather={int(tp > 1)} " if pp > 1 else ""
    strategy = parse_strategy(
        f"tp={tp} pp={pp} dp={dp} micro_batch={micro_batch} micro_batches={micro_batches} "
        f"recompute=full overlap=0 {pipelined}precision=bf16_unfused",
        tp * pp * dp,
    )
    config = gpt(
        number("# layers"),
        number("hidden size"),
        number("attention heads"),
        number("sequence length"),
    )
    config = replace(config, fused_attention=False, fused_loss=False, dropout=True)
    model = build("gpt", config, strategy.samples)
    return Row(line, compile_program(model, strategy), float(row["iteration time (ms)"]) * 1e6)


def with_constants(values: Sequence[float]) -> Cluster:
    """The cluster with other constants, in the order and the units of ``CONSTANTS``."""
    cluster = find_cluster(CLUSTER)
    matmul, memory, launch, network, node, base = values
    gpu = replace(
        cluster.gpu,
        matmul_efficiency=matmul,
        memory_efficiency=memory,
        launch_ns=round(launch * CONSTANTS["launch_ns"][3]),
    )
    base_ns = round(base * CONSTANTS["base_ns"][3])
    return replace(
        cluster,
        gpu=gpu,
        node=replace(cluster.node, efficiency=node, base_ns=base_ns),
        network=replace(cluster.network, efficiency=network),
    )


def fit(some: Sequence[Row], known: dict[tuple[object, ...], float] | None = None) -> list[float]:
    """The constants with the smallest errors. Large errors of few rows count little (Cauchy).

    Logarithms of times are nearly linear in those of constants. So the times are linearised at the
    first values, and again where that leads if it is far away. ``known`` keeps what was predicted,
    for other fits.
    """
    known = {} if known is None else known
    measured = np.log([row.measured_ns for row in some])
    first, least, most, _ = (np.array(column) for column in zip(*CONSTANTS.values(), strict=True))
    values = np.log(first)
    for _ in range(2):
        base = _logs(some, values, known)
        columns = []
        for at in range(len(values)):
            moved = values.copy()
            moved[at] -= _DIFFERENCE
            columns.append((base - _logs(some, moved, known)) / _DIFFERENCE)
        slopes, errors = np.column_stack(columns), base - measured
        found = least_squares(
            lambda step, slopes=slopes, errors=errors: errors + slopes @ step,
            np.zeros(len(values)),
            bounds=(np.log(least) - values - 1e-9, np.log(most) - values + 1e-9),
            loss="cauchy",
            f_scale=0.03,
        )
        values = values + found.x
        if np.abs(found.x).max() < _FAR:
            break
    return [float(value) for value in np.exp(values)]


def _logs(
    some: Sequence[Row], values: np.ndarray, known: dict[tuple[object, ...], float]
) -> np.ndarray:
    """Logarithms of predicted times for logarithms of constants."""
    keys = {row.text: (row.text, *values.tolist()) for row in some}
    missing = {row.text: row for row in some if keys[row.text] not in known}
    times = predict(list(missing.values()), with_constants(np.exp(values).tolist()))
    for text, time in zip(missing, times, strict=True):
        known[keys[text]] = float(np.log(time))
    return np.array([known[keys[row.text]] for row in some])


def score_vtrain(folder: Path, fit_folder: Path | None) -> list[Score]:
    """Errors of held-out rows."""
    tested = rows(folder)
    others = tested if fit_folder is None else rows(fit_folder)
    pairs = repeated_folds(tested, FOLDS, REPEATS) if fit_folder is None else [(others, tested)]
    small = [row for row in others if _billions(row) <= SMALL]
    large = [row for row in tested if _billions(row) > SMALL]
    shipped = find_cluster(CLUSTER)
    return [
        _score("vTrain, 64 to 512 A100", pairs),
        _score("of these, larger than fitted", [(small, large)]),
        _scored("of these, no time of them used", tested, from_parts(fit_folder or folder), others),
        _scored("of these, as shipped", tested, shipped, others),
    ]


def _billions(row: Row) -> float:
    return float(row.text.partition(",")[0])


def from_parts(folder: Path) -> Cluster:
    """The cluster with constants from operators and collectives alone."""
    operators = groundtruth_sailor.rows(folder)
    parts = groundtruth_sailor.fit([one for one in operators if one.text.startswith(LARGEST)])
    some = [
        row
        for row in groundtruth_allreduce.rows(folder, "a100")
        if row.gpus in groundtruth_allreduce.FITTED_ON
    ]
    links = groundtruth_allreduce.fit(some, CLUSTER)
    measured = groundtruth_allreduce.with_constants(CLUSTER, links)
    gpu = replace(
        measured.gpu,
        matmul_efficiency=parts.matmul_efficiency,
        memory_efficiency=parts.memory_efficiency,
        launch_ns=LAUNCH_NS,
    )
    network = replace(measured.network, efficiency=NETWORK)
    return replace(measured, gpu=gpu, network=network)


def _score(name: str, pairs: Sequence[tuple[Sequence[Row], Sequence[Row]]]) -> Score:
    """Errors of the second rows of each pair, for constants of the first ones."""
    parts = []
    several = []
    ranked: dict[int, list[tuple[Row, float]]] = defaultdict(list)
    known: dict[tuple[object, ...], float] = {}
    for at, (fitted, held_out) in enumerate(pairs):
        values = fit(fitted, known)
        several.append(values)
        cluster = with_constants(values)
        parts.append(_scored(name, held_out, cluster, fitted))
        ranked[at // FOLDS] += zip(held_out, predict(held_out, cluster), strict=True)
    units = [unit for *_, unit in CONSTANTS.values()]
    named = zip(CONSTANTS, np.median(several, axis=0) * units, strict=True)
    constants = ", ".join(f"{name} {value:.4g}" for name, value in named)
    rankings = [_ranking(one) for one in ranked.values()]
    tau, regret = np.mean(rankings, axis=0)
    return Score(
        name,
        [one for part in parts for one in part.errors],
        [one for part in parts for one in part.naive],
        [one for part in parts for one in part.shipped],
        f"{name}: {constants}; Kendall's tau {tau:.2f}, mean regret {regret:.1%}",
        [one for part in parts for one in part.roofline],
    )


def _scored(name: str, held_out: Sequence[Row], cluster: Cluster, fitted: Sequence[Row]) -> Score:
    """Errors with the constants of ``cluster``; ``fitted`` is for the naive baseline."""
    measured = [row.measured_ns for row in held_out]
    predicted = predict(held_out, cluster)
    ideal = predict(held_out, at_peak(cluster))
    tau, regret = _ranking(list(zip(held_out, predicted, strict=True)))
    tau_ideal, regret_ideal = _ranking(list(zip(held_out, ideal, strict=True)))
    gpu, node, network = cluster.gpu, cluster.node, cluster.network
    return Score(
        name,
        shares(predicted, measured),
        shares(naive(fitted, held_out), measured),
        shares(predict(held_out, find_cluster(CLUSTER)), measured),
        f"{name}: matmul_efficiency {gpu.matmul_efficiency:.3f}, memory_efficiency "
        f"{gpu.memory_efficiency:.3f}, launch_ns {gpu.launch_ns}, network_efficiency "
        f"{network.efficiency:.2f}, node_efficiency {node.efficiency:.3f}, base_ns {node.base_ns}; "
        f"Kendall's tau {tau:.2f}, mean regret {regret:.1%}; roofline: {tau_ideal:.2f}, "
        f"{regret_ideal:.1%}",
        shares(ideal, measured),
    )


def _ranking(ranked: Sequence[tuple[Row, float]]) -> tuple[float, float]:
    """How well strategies of one model and batch are ranked: Kendall's tau and regret, averaged.

    The regret is how much slower the strategy that is predicted to be fastest is than the fastest.
    """
    groups: dict[tuple[str, ...], list[tuple[float, float]]] = defaultdict(list)
    for row, predicted_ns in ranked:
        groups[tuple(row.text.split(",")[:3])].append((predicted_ns, row.measured_ns))
    taus, regrets = [], []
    for pairs in groups.values():
        predicted, measured = zip(*pairs, strict=True)
        if len(pairs) > 1:
            taus.append(float(kendalltau(predicted, measured).statistic))
        regrets.append(min(pairs)[1] / min(measured) - 1)
    return float(np.mean(taus or [np.nan])), float(np.mean(regrets))
