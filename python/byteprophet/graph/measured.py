"""A parameter-server job as it was recorded: what its workers computed, and what its network did.

From the events of a run (``timeline/tables.py``), for all iterations that every worker has from
begin to end, 1 and on:

    forward     from the end of the layer before to its own end, less the waits in between: what a
                script does between layers counts to the next one
    ready       when the first partition of a gradient was offered, from the end of the forward pass
    backward    from the end of the forward pass to the next iteration, waits left out
    update      as long as its spans are; under "stock", what comes after the wait for all gradients
                (shared out by size)

A layer belongs to the tensor of its name, else to the first one in its module. Workers under
"stock" record no transfers; ``measured_stock.py`` tells what they sent. The network is
``measured_network.py``'s. Where partition sizes or settings changed in mid-run, the job is what it
was in the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from byteprophet.errors import UserError
from byteprophet.graph.measured_network import measure_network
from byteprophet.graph.measured_ring import measure_ring
from byteprophet.graph.measured_settings import Told, read_told
from byteprophet.graph.measured_stock import stock_transfers
from byteprophet.graph.measured_tensors import Tensors, measure_tensors
from byteprophet.graph.model import Int64Array
from byteprophet.graph.ps_job import Compute, PsJob
from byteprophet.graph.ring_job import RingJob
from byteprophet.schedulers import PARTITION, STOCK, resolve
from byteprophet.timeline.aligned import align_events
from byteprophet.timeline.aligned_summary import warn_of_clocks
from byteprophet.timeline.events import Events
from byteprophet.timeline.read_events import load_run
from byteprophet.timeline.tables import SPANS, TRANSFERS, Kind, Rows, TableKind
from byteprophet.workload.run_config import link_limits_bps, read_run_config


@dataclass(frozen=True)
class Measured:
    """What a run was. ``start_ns``: shape (workers, iterations + 1), begins of iterations.

    ``settled_from``: the iteration, from 0, since which it has been run as ``job`` says.
    """

    job: PsJob | RingJob
    start_ns: Int64Array
    settled_from: int = 0

    @property
    def iteration_ns(self) -> Int64Array:
        """Of the slowest worker; shape (iterations,)."""
        slowest: Int64Array = np.diff(self.start_ns, axis=1).max(axis=0)
        return slowest


def measure_run(run_directory: Path) -> Measured:
    """The job of a run directory; UserError where something is missing."""
    config = read_run_config(run_directory)
    try:
        aligned = align_events(load_run(run_directory))
        warn_of_clocks(aligned)
        if config["servers"] == 0:
            return Measured(*measure_ring(aligned.events, config))
        return measure(aligned.events, config, read_told(run_directory))
    except UserError as error:
        raise UserError(f"{run_directory}: {error}") from None


def measure(
    recorded: Sequence[Events], config: Mapping[str, Any], told: Told | None = None
) -> Measured:
    """The job that left ``recorded``.

    ``config``: as ``config.toml`` of a run has it; ``told``: what its policy was told later.
    """
    told = told or Told()
    if config.get("local_ranks", 1) > 1:
        raise UserError("its workers have several local ranks: replay does not know such jobs")
    ranks = range(config["workers"])
    spans = _by_rank(recorded, SPANS, ranks)
    iterations = min(_iterations(events.rows) for events in spans)
    if iterations < 1:
        raise UserError("no iteration was recorded from begin to end")
    if config["scheduler"] == STOCK:
        recorded = [*recorded, *stock_transfers(recorded, spans)]
    transfers = _by_rank(recorded, TRANSFERS, ranks)
    tensors = measure_tensors(transfers[0])
    workers = [
        _Worker(own, sent.rows, tensors, iterations, barrier=config["scheduler"] == STOCK)
        for own, sent in zip(spans, transfers, strict=True)
    ]
    compute = Compute(
        forward_ns=np.stack([worker.forward_ns for worker in workers]),
        ready_ns=np.stack([worker.ready_ns for worker in workers]),
        backward_ns=np.stack([worker.backward_ns for worker in workers]),
        update_ns=np.stack([worker.update_ns for worker in workers]),
    )
    partition_bytes = tensors.partition_bytes or config["partition_bytes"]
    settings = {**config["settings"], **told.settings}
    if told.settings:
        try:
            resolve(config["scheduler"], settings)
        except UserError as error:
            raise UserError(f"what its policy was told: {error}") from None
    job = PsJob(
        tensors=tensors.names,
        size_bytes=tensors.size_bytes,
        compute=compute,
        network=measure_network(recorded, config["servers"], link_limits_bps(config)),
        scheduler=config["scheduler"],
        partition_bytes=partition_bytes,
        settings={**settings, PARTITION: partition_bytes},
        ready_times=tuple(
            (place, -1 - place, *told.ready[name])
            for place, name in enumerate(tensors.names)
            if name in told.ready
        ),
        numbers=tensors.numbers,
    )
    starts_ns = np.stack([worker.start_ns for worker in workers])
    settled_from = max(tensors.settled_from, told.settled_from)
    return Measured(job, starts_ns, min(settled_from, iterations - 1))


def _by_rank(recorded: Sequence[Events], table: TableKind, ranks: range) -> list[Events]:
    """One table per rank, of all its lives."""
    found = {events.origin.rank: events for events in recorded if events.table is table}
    missing = [rank for rank in ranks if rank not in found]
    if missing:
        raise UserError(f"has no {table.name} of rank {missing[0]}: run the job with --record")
    return [found[rank] for rank in ranks]


def _iterations(spans: Rows) -> int:
    numbers = np.unique(spans["iteration"][spans["kind"] == Kind.ITERATION])
    expected = np.arange(1, len(numbers) + 1)
    return int((np.cumprod(numbers == expected)).sum())


class _Worker:
    """One worker's times. Shapes: I iterations, L tensors; ``start_ns`` (I + 1,)."""

    def __init__(
        self, spans: Events, transfers: Rows, tensors: Tensors, iterations: int, *, barrier: bool
    ) -> None:
        shape = (iterations, len(tensors.names))
        self._barrier = barrier
        self._share = np.array(tensors.size_bytes) / sum(tensors.size_bytes)
        self.forward_ns = np.zeros(shape, np.int64)
        self.ready_ns = np.zeros(shape, np.int64)
        self.update_ns = np.zeros(shape, np.int64)
        self.backward_ns = np.zeros(iterations, np.int64)
        self.start_ns = np.zeros(iterations + 1, np.int64)
        self._tensor_of = {
            index: _place(name, tensors.names) for index, name in spans.names.items()
        }
        rows = np.sort(spans.rows, order="end_ns")
        self._waits = rows[rows["kind"] == Kind.WAIT]
        for iteration in range(iterations):
            own = rows[rows["iteration"] == iteration + 1]
            sent = transfers[transfers["iteration"] == iteration + 1]
            self._take(iteration, own, sent[sent["priority"] < 0])

    def _take(self, iteration: int, spans: Rows, sent: Rows) -> None:
        (whole,) = spans[spans["kind"] == Kind.ITERATION][["begin_ns", "end_ns"]].tolist()
        self.start_ns[iteration : iteration + 2] = whole
        since_ns, end_ns = whole
        for name, until_ns in spans[spans["kind"] == Kind.FORWARD][["name", "end_ns"]].tolist():
            tensor = self._tensor_of[name]
            self.forward_ns[iteration, tensor] += self._worked_ns(since_ns, until_ns)
            since_ns = until_ns
        if self._barrier:
            waits = self._waits[
                (self._waits["end_ns"] > since_ns) & (self._waits["end_ns"] <= end_ns)
            ]
            released_ns = int(waits["end_ns"].max()) if len(waits) else end_ns
            self.update_ns[iteration] = (end_ns - released_ns) * self._share
            end_ns = released_ns
        self.backward_ns[iteration] = self._worked_ns(since_ns, end_ns)
        # A gradient that was not sent in this iteration is ready when all are.
        ready_ns = np.full(self.ready_ns.shape[1], since_ns + self.backward_ns[iteration])
        first = np.full(len(ready_ns), np.iinfo(np.int64).max)
        if len(sent) and -1 - int(sent["priority"].min()) >= len(first):
            raise UserError("its workers sent different tensors: replay does not know such jobs")
        np.minimum.at(first, -1 - sent["priority"], sent["ready_ns"])
        known = first < np.iinfo(np.int64).max
        ready_ns[known] = first[known]
        self.ready_ns[iteration] = np.maximum(0, ready_ns - since_ns)
        updates = spans[spans["kind"] == Kind.UPDATE]
        took_ns = updates["end_ns"] - updates["begin_ns"]
        tensors = np.array([self._tensor_of[name] for name in updates["name"].tolist()], np.int64)
        np.add.at(self.update_ns[iteration], tensors, took_ns)

    def _worked_ns(self, since_ns: int, until_ns: int) -> int:
        """The time from the one to the other, less all waits in it."""
        begin_ns = np.maximum(self._waits["begin_ns"], since_ns)
        waited_ns = np.maximum(0, np.minimum(self._waits["end_ns"], until_ns) - begin_ns).sum()
        return max(0, until_ns - since_ns - int(waited_ns))


def _place(name: str, tensors: Sequence[str]) -> int:
    """The tensor that what is called ``name`` belongs to; the first one where nothing fits."""
    if name in tensors:
        return tensors.index(name)
    inside = (place for place, tensor in enumerate(tensors) if tensor.startswith(name + "."))
    return next(inside, 0)
