"""An all-reduce job as it was recorded: what its ranks computed, and how fast their links are.

From spans alone, of the iterations that every rank has from begin to end, without gap, and in which
it reduced the buckets that it reduced last (DistributedDataParallel makes others when it has seen
the order of gradients):

    forward   from the end of the layer before to its own: what is between layers counts to the next
    gradient  from the end of the forward pass to that of the layer's last BACKWARD
    bucket    from the same to the begin of its COLLECTIVE
    update    from the end of the last COLLECTIVE to the next iteration

Nothing in between waits, so these are times of computation. The network is ``measured_links.py``'s.
Ranks' times must be on one clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from byteprophet.errors import UserError
from byteprophet.graph.measured_links import measure_links
from byteprophet.graph.measured_tensors import layer_of
from byteprophet.graph.model import Int64Array
from byteprophet.graph.ring_job import RingCompute, RingJob
from byteprophet.timeline.events import Events
from byteprophet.timeline.tables import SPANS, Kind, Rows
from byteprophet.workload.run_config import link_limits_bps

_HALVES = ("reduce ", "gather ", "spread ")  # torch/collective_synchroniser.py
_ALL = ("model",)  # the only layer of a job of which no layers were recorded


def measure_ring(
    recorded: Sequence[Events], config: Mapping[str, Any]
) -> tuple[RingJob, Int64Array]:
    """The job that left ``recorded``, and the begins of iterations, shape (ranks, iterations + 1).

    ``config``: as ``config.toml`` of a run has it. UserError where something is missing.
    """
    processes = config["workers"] * config["local_ranks"]
    ranks = [_Rank(_spans_of(recorded, rank)) for rank in range(processes)]
    numbers = _iterations(ranks)
    layers, bucket_bytes = ranks[0].layers(numbers[-1]), ranks[0].buckets[numbers[-1]]
    measured = [_Times(rank, numbers, layers) for rank in ranks]
    compute = RingCompute(
        forward_ns=np.stack([times.forward_ns for times in measured]),
        gradient_ns=np.stack([times.gradient_ns for times in measured]),
        bucket_ns=np.stack([times.bucket_ns for times in measured]),
        update_ns=np.stack([times.update_ns for times in measured]),
    )
    job = RingJob(
        layers=layers,
        size_bytes=tuple(measured[0].size_bytes.tolist()),
        bucket_bytes=bucket_bytes,
        compute=compute,
        network=measure_links(
            np.stack([times.began_ns for times in measured]),
            np.stack([times.ended_ns for times in measured]),
            bucket_bytes,
            link_limits_bps(config),
        ),
    )
    return job, np.stack([times.start_ns for times in measured])


def _spans_of(recorded: Sequence[Events], rank: int) -> Events:
    """A rank's first table of spans."""
    for events in recorded:
        if events.table is SPANS and events.origin.rank == rank:
            return events
    raise UserError(f"has no spans of rank {rank}: the script says byteprophet.torch.record(model)")


class _Rank:
    """What one rank recorded. ``buckets``: sizes, by iteration, in the order of reduction."""

    def __init__(self, events: Events) -> None:
        self.rank = events.origin.rank
        self.names = events.names
        halves = [name for name in events.names.values() if name.startswith(_HALVES)]
        if halves:
            raise UserError(
                f"all-reduces in halves ('{halves[0]}') cannot be replayed yet: only those of "
                "DistributedDataParallel can"
            )
        rows = np.sort(events.rows, order="end_ns")
        numbers = np.unique(rows["iteration"][rows["kind"] == Kind.ITERATION])
        self.rows = {number: rows[rows["iteration"] == number] for number in numbers.tolist()}
        self.buckets = {
            number: tuple(self.of(number, Kind.COLLECTIVE, "begin_ns")["size_bytes"].tolist())
            for number in self.rows
        }

    def of(self, iteration: int, kind: Kind, order: str = "end_ns") -> Rows:
        """The spans of one kind."""
        rows = self.rows[iteration]
        return np.sort(rows[rows["kind"] == kind], order=order)

    def layers(self, iteration: int) -> tuple[str, ...]:
        """Their names, in forward order."""
        names = self.of(iteration, Kind.FORWARD)["name"].tolist()
        return tuple(dict.fromkeys(self.names[name] for name in names)) or _ALL


