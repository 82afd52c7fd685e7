"""Compares predictions with measurements: their errors, and whether they rank policies correctly.

Predictions use the first job's record alone. Every job is recorded, so each one is also replayed
from its own record. The error of that replay is the model's own, without differences between jobs.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from byteprophet.bench.grid_store import Record, machines_of
from byteprophet.measure.processor_file import measure_on_cores
from byteprophet.measure.run import Run
from byteprophet.replay.predict import Prediction, predict
from byteprophet.replay.what_if import Changes
from byteprophet.validate.cases import ValidationCase

SCHEMA = 1
_DIFFER = 0.05
"""Policies whose measured times differ by more are ranked."""


@dataclass(frozen=True)
class Compared:
    """A case: what was predicted, and what its jobs were; ``replayed``: from their own records."""

    what: ValidationCase
    predicted: Prediction
    replayed: tuple[Prediction, ...]
    records: tuple[Record, ...]

    @property
    def measured_ns(self) -> int:
        """The median of all rounds' iterations."""
        times_ns = itertools.chain.from_iterable(r["iteration_ns"] for r in self.records)
        return int(np.median([*times_ns]))

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return self.predicted.median_ns / self.measured_ns - 1

    @property
    def daydream_error(self) -> float:
        """The same of Daydream's model."""
        return self.predicted.daydream_ns / self.measured_ns - 1

    def as_json(self) -> dict[str, Any]:
        """As in ``Validation.as_json``."""
        return {
            "case": self.what.name,
            "predicted_ns": {
                "median": self.predicted.median_ns,
                "low": self.predicted.low_ns,
                "high": self.predicted.high_ns,
            },
            "measured_ns": self.measured_ns,
            "error": self.error,
            "daydream_ns": self.predicted.daydream_ns,
            "daydream_error": self.daydream_error,
            "bound_ns": self.predicted.bound_ns,
            "replays": [
                {
                    "run": record["run"],
                    "measured_ns": own.measured_ns,
                    "replayed_ns": own.median_ns,
                    "error": own.error,
                    "daydream_ns": own.daydream_ns,
                    "machine_cpu_fraction": record["machine_cpu_fraction"],
                    "saturated_fraction": record["saturated_fraction"],
                }
                for own, record in zip(self.replayed, self.records, strict=True)
            ],
        }


@dataclass(frozen=True)
class Pair:
    """Two policies whose measured times differ clearly; ``right``: predicted ones the same way."""

    faster: str
    slower: str
    right: bool


@dataclass(frozen=True)
class Errors:
    """Of absolute values."""

    mean: float
    worst: float

    @classmethod
    def of(cls, errors: Sequence[float]) -> Errors:
        """Of ``errors``, one or more."""
        sizes = np.abs(errors)
        return cls(float(sizes.mean()), float(sizes.max()))


@dataclass(frozen=True)
class Validation:
    """All cases: the job that was recorded first, then one other or more."""

    cases: tuple[Compared, ...]

    @property
    def errors(self) -> Errors:
        """Of predictions of jobs that were not used."""
        return Errors.of([case.error for case in self.cases[1:]])

    @property
    def daydream_errors(self) -> Errors:
        """Daydream's, of the same."""
        return Errors.of([case.daydream_error for case in self.cases[1:]])

    @property
    def replay_errors(self) -> Errors:
        """Of replays of the runs that they came from."""
        return Errors.of([own.replay_error for case in self.cases for own in case.replayed])

    def pairs(self) -> list[Pair]:
        """Of policies on the recorded link, the recorded job's included."""
        found = []
        same = [case for case in self.cases if case.what.same_link]
        for one, other in itertools.combinations(same, 2):
            faster, slower = sorted((one, other), key=lambda case: case.measured_ns)
            if slower.measured_ns > (1 + _DIFFER) * faster.measured_ns:
                right = faster.predicted.median_ns < slower.predicted.median_ns
                names = (faster.what.case.name, slower.what.case.name)
                found.append(Pair(*names, right))
        return found

    def as_json(self) -> dict[str, Any]:
        """As ``byteprophet replay --validate --json`` saves it (docs/formats.md)."""
        first = self.cases[0]
        return {
            "schema": SCHEMA,
            "workload": first.what.case.workload,
            "scheduler": first.what.case.name,
            "bandwidth_bps": first.what.case.bandwidth_bps,
            "workers": first.what.case.workers,
            "servers": first.what.case.servers,
            "recorded": first.records[0]["run"],
            "cases": [case.as_json() for case in self.cases],
            "errors": vars(self.errors),
            "daydream_errors": vars(self.daydream_errors),
            "replay_errors": vars(self.replay_errors),
            "pairs": [vars(pair) for pair in self.pairs()],
            "machines": machines_of(record for case in self.cases for record in case.records),
        }


def compare(
    cases: Sequence[ValidationCase], records: Sequence[Record], directory: Path
) -> Validation:
    """Predicts ``cases`` from the first record's run, and replays every run.

    ``records``: of all jobs that ran in ``directory``, the recorded one first.
    """
    measured = {
        record["run"]: measure_on_cores(Run(directory / "runs" / record["run"]))
        for record in records
    }
    compared = []
    for what in cases:
        mine = tuple(record for record in records if record["variant"] == what.name)
        replayed = [predict(measured[record["run"]], Changes()) for record in mine]
        predicted = predict(measured[records[0]["run"]], what.changes)
        compared.append(Compared(what, predicted, tuple(replayed), mine))
    return Validation(tuple(compared))
