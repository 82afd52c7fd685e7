"""Converts a workload to the parts of a job that it describes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from byteprophet.job import Cluster, Host, Job, Model, Parameter, Policy, Strategy, Times
from byteprophet.job.strategy import ALL_REDUCE, BYTEPS
from byteprophet.network.namespaces import PAYLOAD_BURST_BYTES
from byteprophet.workload.model import Workload
from byteprophet.workload.run_config import link_limits_bps, server_limits_bps


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


def limited_host(payload_bps: int | None) -> Host:
    """A host whose link our limiter lets carry so much payload; None: it is not limited."""
    return Host(payload_bps, payload_bps, PAYLOAD_BURST_BYTES) if payload_bps else Host()


def job_on_links(workload: Workload, config: Mapping[str, Any]) -> Job:
    """The job of ``workload`` on the links of a run, as its ``config.toml`` limits them.

    Without servers, it is an all-reduce in no buckets, which is enough for its bound.
    """
    workers = config["workers"]
    # Local ranks sum among themselves first, so a worker is one member of the exchange.
    limits_bps = link_limits_bps({**config, "local_ranks": 1})
    servers = tuple(map(limited_host, server_limits_bps(config)))
    return Job(
        model_of(workload),
        times_of(workload, workers),
        Cluster(tuple(map(limited_host, limits_bps)), servers),
        Strategy(BYTEPS if servers else ALL_REDUCE),
        Policy(str(config["scheduler"])) if servers else None,
    )