def _iterations(ranks: Sequence[_Rank]) -> list[int]:
    """Numbers of the iterations that count, the first first."""
    common = set.intersection(*(set(rank.rows) for rank in ranks))
    if not common:
        raise UserError("no iteration was recorded from begin to end")
    last = max(common)
    buckets = ranks[0].buckets[last]
    for rank in ranks:
        if not rank.buckets[last]:
            raise UserError(f"rank {rank.rank} recorded no collectives in iteration {last}")
        if rank.buckets[last] != buckets:
            raise UserError(f"rank {rank.rank} reduced other buckets than rank 0")
    first = last
    while first - 1 in common and all(rank.buckets[first - 1] == buckets for rank in ranks):
        first -= 1
    return [*range(first, last + 1)]


class _Times:
    """One rank's times. Shapes: I iterations, L layers, B buckets; ``start_ns`` (I + 1,).

    ``began_ns``, ``ended_ns`` (I, B): of collectives, on the clock. ``size_bytes`` (L,).
    """

    def __init__(self, rank: _Rank, numbers: Sequence[int], layers: Sequence[str]) -> None:
        self._rank = rank
        self._places = {layer: place for place, layer in enumerate(layers)}
        iterations, buckets = len(numbers), len(rank.buckets[numbers[-1]])
        self.forward_ns = np.zeros((iterations, len(layers)), np.int64)
        self.gradient_ns = np.zeros((iterations, len(layers)), np.int64)
        self.bucket_ns = np.zeros((iterations, buckets), np.int64)
        self.update_ns = np.zeros(iterations, np.int64)
        self.began_ns = np.zeros((iterations, buckets), np.int64)
        self.ended_ns = np.zeros((iterations, buckets), np.int64)
        self.start_ns = np.zeros(iterations + 1, np.int64)
        self.size_bytes = np.zeros(len(layers), np.int64)
        for place, number in enumerate(numbers):
            self._take(place, number)

    def _take(self, place: int, number: int) -> None:
        rank = self._rank
        (whole,) = rank.of(number, Kind.ITERATION)[["begin_ns", "end_ns"]].tolist()
        self.start_ns[place : place + 2] = whole
        since_ns, next_ns = whole
        for name, until_ns in rank.of(number, Kind.FORWARD)[["name", "end_ns"]].tolist():
            self.forward_ns[place, layer_of(rank.names[name], self._places)] += until_ns - since_ns
            since_ns = until_ns
        self._take_gradients(place, number, since_ns)
        collectives = rank.of(number, Kind.COLLECTIVE, "begin_ns")
        self.began_ns[place], self.ended_ns[place] = collectives["begin_ns"], collectives["end_ns"]
        self.bucket_ns[place] = np.maximum(0, self.began_ns[place] - since_ns)
        self.update_ns[place] = max(0, next_ns - int(self.ended_ns[place].max()))

    def _take_gradients(self, place: int, number: int, since_ns: int) -> None:
        """When layers' gradients are complete, and how large they are.

        A span without bytes hands nothing over: its gradients come with the next one that does.
        The bytes of several layers are then the least urgent one's, whose part is not known.
        """
        self.size_bytes[:] = 0
        together: list[int] = []
        backward = self._rank.of(number, Kind.BACKWARD)[["name", "end_ns", "size_bytes"]]
        for name, end_ns, size_bytes in backward.tolist():
            together.append(layer_of(self._rank.names[name], self._places))
            if size_bytes:
                self.gradient_ns[place, together] = max(0, end_ns - since_ns)
                self.size_bytes[max(together)] += size_bytes
                together.clear()
        if together:  # nothing was handed over after these
            self.gradient_ns[place, together] = max(0, end_ns - since_ns)
