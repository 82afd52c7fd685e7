"""Measured runs in a CSV or TOML file.

    model,strategy,gpus,seconds
    gpt3-175b,tp=8 pp=16 micro_batches=192,1024,21.3

A TOML file has a table ``[[runs]]`` with the same keys for each run. ``strategy`` is a line or the
path of a file, as for ``simulate --strategy``. ``seconds`` is the time of an iteration.
``sequence`` is optional: the tokens of a sample.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from byteprophet.errors import UserError
from byteprophet.input_files import parse_table, read_text
from byteprophet.simulate.clusters.description import Cluster
from byteprophet.simulate.compile.program import Program
from byteprophet.simulate.execute.simulate import simulate
from byteprophet.simulate.models.load import load_model
from byteprophet.simulate.tree.file import given_strategy

_KEYS = ("model", "strategy", "gpus", "seconds")


@dataclass(frozen=True)
class MeasuredRun:
    """A measured run. ``text``: what it is, in words."""

    text: str
    program: Program
    measured_ns: float


def read_runs(path: Path, cluster: Cluster) -> list[MeasuredRun]:
    """The runs in a file, each compiled for ``cluster``.

    Raises:
        UserError: the file is wrong, or a run cannot be simulated; the text names the run.
    """
    text = read_text(path)
    if path.suffix == ".toml":
        table = parse_table(text, str(path))
        for key in table.keys() - {"runs"}:
            raise UserError(f"{path}: {key}: there is no such key: use one table [[runs]] per run")
        rows = table.get("runs")
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise UserError(f"{path}: expected a table [[runs]] for each run")
    else:
        rows = _csv(path, text)
    if not rows:
        raise UserError(f"{path}: has no runs")
    return [_run(f"{path}: run {number}", row, cluster) for number, row in enumerate(rows, 1)]


def _csv(path: Path, text: str) -> Sequence[Mapping[str, Any]]:
    reader = csv.DictReader(text.splitlines(), restkey="", restval="")
    try:
        rows = list(reader)
    except csv.Error as error:
        raise UserError(f"{path}: is not CSV: line {reader.line_num}: {error}") from None
    missing = [key for key in _KEYS if key not in (reader.fieldnames or ())]
    if missing:
        raise UserError(f"{path}: no column {missing[0]}: the first line must be {','.join(_KEYS)}")
    return rows


def _run(where: str, row: Mapping[str, Any], cluster: Cluster) -> MeasuredRun:
    for key in row.keys() - {*_KEYS, "sequence"}:
        raise UserError(f"{where}: {key or 'a value too many'}: there is no such key")
    for key in _KEYS:
        if key not in row:
            raise UserError(f"{where}: {key} is missing")
    model, strategy = str(row["model"]).strip(), str(row["strategy"]).strip()
    gpus = _number(where, "gpus", row["gpus"], whole=True)
    seconds = _number(where, "seconds", row["seconds"], whole=False)
    given = row.get("sequence", "")
    sequence = None if given == "" else int(_number(where, "sequence", given, whole=True))
    try:
        chosen = given_strategy(strategy, int(gpus))
        result = simulate(load_model(model, chosen.samples, sequence), chosen, cluster)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    text = f"{model} on {int(gpus)} GPUs, {strategy}".rstrip(", ")
    return MeasuredRun(text, result.program, seconds * 1e9)


def _number(where: str, key: str, value: Any, *, whole: bool) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    wrong = isinstance(value, bool) or not 0 < number < 1 << 20 or (whole and number % 1)
    if wrong:
        what = "a positive whole number" if whole else "a positive number"
        raise UserError(f"{where}: {key} is {value!r}: must be {what}")
    return number
