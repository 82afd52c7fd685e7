"""The iteration time of a recorded job, replayed as it was or with changes, beside simpler answers.

A prediction is the median of the replayed iterations of the slowest worker. The first ones, in
which policies do not know job and network yet, are left out, in the measured job too. Its interval
holds nine in ten replayed iterations, and is wider by the error that the replay of the unchanged
job has: who could not say what was will not know better what would be.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from byteprophet import _core
from byteprophet.graph.measured import Measured
from byteprophet.graph.model import Int64Array
from byteprophet.graph.ps_graph import build
from byteprophet.graph.ps_job import PsJob
from byteprophet.graph.ring_job import RingJob
from byteprophet.replay.engine import replay
from byteprophet.replay.kinds import Kind
from byteprophet.replay.ring import RING
from byteprophet.replay.what_if import Changes, change

_WARMUP = 5  # iterations, but at most half of them
_LOW, _HIGH = 0.05, 0.95


@dataclass(frozen=True)
class Prediction:
    """``median_ns`` of an iteration, and the interval in which nine in ten are.

    ``measured_ns``, ``error``: of the job as it was recorded; None where anything was changed.
    ``replay_error``: that of the unchanged job. ``daydream_ns``: each tensor alone on the link, as
    Daydream (Zhu et al., ATC 2020) has it. ``bound_ns``: no schedule is faster.
    """

    job: PsJob | RingJob
    median_ns: int
    low_ns: int
    high_ns: int
    measured_ns: int | None
    replay_error: float
    daydream_ns: int
    bound_ns: int

    @property
    def error(self) -> float | None:
        """Predicted over measured, less 1."""
        return None if self.measured_ns is None else self.replay_error

    def as_json(self) -> dict[str, Any]:
        """As ``byteprophet replay --json`` prints it (docs/formats.md)."""
        return {
            "schema": 1,
            "iteration_ns": {"median": self.median_ns, "low": self.low_ns, "high": self.high_ns},
            "measured_ns": self.measured_ns,
            "error": self.error,
            "replay_error": self.replay_error,
            "daydream_ns": self.daydream_ns,
            "bound_ns": self.bound_ns,
            "assumptions": _kind_of(self.job).assumptions(self.job),
        }


def predict(measured: Measured, changes: Changes) -> Prediction:
    """How long iterations of the measured job take with ``changes``."""
    kind = _kind_of(measured.job)
    warmup = max(min(_WARMUP, measured.job.iterations // 2), measured.settled_from)
    # The last iteration's end has nothing after it, in the graph.
    was_ns = int(np.median(measured.iteration_ns[warmup:]))
    same_ns = kind.iterations_ns(measured.job)[warmup:]
    replay_error = float(np.median(same_ns)) / was_ns - 1
    job = kind.change(measured.job, changes)
    times_ns = same_ns if changes == Changes() else kind.iterations_ns(job)[warmup:]
    low_ns, high_ns = np.quantile(times_ns, (_LOW, _HIGH))
    unsure = abs(replay_error)
    return Prediction(
        job=job,
        median_ns=int(np.median(times_ns)),
        low_ns=int(low_ns * (1 - unsure)),
        high_ns=int(high_ns * (1 + unsure)),
        measured_ns=was_ns if changes == Changes() else None,
        replay_error=replay_error,
        daydream_ns=kind.daydream_ns(job),
        bound_ns=kind.bound_ns(job),
    )


def daydream_ns(job: PsJob) -> int:
    """The iteration if every tensor had the link for itself: its size over the bandwidth, twice."""
    slowest_ns = 0
    for worker in range(job.workers):
        forward_ns, ready_ns, backward_ns = _medians(job, worker)
        rate_bps = job.slowest_bps[worker]
        travel_ns = np.array(job.size_bytes) * 16e9 / rate_bps if rate_bps else 0 * ready_ns
        there_ns = ready_ns + travel_ns
        end_ns = float(backward_ns)
        for tensor_there_ns, layer_ns in zip(there_ns, forward_ns, strict=True):
            end_ns = max(end_ns, float(tensor_there_ns)) + float(layer_ns)
        slowest_ns = max(slowest_ns, round(end_ns))
    return slowest_ns


def bound_ns(job: PsJob) -> int:
    """The shortest iteration that any schedule gives the slowest worker, at its median times."""
    bounds_ns = []
    for worker, rate_bps in enumerate(job.slowest_bps):
        forward_ns, ready_ns, backward_ns = _medians(job, worker)
        bound = _core.iteration_bound_ns(
            list(job.size_bytes),
            ready_ns.tolist(),
            forward_ns.tolist(),
            backward_ns=backward_ns,
            bandwidth_bps=rate_bps or None,
            workers=job.workers,
            servers=job.servers,
            server_bandwidth_bps=None,
        )
        bounds_ns.append(bound)
    return max(bounds_ns)


def _medians(job: PsJob, worker: int) -> tuple[Int64Array, Int64Array, int]:
    """Of one worker, over all iterations: forward and ready times (L,), backward."""
    compute = job.compute
    forward_ns = np.median(compute.forward_ns[worker], axis=0).astype(np.int64)
    ready_ns = np.median(compute.ready_ns[worker], axis=0).astype(np.int64)
    return forward_ns, ready_ns, int(np.median(compute.backward_ns[worker]))


def _assumptions(job: PsJob) -> dict[str, Any]:
    network = job.network
    return {
        "scheduler": job.scheduler,
        "settings": dict(job.settings),
        "partition_bytes": job.partition_bytes,
        "workers": job.workers,
        "servers": job.servers,
        "iterations": job.iterations,
        "payload_bps": [rate or None for rate in network.worker_bps],
        "answers_bps": [rate or None for rate in network.down_bps],
        "message_cost_ns": network.message_cost_ns,
        "delay_ns": network.delay_ns,
        "sum_ns_per_byte": network.sum_ns_per_byte,
        "hand_over_ns": network.hand_over_ns,
        "request_lag_ns": network.request_lag_ns,
    }


def _iterations_ns(job: PsJob) -> Int64Array:
    """Of the slowest worker, shape (iterations,)."""
    built = build(job)
    replayed = replay(built.graph)
    starts_ns = replayed.start_ns[built.begin]
    ends_ns = replayed.end_ns[built.backward[..., -1]]
    slowest: Int64Array = (ends_ns - starts_ns).max(axis=0)
    return slowest


_PS = Kind(change, _iterations_ns, daydream_ns, bound_ns, _assumptions)


def _kind_of(job: PsJob | RingJob) -> Kind[Any]:
    return RING if isinstance(job, RingJob) else _PS
