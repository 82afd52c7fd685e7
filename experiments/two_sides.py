"""Strategies of two kinds that ran in alternating rounds: the best of one against the other's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from byteprophet.bench.result import read_results


def slowest_median_ns(run: Path, workers: int) -> int:
    """The median iteration of a run, of the slowest of its workers in each."""
    found = read_results(run, workers)
    return int(np.median(np.max([worker.iteration_ns for worker in found], axis=0)))


def gains_of(old: Sequence[Mapping[str, Any]], new: Sequence[Mapping[str, Any]]) -> list[float]:
    """Per round: the time of the best of ``old`` over that of the best of ``new``.

    Each has ``rounds_ns``. Which ones are the best is decided by the medians of all rounds, for
    both sides alike.
    """
    old_ns, new_ns = (min((each["rounds_ns"] for each in side), key=median) for side in (old, new))
    return [was_ns / is_ns for was_ns, is_ns in zip(old_ns, new_ns, strict=True)]
