"""MLPerf training's logged steps: GPT-3 175B and Llama 3.1 405B on H100.

These runs use FP8, for which the simulator has no rates. So one constant, the efficiency of matrix
products, is set such that the run with the fewest GPUs of each round and model is met. All other
runs of that round and model are predicted with it, on up to 14 times as many GPUs. Rows are those
whose configuration file agrees with what was logged. GPT-3 ran with 6 chunks per pipeline rank.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from groundtruth_scores import Score, shares
from scipy.optimize import brentq

from byteprophet.errors import UserError
from byteprophet.input_files import read_text
from byteprophet.simulate.clusters.description import Cluster, find_cluster
from byteprophet.simulate.compile.program import Program, compile_program
from byteprophet.simulate.execute.simulate import simulate_program
from byteprophet.simulate.models.catalogue import MODELS
from byteprophet.simulate.models.transformer import build
from byteprophet.simulate.tree.one_line import parse_strategy

_MODELS = {"gpt3": "gpt3-175b", "llama31_405b": "llama3-405b"}
_ATTENTION = 0.7
"""The efficiency of attention over that of matrix products."""


@dataclass(frozen=True)
class Row:
    """A measurement."""

    gpus: int
    program: Program
    measured_ns: float


def rows(folder: Path) -> list[list[Row]]:
    """The measurements of each round and model, those with the fewest GPUs first."""
    path = folder / "mlperf_training" / "llm_steps.csv"
    groups: dict[tuple[str, str], list[Row]] = defaultdict(list)
    try:
        for row in csv.DictReader(read_text(path).splitlines()):
            known = row["benchmark"] in _MODELS and "H100" in row["accelerator"]
            if known and row["config_consistent"] == "yes":
                groups[row["round"], row["benchmark"]].append(_row(row))
    except (KeyError, ValueError) as error:
        raise UserError(f"{path}: not a table of MLPerf's steps: {error!r}") from None
    several = [sorted(group, key=lambda row: row.gpus) for group in groups.values()]
    return [group for group in several if len(group) > 1]


def _row(row: Mapping[str, str]) -> Row:
    gpus, tp, pp, cp = (int(row[name] or 1) for name in ("n_accel", "tp", "pp", "cp"))
    dp, micro_batch = gpus // (tp * pp * cp), int(row["mbs"])
    chunks = int(row["vp"] or 6)
    strategy = parse_strategy(
        f"tp={tp} pp={pp} cp={cp} dp={dp} micro_batch={micro_batch} sp=1 zero=1 "
        f"micro_batches={int(row['global_batch']) // (dp * micro_batch)} "
        f"schedule=interleaved chunks={chunks}",
        gpus,
    )
    name = _MODELS[row["benchmark"]]
    program = compile_program(build(name, MODELS[name], strategy.samples), strategy)
    return Row(gpus, program, float(row["step_s"]) * 1e9)


def with_efficiency(efficiency: float) -> Cluster:
    """The cluster with another efficiency of matrix products, relative to 16 bits."""
    cluster = find_cluster("dgx-h100")
    gpu = replace(
        cluster.gpu,
        matmul_efficiency=efficiency,
        attention_efficiency=_ATTENTION * efficiency,
    )
    return replace(cluster, gpu=gpu)


def predict(some: Sequence[Row], cluster: Cluster) -> list[float]:
    """Predicted step times."""
    return [float(simulate_program(row.program, cluster).iteration_ns) for row in some]


def calibrate(row: Row) -> float:
    """The efficiency with which the prediction of ``row`` is right."""

    def error(efficiency: float) -> float:
        return predict([row], with_efficiency(efficiency))[0] - row.measured_ns

    return float(brentq(error, 0.05, 5.0, rtol=1e-3))


def score_mlperf(folder: Path, fit_folder: Path | None) -> list[Score]:
    """Errors of all rows but those that calibrate. ``fit_folder`` has no use here."""
    errors: list[float] = []
    naive: list[float] = []
    shipped: list[float] = []
    constants = []
    for first, *others in rows(folder):
        efficiency = calibrate(first)
        constants.append(f"{efficiency:.2f} ({first.program.model.name})")
        measured = [row.measured_ns for row in others]
        errors += shares(predict(others, with_efficiency(efficiency)), measured)
        rate = _work(first) / first.measured_ns
        naive += shares([_work(row) / rate for row in others], measured)
        shipped += shares(predict(others, find_cluster("dgx-h100")), measured)
    words = "MLPerf, 768 to 10,752 H100"
    return [Score(words, errors, naive, shipped, f"mlperf: efficiency {', '.join(constants)}")]


def _work(row: Row) -> float:
    """Model FLOPs per GPU and iteration."""
    return row.program.model.flops() * row.program.strategy.micro_batches / row.gpus
