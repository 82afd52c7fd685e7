"""Errors of predictions against measurements, and halves of rows for fitting and for testing."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import numpy as np

from byteprophet.simulate.clusters.description import Cluster


@dataclass(frozen=True)
class Score:
    """The errors of one set of rows, as predicted over measured less 1.

    Attributes:
        name: the rows.
        errors: the simulator's, with fitted constants.
        naive: those of one constant.
        shipped: the simulator's, with the constants that it comes with.
        constants: the fitted constants, in words.
        roofline: those of a roofline, in which nothing is fitted; empty if there is none.
    """

    name: str
    errors: Sequence[float]
    naive: Sequence[float]
    shipped: Sequence[float]
    constants: str = ""
    roofline: Sequence[float] = ()

    @property
    def mape(self) -> float:
        """The mean absolute error."""
        return float(np.abs(self.errors).mean())

    @property
    def median(self) -> float:
        """The median absolute error."""
        return float(np.median(np.abs(self.errors)))

    @property
    def p95(self) -> float:
        """The 95th percentile of the absolute error."""
        return float(np.quantile(np.abs(self.errors), 0.95))

    @property
    def within(self) -> float:
        """The share of rows within 5%."""
        return float((np.abs(self.errors) <= 0.05).mean())

    @property
    def worst(self) -> float:
        """The error with the largest absolute value."""
        return float(max(self.errors, key=abs))

    @property
    def naive_mape(self) -> float:
        """The mean absolute error of one constant."""
        return float(np.abs(self.naive).mean())

    @property
    def shipped_mape(self) -> float:
        """The mean absolute error with the constants that the simulator comes with."""
        return float(np.abs(self.shipped).mean())

    @property
    def roofline_mape(self) -> float | None:
        """The mean absolute error of a roofline, if there is one."""
        return float(np.abs(self.roofline).mean()) if len(self.roofline) else None

    def as_json(self) -> dict[str, Any]:
        """The figures as plain data."""
        return {
            "name": self.name,
            "rows": len(self.errors),
            "mape": self.mape,
            "median": self.median,
            "p95": self.p95,
            "within_5_percent": self.within,
            "worst": self.worst,
            "naive_mape": self.naive_mape,
            "roofline_mape": self.roofline_mape,
            "shipped_mape": self.shipped_mape,
            "constants": self.constants,
        }


def half_of(row: str) -> int:
    """The half, 0 or 1, to which a row belongs."""
    return _digest(row)[0] & 1


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


class HasText(Protocol):
    """A row of measurements. Rows of equal text are in one half."""

    @property
    def text(self) -> str:
        """What identifies the row."""
        ...


AnyRow = TypeVar("AnyRow", bound=HasText)


def fitted_and_tested(
    tested: Sequence[AnyRow], others: Sequence[AnyRow] | None
) -> list[tuple[Sequence[AnyRow], Sequence[AnyRow]]]:
    """Pairs of rows for fitting and for testing: both halves of ``tested`` in turn.

    ``others``: rows for fitting only, so that all of ``tested`` are held out.
    """
    if others is not None:
        return [(others, tested)]
    first, second = ([row for row in tested if half_of(row.text) == half] for half in (0, 1))
    return [(first, second), (second, first)]


def repeated_folds(
    tested: Sequence[AnyRow], folds: int, repeats: int
) -> list[tuple[list[AnyRow], list[AnyRow]]]:
    """Pairs of rows for fitting and for testing: each of ``folds`` parts in turn is for testing.

    This is done with ``repeats`` different divisions into parts, which depend on the rows alone.
    Rows of equal text are in one part.
    """
    pairs = []
    for repeat in range(repeats):
        digests = {row.text: _digest(f"{repeat} {row.text}") for row in tested}
        order = sorted(digests, key=lambda text: digests[text])
        part = {text: at % folds for at, text in enumerate(order)}
        for fold in range(folds):
            fitted = [row for row in tested if part[row.text] != fold]
            pairs.append((fitted, [row for row in tested if part[row.text] == fold]))
    return pairs


def at_peak(cluster: Cluster) -> Cluster:
    """A roofline: the peaks of a cluster, without efficiencies, launches and latencies."""
    gpu = replace(
        cluster.gpu,
        matmul_efficiency=1.0,
        attention_efficiency=1.0,
        memory_efficiency=1.0,
        launch_ns=1,
    )
    node = replace(cluster.node, efficiency=1.0, step_ns=1, base_ns=1, own_step=0.0)
    network = replace(cluster.network, efficiency=1.0, step_ns=1)
    return replace(cluster, gpu=gpu, node=node, network=network)


def shares(predicted: Sequence[float], measured: Sequence[float]) -> list[float]:
    """Predicted over measured, less 1."""
    return [one / other - 1 for one, other in zip(predicted, measured, strict=True)]
