"""How long an iteration of a changed job takes, by replay, and where its time goes.

A search looks at a few recorded iterations only (partial replay), and at two workers for many
(``fold.py``): what it compares has the same ones. What it finds is replayed whole in the end
(``outcome.py``).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from byteprophet.graph import mesh_graph
from byteprophet.graph.labels import Kind
from byteprophet.graph.mesh_graph import MeshGraph
from byteprophet.job import Job
from byteprophet.job.strategy import ALL_REDUCE, BYTEPS, MIXED, OURS
from byteprophet.job.times import Int64Array
from byteprophet.optimize.critical_path import TRAVELLING, critical_path
from byteprophet.optimize.fold import folded, frame_bytes
from byteprophet.optimize.moves import Hints
from byteprophet.optimize.serial_link import SerialLink
from byteprophet.replay import Replayed, replay
from byteprophet.replay.kinds import ReplayedJob
from byteprophet.replay.predict import kind_of

_ITERATIONS, _WARMUP = 4, 1
"""Replayed of a job without servers: the first has no iteration before it and is not counted."""

_SERVED_ITERATIONS, _SERVED_WARMUP = 4, 2
"""Replayed of a job with servers. Policies learn in the first ones."""

_MIXED_ITERATIONS, _MIXED_WARMUP = 5, 3
"""Replayed of a job of two transports. Policies learn later what servers get of a shared link."""


_EACH_REPLAYED = 8
"""So many workers are replayed one by one, and two stand for more. Folded, small jobs whose workers
differ by up to 20% have other best cuts: the best folded one of 5 or 6 workers takes 4% longer in
the mean than the best of all, and up to 19%. All 6 take twice as long to replay as two."""


@dataclass(frozen=True)
class Evaluation:
    """``iteration_ns``: the median. ``hints``: for the next moves."""

    iteration_ns: int
    hints: Hints


class Evaluator:
    """Replays jobs and remembers what came of them. Not thread safe.

    ``replays`` counts those that were not remembered.
    """

    def __init__(
        self,
        *,
        partial: bool = True,
        folds: bool = True,
        corrections: Mapping[str, float] | None = None,
    ) -> None:
        """``partial``: replay a few iterations only. ``folds``: two workers stand for many.

        ``corrections``: measured over replayed times, by transport, where jobs of several are
        compared, since their replays may be wrong in different ways.
        """
        self._known: dict[Hashable, Evaluation] = {}
        self._partial = partial
        self._folds = folds
        self._corrections = corrections or {}
        self.replays = 0

    def unfolded(self, job: Job) -> Evaluator | None:
        """One that replays all workers; None if this one does so for ``job``."""
        if not self._folds or self._folded(job) is job:
            return None
        return Evaluator(partial=self._partial, folds=False, corrections=self._corrections)

    @staticmethod
    def _folded(job: Job) -> Job:
        folds = job.workers > _EACH_REPLAYED and job.strategy.runtime in (BYTEPS, *OURS)
        return folded(job) if folds else job

    def __call__(self, job: Job) -> Evaluation:
        """The evaluation of ``job``, whose times and cluster are those of its transport."""
        key = job.decided
        if key not in self._known:
            self.replays += 1
            found = self._evaluate(job)
            correction = self._corrections.get(job.transport, 1.0)
            iteration_ns = round(found.iteration_ns * correction)
            self._known[key] = replace(found, iteration_ns=iteration_ns)
        return self._known[key]

    def _evaluate(self, job: Job) -> Evaluation:
        served = job.policy is not None
        count, warmup = _ITERATIONS, _WARMUP
        if served:
            count, warmup = _SERVED_ITERATIONS, _SERVED_WARMUP
        if job.strategy.runtime == MIXED:
            count, warmup = _MIXED_ITERATIONS, _MIXED_WARMUP
        if self._partial:
            job = replace(job, times=job.times.only_iterations(_some(job.iterations, count)))
        elif served:
            warmup = job.iterations // 2
        small = self._folded(job) if self._folds else job
        if job.strategy.runtime not in OURS:
            played = kind_of(small).replay(small)
            iteration_ns = int(np.median(played.iterations_ns[warmup:]))
            return Evaluation(iteration_ns, _hints_of(job, played.replayed))
        mesh = mesh_graph.build(small, frame_bytes(job, small))
        replayed = replay(mesh.graph)
        steps = job.strategy.accumulation
        times_ns = ReplayedJob(replayed, mesh.begin, mesh.end, steps).iterations_ns
        return Evaluation(int(np.median(times_ns[warmup:])), _hints(job, mesh, replayed))


def _hints_of(job: Job, replayed: Replayed) -> Hints:
    """Hints for any job but ours without servers. No move changes a job of two transports."""
    if job.strategy.runtime == MIXED:
        return Hints()
    if job.policy is not None:
        return Hints(tensor_ns=_tensors_on_path(job, replayed))
    return Hints(_on_path(job, replayed))


def _on_path(job: Job, replayed: Replayed) -> dict[int, int]:
    path = critical_path(replayed).of(Kind.REDUCE_SCATTER, Kind.ALL_GATHER)
    count = len(job.strategy.buckets)  # those of compressed gradients come behind them
    bucket_ns = np.bincount(path.tensor - len(job.model), path.took_ns, count)[:count]
    return {place: int(time_ns) for place, time_ns in enumerate(bucket_ns) if time_ns}


def _tensors_on_path(job: Job, replayed: Replayed) -> dict[int, int]:
    path = critical_path(replayed).of(*TRAVELLING)
    tensor_ns = np.bincount(path.tensor, path.took_ns, len(job.model))
    return {place: int(time_ns) for place, time_ns in enumerate(tensor_ns) if time_ns}


def _hints(job: Job, mesh: MeshGraph, replayed: Replayed) -> Hints:
    on_path = _on_path(job, replayed)
    if job.strategy.runtime != ALL_REDUCE or job.strategy.owners or job.cluster.processors:
        return Hints(on_path)  # on shared cores, messages slow down what computes
    # Of the last iteration, which waits for the updates of one before it, as all but the first do.
    begin_ns = int(replayed.start_ns[mesh.begin[:, -1]].max())
    own = mesh.start[:, -1, : len(job.strategy.buckets)]
    ready_ns = replayed.end_ns[own].max(axis=0) - begin_ns
    return Hints(on_path, SerialLink.of(job, tuple(ready_ns.tolist())))


def _some(iterations: int, count: int) -> Int64Array:
    """Iterations at equal distances, from the second half on, where nothing is new any more."""
    return np.linspace(iterations // 2, iterations - 1, count).astype(np.int64)
