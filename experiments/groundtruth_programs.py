"""What the sets of ``groundtruth.py`` share whose rows are whole iterations of a training job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from scipy.optimize import brentq

from byteprophet.simulate.calibrate.fit import Measured
from byteprophet.simulate.clusters.description import Cluster
from byteprophet.simulate.compile.program import Program
from byteprophet.simulate.execute.simulate import simulate_program

_ATTENTION = 0.7
"""The efficiency of attention over that of matrix products."""


def predict(some: Sequence[Measured], cluster: Cluster) -> list[float]:
    """Predicted iteration times, in nanoseconds."""
    return [float(simulate_program(row.program, cluster).iteration_ns) for row in some]


def flops_of(program: Program) -> float:
    """Model FLOPs per GPU and iteration."""
    strategy = program.strategy
    return program.model.flops() * strategy.micro_batches / strategy.mesh.ranks


def naive(fitted: Sequence[Measured], tested: Sequence[Measured]) -> list[float]:
    """Iteration times at one rate of model FLOPs per GPU, the median of ``fitted``."""
    rate = np.median([flops_of(row.program) / row.measured_ns for row in fitted])
    return [flops_of(row.program) / rate for row in tested]


def with_efficiency(cluster: Cluster, efficiency: float) -> Cluster:
    """The cluster with another efficiency of matrix products, relative to 16 bits."""
    gpu = replace(
        cluster.gpu,
        matmul_efficiency=efficiency,
        attention_efficiency=_ATTENTION * efficiency,
    )
    return replace(cluster, gpu=gpu)


def root(error: Callable[[float], float], least: float, most: float) -> float:
    """Where an error that falls is 0, between two values; that of them at which it is nearest."""
    if error(least) <= 0:
        return least
    if error(most) >= 0:
        return most
    return float(brentq(error, least, most, rtol=1e-3))
