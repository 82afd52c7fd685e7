"""Sailor's operators: Megatron-LM's kernels on one A100 with 40 GB, one at a time.

Only one tensor-parallel rank and at least 4 samples, so that neither collectives nor launches
count. The forward pass of all operators is compared, and the backward pass of those that are
limited by memory (for matrix products, the table has one of two backward products). Two constants
are fitted for all operators. Of each that memory limits, the measured time over that of its bytes
is kept, forward and backward, as ``byteprophet costs collect`` does: it is the same for all sizes.

The smallest operators of the table say something else, which ``blocked_launch_ns`` returns: how
long the host takes to launch one operator after it has waited for the one before.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from groundtruth_files import unpacked
from groundtruth_scores import Score, fitted_and_tested, shares
from scipy.optimize import least_squares

from byteprophet.errors import UserError
from byteprophet.simulate.clusters.description import find_cluster
from byteprophet.simulate.compile.program import compile_program
from byteprophet.simulate.compile.steps import Compute, Phase
from byteprophet.simulate.costs.reference_operators import name_of
from byteprophet.simulate.costs.roofline import Roofline
from byteprophet.simulate.models.catalogue import gpt
from byteprophet.simulate.models.transformer import build
from byteprophet.simulate.operation.mesh import Mesh
from byteprophet.simulate.tree.one_line import parse_strategy

_SHAPES = {"OPT-350": (1024, 16), "GPT-Neo-2.7": (2560, 32), "OPT-30": (7168, 56)}
"""Hidden sizes, and heads as the sizes of scores in the table say.
"""
_OPERATORS = {
    "enc-1st-layernorm": "norm1",
    "enc-attention-qkv": "qkv",
    "enc-attention-score": "scores",
    "enc-attention-softmax": "softmax",
    "enc-attention-dropout": "dropout",
    "enc-attention-context": "mix",
    "enc-attention-dense": "output",
    "enc-post-attention-dropout": "add1",
    "enc-MLP-GEMM-1": "up",
    "enc-MLP-gelu": "activation",
    "enc-MLP-GEMM-2": "down",
}
_MEMORY = ("norm1", "softmax", "dropout", "add1", "activation")
_FEWEST_SAMPLES = 4
_SMALLEST = "OPT-350", "1", "4"
"""The smallest shapes: the smallest model, one sample, and four tensor-parallel ranks."""
_REDUCED = ("output", "down")
"""Operators with an all-reduce behind them, which may count there."""


@dataclass(frozen=True)
class Row:
    """A measurement, and its step in the simulator on one of ``tp`` ranks."""

    text: str
    step: Compute
    measured_ns: float
    tp: int = 1


def rows(folder: Path) -> list[Row]:
    """The measurements in a folder that neither launches nor collectives limit."""
    return _rows(folder, _usable)


def blocked_launch_ns(folder: Path, parts: Parts) -> int:
    """The time of a launch where the host waits for each operator before it launches the next.

    The table's operators were timed one at a time. What those of the smallest shapes take besides
    their time on the GPU is the host's: 5 to 15 times as long. The mean counts, because a layer has
    all of these operators.
    """
    some = _rows(folder, _is_smallest)
    if not some:
        raise UserError(f"{folder}: Sailor's table has no operators of the smallest shapes")
    measured = np.array([row.measured_ns for row in some])
    return round(float((measured - predict(some, parts)).mean()))


def _rows(folder: Path, usable: Callable[[Mapping[str, str]], bool]) -> list[Row]:
    path = folder / "sailor" / "aceso_op_profiles.csv.gz"
    lines = unpacked(path).splitlines()
    steps: dict[tuple[str, int, int], dict[tuple[str, Phase], Compute]] = {}
    found = []
    try:
        for row in csv.DictReader(lines):
            if not usable(row):
                continue
            key = row["model"], int(row["mbs"]), int(row["tp"])
            if key not in steps:
                steps[key] = _steps(*key)
            name = _OPERATORS[row["op_name"]]
            text = f"{row['model']},{row['mbs']},{row['op_name']}"
            forward = steps[key][name, Phase.FORWARD]
            found.append(Row(f"{text},forward", forward, float(row["forward_us"]) * 1e3, key[2]))
            if name in _MEMORY:
                backward = steps[key][name, Phase.BACKWARD]
                measured_ns = float(row["backward_us"]) * 1e3
                found.append(Row(f"{text},backward", backward, measured_ns, key[2]))
    except (KeyError, ValueError) as error:
        raise UserError(f"{path}: not a table of Sailor's operators: {error!r}") from None
    return found


def _is_known(row: Mapping[str, str]) -> bool:
    kind = row["gpu"], row["dtype"], row["algo"]
    return kind == ("A100-40", "fp16", "0") and row["op_name"] in _OPERATORS


def _usable(row: Mapping[str, str]) -> bool:
    return _is_known(row) and row["tp"] == "1" and int(row["mbs"]) >= _FEWEST_SAMPLES


def _is_smallest(row: Mapping[str, str]) -> bool:
    shapes = row["model"], row["mbs"], row["tp"]
    return _is_known(row) and shapes == _SMALLEST and _OPERATORS[row["op_name"]] not in _REDUCED


def _steps(model: str, samples: int, tp: int) -> dict[tuple[str, Phase], Compute]:
    """The steps of one layer on one of ``tp`` ranks, by operator and phase."""
    hidden, heads = _SHAPES[model]
    config = replace(gpt(1, hidden, heads), fused_attention=False, dropout=True)
    strategy = parse_strategy(f"tp={tp} micro_batch={samples}", tp)
    stage = compile_program(build(model, config, samples), strategy).stages[0]
    layer = next(block for block in stage.blocks if block.path == "layers.0").compiled
    steps = (*layer.forward, *layer.backward)
    return {(one.operator.name, one.phase): one for one in steps if isinstance(one, Compute)}


@dataclass(frozen=True)
class Parts:
    """Costs of operators on an A100.

    Attributes:
        matmul_efficiency: of matrix products.
        memory_efficiency: of memory.
        operators: of those that memory limits, time over that of their bytes (``Cluster``).
    """

    matmul_efficiency: float
    memory_efficiency: float
    operators: Mapping[tuple[str, str], float]


def predict(some: Sequence[Row], parts: Parts) -> list[float]:
    """Predicted times, on an A100 with 40 GB."""
    gpu = replace(
        find_cluster("dgx-a100").gpu,
        name="A100-SXM4-40GB",
        memory_bytes_per_s=1_555_000_000_000,
        matmul_efficiency=parts.matmul_efficiency,
        memory_efficiency=parts.memory_efficiency,
    )
    rooflines = {
        tp: Roofline(gpu, Mesh(tp=tp), operators=parts.operators) for tp in {row.tp for row in some}
    }
    return [rooflines[row.tp].time_ns(row.step) for row in some]


def fit(some: Sequence[Row]) -> Parts:
    """The efficiencies with the smallest errors, then the ratios of operators."""
    measured = np.log([row.measured_ns for row in some])

    def errors(values: Sequence[float]) -> np.ndarray:
        return np.log(predict(some, Parts(values[0], values[1], {}))) - measured

    bounds = ([0.3, 0.3], [1.0, 1.0])
    found = least_squares(
        errors, [0.8, 0.8], bounds=bounds, loss="soft_l1", f_scale=0.05, diff_step=0.01
    )
    plain = Parts(float(found.x[0]), float(found.x[1]), {})
    ratios: dict[tuple[str, str], list[float]] = defaultdict(list)
    others = [row for row in some if row.step.operator.name in _MEMORY]
    for row, predicted_ns in zip(others, predict(others, plain), strict=True):
        key = name_of(row.step.operator), row.step.phase.value
        ratios[key].append(row.measured_ns / predicted_ns)
    return replace(plain, operators={key: float(np.median(ratios[key])) for key in sorted(ratios)})


def _naive(fitted: Sequence[Row], tested: Sequence[Row]) -> list[float]:
    """One rate for the bytes of all tensors, which the backward pass moves twice."""

    def moved(row: Row) -> float:
        operator = row.step.operator
        tensors = (*operator.inputs, *operator.outputs, *operator.parameters)
        size = sum(operator.elements(one) * one.element_bytes for one in tensors)
        return size * (2.0 if row.step.phase is Phase.BACKWARD else 1.0)

    rate = np.median([moved(row) / row.measured_ns for row in fitted])
    return [moved(row) / rate for row in tested]


def score_sailor(folder: Path, fit_folder: Path | None) -> list[Score]:
    """Errors of held-out operators, limited by memory and others."""
    others = None if fit_folder is None else rows(fit_folder)
    errors: dict[bool, list[list[float]]] = {True: [[], [], [], []], False: [[], [], [], []]}
    constants = []
    for fitted, held_out in fitted_and_tested(rows(folder), others):
        parts = fit(fitted)
        ratios = ", ".join(
            f"{one} {phase} {ratio:.2f}" for (one, phase), ratio in parts.operators.items()
        )
        constants.append(f"matmul_efficiency {parts.matmul_efficiency:.3f}, {ratios}")
        for of_memory, lists in errors.items():
            some = [row for row in held_out if (row.step.operator.name in _MEMORY) is of_memory]
            same = [row for row in fitted if (row.step.operator.name in _MEMORY) is of_memory]
            shipped = find_cluster("dgx-a100").gpu
            costs = (
                parts,
                Parts(shipped.matmul_efficiency, shipped.memory_efficiency, {}),
                Parts(1.0, 1.0, {}),
            )
            measured = [row.measured_ns for row in some]
            for collected, one in zip(lists, costs, strict=False):
                collected += shares(predict(some, one), measured)
            lists[3] += shares(_naive(same, some), measured)
    return [
        Score(
            f"Sailor's operators on A100: {'memory' if of_memory else 'matrix products'}",
            lists[0],
            lists[3],
            lists[1],
            f"sailor: {'; '.join(constants)}" if of_memory else "",
            lists[2],
        )
        for of_memory, lists in errors.items()
    ]
