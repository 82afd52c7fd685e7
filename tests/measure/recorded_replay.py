"""Events as a job's roles would have left them, had it run as its graph was replayed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from byteprophet.graph.ps_graph import PsGraph, build
from byteprophet.job import Job
from byteprophet.job.partitions import numbers_of
from byteprophet.replay import Replayed, replay
from byteprophet.schedulers import STOCK
from byteprophet.timeline.events import Events, Origin
from byteprophet.timeline.tables import (
    SERVED,
    SERVED_TABLE,
    SPAN,
    SPANS,
    TRANSFER,
    TRANSFERS,
    Kind,
    Rows,
)

EPOCH_NS = 10**15


def record(job: Job) -> tuple[list[Events], Replayed, PsGraph]:
    """The events of ``job``, and what they come from."""
    built = build(job)
    replayed = replay(built.graph)
    names = dict(enumerate(job.model.names))
    recorded = []
    for worker in range(job.workers):
        origin = Origin(f"worker-{worker}", worker)
        spans = _spans(job, built, replayed, worker)
        recorded.append(Events(SPANS, origin, spans, {**names, len(names): "other"}))
        if job.push_policy.name != STOCK:
            transfers = _transfers(job, built, replayed, worker)
            recorded.append(Events(TRANSFERS, origin, transfers, names))
    served = _served(job, built, replayed)
    for server in range(job.servers):
        rows = served[np.tile(built.partitions.server, len(served) // _partitions(built)) == server]
        recorded.append(Events(SERVED_TABLE, Origin(f"server-{server}", server), rows, {}))
    return recorded, replayed, built


def config_of(job: Job) -> Mapping[str, Any]:
    """As ``config.toml`` has it."""
    return {
        "workers": job.workers,
        "servers": job.servers,
        "scheduler": job.push_policy.name,
        "partition_bytes": job.strategy.partition_bytes,
        "settings": job.push_policy.settings,
    }


def _partitions(built: PsGraph) -> int:
    return len(built.partitions.size_bytes)


def _transfers(job: Job, built: PsGraph, replayed: Replayed, worker: int) -> Rows:
    parts, costs = built.partitions, job.cluster.costs
    sent_ns = np.zeros(len(built.graph), np.int64)
    gated = built.graph.gated
    sent_ns[gated.operation] = replayed.sent_ns
    tables = []
    for iteration in range(job.iterations):
        at = worker, iteration
        rows = np.zeros(_partitions(built), TRANSFER)
        rows["key"], rows["size_bytes"], rows["server"] = parts.key, parts.size_bytes, parts.server
        rows["iteration"], rows["priority"] = iteration + 1, -1 - parts.tensor
        rows["ready_ns"] = EPOCH_NS + replayed.end_ns[built.ready[at]][parts.tensor]
        taken = built.sent[at] != built.push[at]  # by a thread that hands over one at a time
        rows["sent_ns"] = EPOCH_NS + np.where(
            taken, replayed.start_ns[built.sent[at]], sent_ns[built.sent[at]]
        )
        acked_ns = replayed.end_ns[built.acked[at]] + costs.delay_ns + costs.ack_lag_ns
        pulled_ns = replayed.end_ns[built.answer[at]] + costs.delay_ns
        rows["acked_ns"] = EPOCH_NS + acked_ns
        rows["pulled_ns"] = EPOCH_NS + np.maximum(acked_ns, pulled_ns)
        tables.append(np.sort(rows, order="pulled_ns"))
    return np.concatenate(tables)


def _served(job: Job, built: PsGraph, replayed: Replayed) -> Rows:
    tables = []
    keys = built.partitions.key
    if job.push_policy.name == STOCK:  # declares by name
        numbers = np.array(numbers_of(job.model.names))
        keys = (numbers[built.partitions.tensor] << 16) + (keys & 0xFFFF)
    for worker in range(job.workers):
        for iteration in range(job.iterations):
            at = worker, iteration
            rows = np.zeros(_partitions(built), SERVED)
            rows["key"], rows["size_bytes"] = keys, built.partitions.size_bytes
            rows["worker"], rows["round"] = worker, iteration + 1
            rows["arrived_ns"] = replayed.end_ns[built.push[at]] + job.cluster.costs.delay_ns
            rows["sum_begin_ns"] = replayed.start_ns[built.sum[at]]
            rows["sum_end_ns"] = replayed.end_ns[built.sum[at]]
            rows["asked_ns"] = replayed.end_ns[built.request[at]] + job.cluster.costs.delay_ns
            rows["answered_ns"] = replayed.start_ns[built.answered[at]]
            for name in ("arrived_ns", "sum_begin_ns", "sum_end_ns", "asked_ns", "answered_ns"):
                rows[name] += EPOCH_NS
            tables.append(rows)
    return np.concatenate(tables)


def _spans(job: Job, built: PsGraph, replayed: Replayed, worker: int) -> Rows:
    each = _each_stock_span if job.push_policy.name == STOCK else _each_span
    rows = np.array([*each(built, replayed, worker)], np.int64)
    spans = np.zeros(len(rows), SPAN)
    spans["kind"], spans["iteration"], spans["name"] = rows[:, 0], rows[:, 1], rows[:, 2]
    spans["begin_ns"], spans["end_ns"] = EPOCH_NS + rows[:, 3], EPOCH_NS + rows[:, 4]
    backward = spans["kind"] == Kind.BACKWARD
    spans["size_bytes"][backward] = np.array(job.model.sizes_bytes)[spans["name"][backward]]
    return spans


_Span = tuple[int, int, int, int, int]
"""Kind, iteration, name, begin, end."""


def _each_span(built: PsGraph, replayed: Replayed, worker: int) -> Iterator[_Span]:
    start_ns, end_ns = replayed.start_ns, replayed.end_ns
    iterations, tensors = built.forward.shape[1:]
    for iteration in range(iterations):
        at, number = (worker, iteration), iteration + 1
        free_ns = int(start_ns[built.begin[at]])
        yield (
            Kind.ITERATION,
            number,
            tensors,
            free_ns,
            int(end_ns[built.backward[at][-1]]),
        )
        for tensor, operation in enumerate(built.forward[at].tolist()):
            begin_ns = int(start_ns[operation])
            if begin_ns > free_ns:
                yield Kind.WAIT, number, tensor, free_ns, begin_ns
            free_ns = int(end_ns[operation])
            yield Kind.FORWARD, number, tensor, begin_ns, free_ns
        for tensor, operation in enumerate(built.update[at].tolist()):
            yield Kind.UPDATE, number, tensor, int(start_ns[operation]), int(end_ns[operation])


def _each_stock_span(built: PsGraph, replayed: Replayed, worker: int) -> Iterator[_Span]:
    """Iterations end when the barrier has been waited for, and the updates made."""
    start_ns, end_ns = replayed.start_ns, replayed.end_ns
    iterations, tensors = built.forward.shape[1:]
    for iteration in range(iterations):
        at, number = (worker, iteration), iteration + 1
        updates = built.update[at]
        released_ns, ended_ns = int(start_ns[updates].min()), int(end_ns[updates].max())
        forward, backward = built.forward[at], built.backward[at]
        yield Kind.ITERATION, number, tensors, int(start_ns[forward[0]]), ended_ns
        for tensor, operation in enumerate(forward.tolist()):
            yield Kind.FORWARD, number, tensor, int(start_ns[operation]), int(end_ns[operation])
        for tensor, operation in enumerate(built.ready[at].tolist()):
            yield Kind.BACKWARD, number, tensor, int(start_ns[operation]), int(end_ns[operation])
        yield Kind.WAIT, number, tensors, int(end_ns[backward[-1]]), released_ns
