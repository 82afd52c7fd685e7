"""Spans as the ranks of a job under DDP or FSDP2 would have left them.

Had it run as its graph replays.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from byteprophet.graph.gloo_graph import GlooGraph, build
from byteprophet.job import Job
from byteprophet.job.strategy import FSDP2
from byteprophet.measure.barriered import HAND_OVER
from byteprophet.replay import Replayed, replay
from byteprophet.timeline.events import Events, Origin
from byteprophet.timeline.tables import SPAN, SPANS, Kind

EPOCH_NS = 10**15


def config_of(job: Job) -> Mapping[str, Any]:
    """As ``config.toml`` has it."""
    return {
        "workers": job.workers,
        "local_ranks": 1,
        "servers": 0,
        "steps": [],
        "worker_bandwidth_bps": {},
    }


def bucket_bytes(job: Job) -> list[int]:
    """The sizes of its buckets."""
    sizes = dict(zip(job.model.names, job.model.sizes_bytes, strict=True))
    return [sum(sizes[name] for name in b.parameters) for b in job.strategy.buckets]


def record(job: Job) -> list[Events]:
    """A table per rank. Layer l's parameter is called ``<layer>.weight``."""
    built = build(job)
    replayed = replay(built.graph)
    recorded = []
    for rank in range(job.workers):
        spans = [*_each_span(job, built, replayed, rank)]
        names = {name: index for index, name in enumerate(dict.fromkeys(span[2] for span in spans))}
        rows = np.zeros(len(spans), SPAN)
        for row, (kind, iteration, name, begin_ns, end_ns, size_bytes) in zip(
            rows, spans, strict=True
        ):
            row["kind"], row["iteration"], row["name"] = kind, iteration, names[name]
            row["begin_ns"], row["end_ns"] = EPOCH_NS + begin_ns, EPOCH_NS + end_ns
            row["size_bytes"] = size_bytes
        texts = {index: name for name, index in names.items()}
        recorded.append(Events(SPANS, Origin(f"worker-{rank}", rank), rows, texts))
    return recorded


def _each_half(
    job: Job, built: GlooGraph, replayed: Replayed, at: tuple[int, int]
) -> Iterator[tuple[int, int, str, int, int, int]]:
    """The all-gathers and reduce-scatters of an iteration, under FSDP2."""
    units = job.strategy.buckets
    of_all, of_trained = (
        [sum(sizes[job.model.places[name]] for name in unit.parameters) for unit in units]
        for sizes in (job.model.sizes_bytes, job.wire_bytes)
    )
    by_gather = sorted(range(len(units)), key=lambda unit: units[unit].gather_place)
    by_reduce = sorted(range(len(units)), key=lambda unit: units[unit].reduce_place)
    halves = [("all-gather", unit, of_all[unit]) for unit in by_gather]
    halves += [
        ("reduce-scatter", number, of_trained[unit])
        for number, unit in enumerate(each for each in by_reduce if of_trained[each])
    ]
    gathered = np.full(len(units), replayed.start_ns[built.begin[at]])
    handed_over = np.maximum.accumulate(replayed.end_ns[built.ready[at]])
    times_ns = np.append(gathered, handed_over), replayed.end_ns[built.done[at]]
    for (half, number, size_bytes), began_ns, done_ns in zip(halves, *times_ns, strict=True):
        name = f"{half} {number}"
        yield Kind.COLLECTIVE, at[1] + 1, name, int(began_ns), int(done_ns), size_bytes


def _each_span(
    job: Job, built: GlooGraph, replayed: Replayed, rank: int
) -> Iterator[tuple[int, int, str, int, int, int]]:
    """Kind, iteration, name, begin, end, bytes."""
    start_ns, end_ns = replayed.start_ns, replayed.end_ns
    for iteration in range(job.iterations):
        at, number = (rank, iteration), iteration + 1
        begin_ns = int(start_ns[built.begin[at]])
        updated_ns = int(end_ns[built.update[at]])
        yield Kind.ITERATION, number, "iteration", begin_ns, updated_ns, 0
        for layer, operation in zip(job.model.names, built.forward[at].tolist(), strict=True):
            forward_ns = int(end_ns[operation])
            yield Kind.FORWARD, number, layer, int(start_ns[operation]), forward_ns, 0
        complete_ns = [
            job.times.ready_ns[at][[job.model.places[name] for name in b.parameters]].max()
            for b in job.strategy.buckets
        ]
        for place, layer in enumerate(job.model.names):
            if job.model.parameters[place].frozen:
                continue
            ready_ns = int(job.times.ready_ns[at][place])
            handed = sum(1 for each_ns in complete_ns if each_ns < ready_ns)
            ready_ns += forward_ns + handed * job.cluster.costs.bucket_ns
            size_bytes = job.model.sizes_bytes[place]
            yield Kind.BACKWARD, number, f"{layer}.weight", forward_ns, ready_ns, size_bytes
        if job.strategy.runtime == FSDP2:
            yield from _each_half(job, built, replayed, at)
            continue
        for bucket, size_bytes in enumerate(bucket_bytes(job)):
            began_ns = int(end_ns[built.ready[at][bucket]])
            done_ns = int(end_ns[built.done[at][bucket]])
            yield Kind.COLLECTIVE, number, f"bucket {bucket}", began_ns, done_ns, size_bytes
            launched_ns = began_ns + job.cluster.costs.bucket_ns
            yield Kind.COMPUTE, number, f"{HAND_OVER}{bucket}", began_ns, launched_ns, 0
