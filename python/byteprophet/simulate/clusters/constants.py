"""The constants of a cluster by name, with what is known of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from byteprophet.simulate.clusters.beliefs import UNSTATED, Matrix
from byteprophet.simulate.clusters.description import PARTS, Cluster

_LEAST = 1e-3
"""Of a constant that is a part of something."""


@dataclass(frozen=True)
class Constant:
    """A constant, such as "gpu.launch_ns".

    Attributes:
        name: its part of the description, and its name there.
        value: its value.
        uncertainty: its relative standard deviation; 0: it is taken as exact.
        source: where it comes from, in words.
        is_part: whether it is at most 1.
    """

    name: str
    value: float
    uncertainty: float
    source: str
    is_part: bool


def constants(cluster: Cluster) -> list[Constant]:
    """All numbers that a description states."""
    found = []
    for part in PARTS:
        described = getattr(cluster, part)
        for field in fields(described):
            value, name = getattr(described, field.name), f"{part}.{field.name}"
            if not isinstance(value, (int, float)) or isinstance(value, bool):
                continue
            if value == field.default:
                continue
            source = cluster.beliefs.of(name)
            is_part = field.type == "float"
            uncertainty = source.uncertainty
            if uncertainty is None:  # sizes, counts and peaks are what a data sheet says
                estimated = is_part or name.endswith("_ns")
                uncertainty = UNSTATED if estimated else 0.0
            found.append(Constant(name, value, uncertainty, source.text, is_part))
    return found


def uncertain(cluster: Cluster) -> list[Constant]:
    """The constants on which times depend, and that are not exact."""
    some = (one for one in constants(cluster) if not one.name.endswith("_bytes"))
    return [one for one in some if one.uncertainty]


def with_constants(cluster: Cluster, values: Mapping[str, float]) -> Cluster:
    """The cluster with other values of these constants; times and sizes are rounded."""
    known = {one.name: one for one in constants(cluster)}
    for part in PARTS:
        described = getattr(cluster, part)
        changed: dict[str, float] = {}
        for name, value in values.items():
            if name.startswith(f"{part}."):
                whole = max(1, round(value))
                kept = min(1.0, max(_LEAST, value)) if known[name].is_part else whole
                changed[name.removeprefix(f"{part}.")] = kept
        cluster = replace(cluster, **{part: replace(described, **changed)})
    return cluster


def covariance(cluster: Cluster, some: Sequence[Constant]) -> Matrix:
    """The covariance of the logarithms of ``some`` constants."""
    spread = np.array([one.uncertainty for one in some])
    correlation = cluster.beliefs.correlation([one.name for one in some])
    found: Matrix = correlation * np.outer(spread, spread)
    return found
