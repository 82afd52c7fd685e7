"""MLPerf training's logged steps: GPT-3 175B and Llama 3.1 405B on H100.

These runs use FP8, for which the simulator has no rates. So one constant, the efficiency of matrix
products, is set such that the run with the fewest GPUs of each round and model is met. All other
runs of that round and model are predicted with it, on up to 14 times as many GPUs. Rows are those
whose configuration file agrees with what was logged. GPT-3 ran with 6 chunks per pipeline rank.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from groundtruth_programs import naive, predict, with_efficiency
from groundtruth_scores import Score, at_peak, shares
from scipy.optimize import brentq

from byteprophet.errors import UserError
from byteprophet.input_files import read_text
from byteprophet.simulate.clusters.description import find_cluster
from byteprophet.simulate.compile.program import Program, compile_program
from byteprophet.simulate.models.catalogue import MODELS
from byteprophet.simulate.models.transformer import build
from byteprophet.simulate.tree.one_line import parse_strategy

_CLUSTER = "dgx-h100"
_MODELS = {"gpt3": "gpt3-175b", "llama31_405b": "llama3-405b"}


@dataclass(frozen=True)
class Row:
    """A measurement."""

    gpus: int
    program: Program
    measured_ns: float


def rows(folder: Path) -> dict[tuple[str, str], list[Row]]:
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
    return {key: sorted(group, key=lambda row: row.gpus) for key, group in groups.items()}


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


def calibrate(row: Row) -> float:
    """The efficiency with which the prediction of ``row`` is right."""
    h100 = find_cluster(_CLUSTER)

    def error(efficiency: float) -> float:
        return predict([row], with_efficiency(h100, efficiency))[0] - row.measured_ns

    return float(brentq(error, 0.05, 5.0, rtol=1e-3))


def score_mlperf(folder: Path, fit_folder: Path | None) -> list[Score]:
    """Errors of all rows but those that calibrate.

    With a ``fit_folder``, its rows calibrate; a round of which it has none takes the same model's
    latest round.
    """
    tested = rows(folder)
    fitted = tested if fit_folder is None else rows(fit_folder)
    cluster = find_cluster(_CLUSTER)
    errors: list[float] = []
    of_naive: list[float] = []
    shipped: list[float] = []
    ideal: list[float] = []
    constants = []
    for (round_name, benchmark), group in tested.items():
        same = sorted(key for key in fitted if key[1] == benchmark)
        if not same:
            continue
        first = fitted.get((round_name, benchmark), fitted[same[-1]])[0]
        others = [row for row in group if row is not first]
        if not others:
            continue
        efficiency = calibrate(first)
        constants.append(f"{efficiency:.2f} ({first.program.model.name})")
        measured = [row.measured_ns for row in others]
        errors += shares(predict(others, with_efficiency(cluster, efficiency)), measured)
        of_naive += shares(naive([first], others), measured)
        shipped += shares(predict(others, cluster), measured)
        ideal += shares(predict(others, at_peak(cluster)), measured)
    words = "MLPerf, 768 to 10,752 H100"
    named = f"mlperf: efficiency {', '.join(constants)}"
    return [Score(words, errors, of_naive, shipped, named, ideal)]
