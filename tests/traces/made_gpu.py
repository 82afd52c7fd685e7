"""Profiles of a data-parallel job on GPUs that was computed by hand, not with our engine.

Each step, the training thread launches the forward pass. autograd's thread launches the backward
pass, and an all-reduce on a stream of its own after every other layer, which waits for the layer's
kernel. The optimizer's kernels wait for all of these. Then the training thread waits for the GPU,
or goes on, until the queue of launches is full. The files are what ``torch.profiler`` would have
written.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MAIN, AUTOGRAD = 100, 101
COMPUTE, COMMUNICATION = 7, 20
LATENCY_US = 6.0
"""From a launch until the GPU can begin."""


@dataclass(frozen=True)
class Job:
    """What is trained. Times are microseconds.

    Attributes:
        ranks: data-parallel ranks.
        layers: the number of layers.
        kernel_us: the time of a layer's forward kernel; its backward kernel takes twice as long.
        operator_us: the host's time per operator.
        all_reduce_us: the time of an all-reduce once all ranks are there.
        steps: the number of profiled steps.
        sync_records: the profile has records of waits (``cuda_sync``).
        reads_loss: the training thread waits for the GPU at the end of each step.
        queue: how many launches to the stream that computes may be outstanding; 0: any number.
        queues_events: records of events and waits for them take places in that queue, too.
        warm_up: steps before those that are profiled.
        keeps_backlog: the profile has the kernels that begin in it but were launched before.
    """

    ranks: int = 2
    layers: int = 8
    kernel_us: float = 400.0
    operator_us: float = 60.0
    all_reduce_us: float = 500.0
    steps: int = 4
    sync_records: bool = False
    reads_loss: bool = True
    queue: int = 0
    queues_events: bool = False
    warm_up: int = 0
    keeps_backlog: bool = True


@dataclass
class _Rank:
    """A rank while it runs: the clocks of its threads and streams, and its events."""

    random: random.Random
    events: list[dict[str, Any]] = field(default_factory=list)
    now_us: float = 1000.0
    compute_us: float = 0.0
    communication_us: float = 0.0
    correlation: int = 0
    queued: list[float] = field(default_factory=list)  # when each place was or will be free


def write_profiles(folder: Path, job: Job, seed: int = 0) -> list[float]:
    """Writes a file per rank. Returns the true times of the steps, of the slowest rank, in us."""
    folder.mkdir(parents=True, exist_ok=True)
    ranks = [_Rank(random.Random(seed * 1000 + rank)) for rank in range(job.ranks)]
    times = [_step(job, ranks, step) for step in range(job.warm_up + job.steps)][job.warm_up :]
    for number, rank in enumerate(ranks):
        _drop_warm_up(job, rank)
        trace = {
            "schemaVersion": 1,
            "distributedInfo": {"backend": "nccl", "rank": number, "world_size": job.ranks},
            "traceEvents": rank.events,
        }
        (folder / f"rank{number}.json").write_text(json.dumps(trace))
    return times


def _drop_warm_up(job: Job, rank: _Rank) -> None:
    """Leaves what began in the profiled steps."""
    begin_us = min(
        event["ts"] for event in rank.events if event["name"] == f"ProfilerStep#{job.warm_up}"
    )
    launched = {
        event["args"].get("correlation")
        for event in rank.events
        if event["pid"] != 0 and event["ts"] >= begin_us
    }
    rank.events = [
        event
        for event in rank.events
        if event["ts"] >= begin_us
        and (job.keeps_backlog or event["pid"] != 0 or event["args"]["correlation"] in launched)
    ]


def _step(job: Job, ranks: list[_Rank], step: int) -> float:
    begins = [rank.now_us for rank in ranks]
    waiting = [_launch_passes(job, rank) for rank in ranks]
    for reduces in zip(*waiting, strict=True):
        _all_reduce(job, ranks, reduces)
    for rank, begin_us in zip(ranks, begins, strict=True):
        _finish(job, rank)
        _event(rank, "user_annotation", f"ProfilerStep#{step}", MAIN, begin_us, rank.now_us)
    took = [rank.now_us - begin_us for rank, begin_us in zip(ranks, begins, strict=True)]
    for rank in ranks:
        rank.now_us += 5.0
    return max(took)


def _launch_passes(job: Job, rank: _Rank) -> list[tuple[float, float, int]]:
    """Forward and backward. Returns each all-reduce: when it was launched, may begin, its id."""
    for _ in range(job.layers):
        _operator(job, rank, "aten::linear", MAIN, job.kernel_us)
    rank.now_us += 80.0  # Python calls backward
    reduces = []
    for layer in range(job.layers):
        name = "autograd::engine::evaluate_function: AddmmBackward0"
        _operator(job, rank, name, AUTOGRAD, 2 * job.kernel_us)
        if layer % 2:
            begin_us = rank.now_us
            _wait_for_event(job, rank, AUTOGRAD, COMMUNICATION, COMPUTE)
            launched_us = rank.now_us
            correlation = _launch(rank, AUTOGRAD)
            rank.now_us += 10.0
            _event(rank, "cpu_op", "c10d::allreduce_", AUTOGRAD, begin_us, rank.now_us)
            reduces.append((launched_us, rank.compute_us, correlation))
    return reduces


def _all_reduce(job: Job, ranks: list[_Rank], reduces: Sequence[tuple[float, float, int]]) -> None:
    """An all-reduce of all ranks: it ends when the last one has come, and the data has moved."""
    begins = [
        max(rank.communication_us, launched_us + LATENCY_US, computed_us)
        for rank, (launched_us, computed_us, _) in zip(ranks, reduces, strict=True)
    ]
    end_us = max(begins) + job.all_reduce_us
    for rank, begin_us, (_, _, correlation) in zip(ranks, begins, reduces, strict=True):
        rank.communication_us = end_us
        said = {"Collective name": "allreduce", "In msg nelems": 1 << 20, "dtype": "Float"}
        said |= {"Group size": job.ranks, "Process Group Name": "0"}
        name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
        _kernel(rank, name, COMMUNICATION, begin_us, end_us, correlation, said)


def _finish(job: Job, rank: _Rank) -> None:
    """The optimizer on the training thread, and its wait for the GPU."""
    rank.now_us += 60.0  # backward returns
    _wait_for_event(job, rank, MAIN, COMPUTE, COMMUNICATION)
    rank.compute_us = max(rank.compute_us, rank.communication_us)
    for _ in range(job.layers // 2):
        _operator(job, rank, "aten::_foreach_add_", MAIN, job.kernel_us / 10)
    if not job.reads_loss:
        return
    begin_us = rank.now_us
    rank.correlation += 1
    rank.now_us = max(begin_us + 4.0, rank.compute_us + 3.0)
    _call(rank, "cudaStreamSynchronize", MAIN, begin_us, rank.now_us, rank.correlation)
    if job.sync_records:
        said = {"stream": COMPUTE, "correlation": rank.correlation, "device": 0}
        _event(rank, "cuda_sync", "Stream Sync", COMPUTE, begin_us, rank.now_us, said, pid=0)
    rank.now_us += 20.0


def _operator(job: Job, rank: _Rank, name: str, thread: int, kernel_us: float) -> None:
    begin_us = rank.now_us
    took_us = job.operator_us * rank.random.uniform(0.8, 1.2)
    rank.now_us += took_us / 2
    blocked_us = _blocked(job, rank)
    launched_us = rank.now_us + blocked_us
    correlation = _launch(rank, thread, blocked_us)
    rank.now_us = begin_us + took_us + blocked_us
    _event(rank, "cpu_op", name, thread, begin_us, rank.now_us)
    start_us = max(rank.compute_us + 1.0, launched_us + LATENCY_US)
    rank.compute_us = start_us + kernel_us * rank.random.uniform(0.95, 1.05)
    rank.queued.append(rank.compute_us)
    _kernel(rank, "gemm", COMPUTE, start_us, rank.compute_us, correlation, {})
    rank.now_us += 4.0


def _blocked(job: Job, rank: _Rank) -> float:
    """How long the queue of the stream that computes has no place."""
    if not job.queue or len(rank.queued) < job.queue:
        return 0.0
    return max(0.0, rank.queued[-job.queue] - rank.now_us)


def _launch(rank: _Rank, thread: int, blocked_us: float = 0.0) -> int:
    rank.correlation += 1
    begin_us = rank.now_us
    end_us = begin_us + blocked_us + 5.0
    _call(rank, "cudaLaunchKernel", thread, begin_us, end_us, rank.correlation)
    return rank.correlation


def _wait_for_event(job: Job, rank: _Rank, thread: int, stream: int, on: int) -> None:
    """Records an event on one stream, and lets another one wait for it."""
    rank.correlation += 2
    recorded, waited = rank.correlation - 1, rank.correlation
    blocked_us = 0.0
    if job.queues_events:
        blocked_us = _blocked(job, rank)
        done_us = rank.compute_us
        rank.queued.append(done_us if on == COMPUTE else max(done_us, rank.communication_us))
    _call(rank, "cudaEventRecord", thread, rank.now_us, rank.now_us + blocked_us + 1.0, recorded)
    rank.now_us += blocked_us
    _call(rank, "cudaStreamWaitEvent", thread, rank.now_us + 1.5, rank.now_us + 2.5, waited)
    if job.sync_records:
        said = {"stream": stream, "correlation": waited, "device": 0, "wait_on_stream": on}
        said |= {"wait_on_cuda_event_record_corr_id": recorded, "wait_on_cuda_event_id": recorded}
        begin_us = rank.now_us + 2.0
        name = "Stream Wait Event"
        _event(rank, "cuda_sync", name, stream, begin_us, begin_us + 0.1, said, pid=0)
    rank.now_us += 3.0


def _call(rank: _Rank, name: str, thread: int, begin: float, end: float, number: int) -> None:
    _event(rank, "cuda_runtime", name, thread, begin, end, {"correlation": number})


def _kernel(
    rank: _Rank, name: str, stream: int, begin: float, end: float, number: int, said: dict[str, Any]
) -> None:
    arguments = {"device": 0, "stream": stream, "correlation": number, **said}
    _event(rank, "kernel", name, stream, begin, end, arguments, pid=0)


def _event(
    rank: _Rank,
    category: str,
    name: str,
    tid: int,
    begin_us: float,
    end_us: float,
    arguments: dict[str, Any] | None = None,
    *,
    pid: int = 99,
) -> None:
    rank.events.append(
        {
            "ph": "X",
            "cat": category,
            "name": name,
            "pid": pid,
            "tid": tid,
            "ts": round(begin_us, 3),
            "dur": round(round(end_us, 3) - round(begin_us, 3), 3),
            "args": arguments or {},
        }
    )
