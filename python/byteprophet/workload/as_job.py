"""Converts a workload to the parts of a job that it describes."""

from __future__ import annotations

import numpy as np

from byteprophet.job import Model, Parameter, Times
from byteprophet.workload.model import Workload


def model_of(workload: Workload) -> Model:
    """Its tensors as parameters."""
    return Model(tuple(Parameter(tensor.name, tensor.size_bytes) for tensor in workload.tensors))


def times_of(workload: Workload, workers: int = 1, iterations: int = 1) -> Times:
    """The same times for every worker and iteration; updates take no time."""
    shape = (workers, iterations, len(workload.tensors))

    def everywhere(times_ns: object) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
        return np.broadcast_to(np.asarray(times_ns, dtype=np.int64), shape)

    return Times(
        forward_ns=everywhere([tensor.forward_ns for tensor in workload.tensors]),
        ready_ns=everywhere(workload.ready_ns()),
        backward_ns=np.full(shape[:2], workload.backward_ns, dtype=np.int64),
        update_ns=np.zeros(shape, dtype=np.int64),
    )
