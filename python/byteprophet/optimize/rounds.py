"""Keeps what finished runs of ``--apply`` and of trials measured: stopped ones go on from there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from byteprophet.errors import UserError
from byteprophet.input_files import has_schema, read_json
from byteprophet.job.times import Int64Array
from byteprophet.whole_files import make_directory, write_whole

SCHEMA = 1


class Rounds:
    """A file of finished runs; ``path`` None keeps nothing.

    ``of``: the digest of each variant: of its strategy, or of the recorded job. Runs of other
    digests are forgotten.
    """

    def __init__(self, path: Path | None, of: Mapping[str, str]) -> None:
        self._path = path
        self._of = dict(of)
        self._runs: dict[str, list[list[int]]] = {variant: [] for variant in of}
        if path is not None and path.exists():
            self._read(path)

    def done(self, variant: str) -> int:
        """How many runs of ``variant`` have finished."""
        return len(self._runs[variant])

    def add(self, variant: str, iteration_ns: Int64Array) -> None:
        """Keep the iterations of a run that has finished."""
        self._runs[variant].append([int(time_ns) for time_ns in iteration_ns])
        if self._path is not None:
            make_directory(self._path.parent)
            data = {"schema": SCHEMA, "strategies": self._of, "runs": self._runs}
            write_whole(self._path, json.dumps(data) + "\n")

    def iteration_ns(self, variant: str, rounds: int) -> list[Int64Array]:
        """The iterations of each of the first ``rounds`` runs of ``variant``."""
        return [np.array(run, dtype=np.int64) for run in self._runs[variant][:rounds]]

    def _read(self, path: Path) -> None:
        try:
            data: Any = read_json(path)
            if not has_schema(data, SCHEMA) or data["strategies"] != self._of:
                return
            runs = {
                variant: [list(map(_time_ns, run)) for run in data["runs"][variant]]
                for variant in self._of
            }
        except (UserError, ValueError, KeyError, TypeError, AttributeError):
            return  # what cannot be read is measured again
        self._runs = runs


def _time_ns(value: Any) -> int:
    if type(value) is not int or not 0 < value < 1 << 60:
        raise ValueError("not a time")
    return value
