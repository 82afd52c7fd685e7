"""The constants of a cluster by name, with what is known of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from byteprophet.simulate.clusters.beliefs import UNSTATED, Matrix
from byteprophet.simulate.clusters.description import PARTS, Cluster, largest_part

_EXACT = ("network.uplink_share",)
"""Parts that are built so, and not estimated."""
_LEAST = 1e-3
"""Of a constant that is no whole number."""


@dataclass(frozen=True)
class Constant:
    """A constant, such as "gpu.launch_ns".

    Attributes:
        name: its part of the description, and its name there.
        value: its value.
        uncertainty: its relative standard deviation; 0: it is taken as exact.
        source: where it comes from, in words.
        most: what it may be at most; infinite: it is a whole number.
    """

    name: str
    value: float
    uncertainty: float
    source: str
    most: float


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
            most = largest_part(field.name) if field.type == "float" else math.inf
            uncertainty = source.uncertainty
            if uncertainty is None:  # sizes, counts and peaks are what a data sheet says
                estimated = (most < math.inf and name not in _EXACT) or name.endswith("_ns")
                uncertainty = UNSTATED if estimated else 0.0
            found.append(Constant(name, value, uncertainty, source.text, most))
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
                most = known[name].most
                kept = max(1, round(value)) if most == math.inf else min(most, max(_LEAST, value))
                changed[name.removeprefix(f"{part}.")] = kept
        cluster = replace(cluster, **{part: replace(described, **changed)})
    return cluster


def covariance(cluster: Cluster, some: Sequence[Constant]) -> Matrix:
    """The covariance of the logarithms of ``some`` constants."""
    spread = np.array([one.uncertainty for one in some])
    correlation = cluster.beliefs.correlation([one.name for one in some])
    found: Matrix = correlation * np.outer(spread, spread)
    return found
