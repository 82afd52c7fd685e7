"""How well the constants of a cluster are known: relative uncertainties, sources, correlations.

An uncertainty is a standard deviation, as a part of the constant: 0.05 means that the constant is
within 5% of its value two times in three. Calibration against measured runs makes uncertainties
smaller, but correlated: it may know a product of two constants better than each of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from byteprophet.errors import UserError
from byteprophet.input_files import is_number

UNSTATED = 0.2
"""The uncertainty of a constant of which nothing is stated."""
LARGEST_UNCERTAINTY = 2
"""The largest uncertainty that a file may state."""
_DIGITS = 9
"""Of correlations that are saved. All are, and this exactly: those of constants that are known
together only would contradict each other without the small ones."""

Matrix = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Source:
    """The source of a constant, in words, and its relative uncertainty; None: not stated."""

    text: str = "not stated"
    uncertainty: float | None = None


@dataclass(frozen=True)
class Beliefs:
    """What is known of constants, by names such as "gpu.launch_ns".

    Attributes:
        sources: those that are stated.
        correlations: those of pairs of constants that are not 0, in both orders.
    """

    sources: Mapping[str, Source] = field(default_factory=dict)
    correlations: Mapping[tuple[str, str], float] = field(default_factory=dict)

    def of(self, name: str) -> Source:
        """What is known of one constant."""
        return self.sources.get(name, Source())

    def correlation(self, names: list[str]) -> Matrix:
        """The correlations of these constants, shape (names, names)."""
        found = np.eye(len(names))
        for row, one in enumerate(names):
            for column, other in enumerate(names):
                if row != column:
                    found[row, column] = self.correlations.get((one, other), 0.0)
        return found


def parse_beliefs(path: Path, names: Set[str], sources: Any, correlations: Any) -> Beliefs:
    """The tables ``[sources.PART]`` and ``[correlations]`` of a cluster's file.

    Raises:
        UserError: they are wrong; the text names the file and the setting.
    """
    found: dict[str, Source] = {}
    for part, table in _table(path, "sources", sources).items():
        for key, given in _table(path, f"sources.{part}", table).items():
            name, where = f"{part}.{key}", f"sources.{part}.{key}"
            if name not in names:
                raise UserError(f"{path}: {where}: there is no such setting {name}")
            stated = dict(_table(path, where, given))
            text, uncertainty = stated.pop("source", ""), stated.pop("uncertainty", None)
            if stated or not isinstance(text, str):
                raise UserError(
                    f'{path}: {where}: expected {{ source = "...", uncertainty = 0.1 }}'
                )
            most = LARGEST_UNCERTAINTY
            if uncertainty is not None and not _is_between(uncertainty, 0, most):
                raise UserError(
                    f"{path}: {where}.uncertainty is {uncertainty!r}: must be 0 to {most}"
                )
            found[name] = Source(text, uncertainty)
    return Beliefs(found, _correlations(path, names, correlations))


def _correlations(path: Path, names: Set[str], given: Any) -> dict[tuple[str, str], float]:
    found: dict[tuple[str, str], float] = {}
    for one, row in _table(path, "correlations", given).items():
        for other, value in _table(path, f'correlations."{one}"', row).items():
            if one not in names or other not in names or one == other:
                raise UserError(
                    f'{path}: correlations."{one}"."{other}": no such pair of constants'
                )
            if not _is_between(value, -1, 1):
                raise UserError(
                    f'{path}: correlations."{one}"."{other}" is {value!r}: must be -1 to 1'
                )
            found[one, other] = found[other, one] = float(value)
    beliefs = Beliefs(correlations=found)
    involved = sorted({one for one, _ in found})
    if involved and np.linalg.eigvalsh(beliefs.correlation(involved)).min() < -1e-6:
        raise UserError(f"{path}: correlations: they contradict each other")
    return found


def beliefs_as_tables(beliefs: Beliefs) -> dict[str, Any]:
    """``beliefs`` as the tables of a cluster's file."""
    sources: dict[str, dict[str, Any]] = {}
    for name, source in beliefs.sources.items():
        part, key = name.split(".")
        stated: dict[str, Any] = {"source": source.text}
        if source.uncertainty is not None:
            stated["uncertainty"] = round(source.uncertainty, 6)
        sources.setdefault(part, {})[key] = stated
    pairs: dict[str, dict[str, float]] = {}
    for (one, other), value in sorted(beliefs.correlations.items()):
        saved = round(value, _DIGITS)
        if one < other and saved:
            pairs.setdefault(one, {})[other] = saved
    return {"sources": sources, "correlations": pairs}


def _table(path: Path, name: str, given: Any) -> Mapping[str, Any]:
    if not isinstance(given, dict):
        raise UserError(f"{path}: {name} must be a table")
    return given


def _is_between(value: Any, least: float, most: float) -> bool:
    return is_number(value) and bool(least <= value <= most)
