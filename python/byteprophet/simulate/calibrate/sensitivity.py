"""How predicted iteration times depend on a cluster's constants, by simulating with others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from byteprophet.simulate.clusters.constants import Constant, constants, with_constants
from byteprophet.simulate.clusters.description import Cluster
from byteprophet.simulate.compile.program import Program
from byteprophet.simulate.costs.collectives import OneCollective
from byteprophet.simulate.execute.conditions import ALIKE, Conditions
from byteprophet.simulate.execute.simulate import simulate_program

Vector = npt.NDArray[np.float64]

_STEP = 0.05
"""Of the logarithm of a constant."""


Job: TypeAlias = "Program | OneCollective"
"""What ran: an iteration of a program, or a collective alone."""


def log_time(job: Job, cluster: Cluster, conditions: Conditions = ALIKE) -> float:
    """The logarithm of the predicted time of an iteration, or of a collective."""
    if isinstance(job, OneCollective):
        return float(np.log(job.time_ns(cluster)))
    return float(np.log(simulate_program(job, cluster, conditions).iteration_ns))


def log_slopes(
    job: Job,
    cluster: Cluster,
    base: float,
    some: Sequence[str],
    conditions: Conditions = ALIKE,
) -> Vector:
    """The derivative of the logarithm of the time by that of each constant, shape (some,).

    ``base``: ``log_time`` of the job. Constants change to the side on which they have room.
    """
    values = {one.name: one for one in constants(cluster)}
    return np.array([_slope(job, cluster, base, values[name], conditions) for name in some])


def _slope(
    job: Job, cluster: Cluster, base: float, constant: Constant, conditions: Conditions
) -> float:
    up = constant.value * np.exp(_STEP) <= constant.most
    changed = with_constants(
        cluster, {constant.name: constant.value * np.exp(_STEP if up else -_STEP)}
    )
    value = next(one.value for one in constants(changed) if one.name == constant.name)
    if value == constant.value:
        return 0.0  # nanoseconds are whole numbers
    step = np.log(value / constant.value)
    return float((log_time(job, changed, conditions) - base) / step)
