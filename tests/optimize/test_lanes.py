"""Lanes of replayed jobs: all that happens, in time, under the names of layers and buckets."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from small_jobs import random_job, with_runtime

from byteprophet.graph.labels import Kind
from byteprophet.job import Job
from byteprophet.optimize.lanes import ITERATIONS, last_iterations, one_iteration
from byteprophet.replay.kinds import ReplayedJob
from byteprophet.replay.predict import kind_of
from byteprophet.timeline.role_lanes import Lane

from ..measure.test_servers import a_job


def mesh() -> Job:
    return with_runtime(random_job(3, 8), "dear", 500_000)


def ps() -> Job:
    return a_job("fifo", iterations=4)


def by_place(lanes: Sequence[Lane]) -> dict[tuple[str, str], Lane]:
    found = {(lane.role, lane.label): lane for lane in lanes}
    assert len(found) == len(lanes)
    return found


def played(job: Job) -> ReplayedJob:
    return kind_of(job).replay(job)


@pytest.mark.parametrize("make", [mesh, ps])
def test_the_last_end_is_that_of_the_replay(make: Callable[[], Job]) -> None:
    one = played(make())
    lanes = last_iterations(one)
    iterations = by_place(lanes)["worker-0", ITERATIONS]
    begin_ns = one.replayed.start_ns[one.begin[:, -len(iterations)]].min()
    assert max(int(lane.end_ns.max()) for lane in lanes) == one.replayed.makespan_ns - begin_ns
    assert min(int(lane.begin_ns.min()) for lane in lanes) == 0
    assert all((lane.end_ns >= lane.begin_ns).all() for lane in lanes)


def test_lanes_of_a_job_without_servers() -> None:
    job = mesh()
    one = played(job)
    lanes = by_place(last_iterations(one))
    labels = {ITERATIONS, "computes", "updates", "reduce-scatters", "all-gathers"}
    assert set(lanes) == {(f"worker-{n}", label) for n in range(job.workers) for label in labels}
    shown = len(lanes["worker-0", ITERATIONS])
    computes = lanes["worker-1", "computes"]
    assert set(job.model.names) <= set(computes.name)
    assert set(computes.kind) == {"forward", "backward"}
    graph, (first, last) = one.replayed.graph, (job.iterations - shown, job.iterations)
    for label, kind in (("reduce-scatters", Kind.REDUCE_SCATTER), ("all-gathers", Kind.ALL_GATHER)):
        lane = lanes["worker-0", label]
        assert sorted(set(lane.name)) == [f"bucket {n}" for n in range(len(job.strategy.buckets))]
        assert len(lane) == shown * len(job.strategy.buckets)
        iteration = graph.labels.iteration
        sent = (graph.labels.kind == kind) & (graph.labels.rank == 0)
        sent &= (iteration >= first) & (iteration < last)
        assert lane.size_bytes.sum() == graph.size_bytes[sent].sum()


def test_lanes_of_a_job_with_servers() -> None:
    job = ps()
    lanes = by_place(last_iterations(played(job)))
    labels = {ITERATIONS, "computes", "updates", "pushes", "answers"}
    expected = {(f"worker-{n}", label) for n in range(job.workers) for label in labels}
    assert set(lanes) == {*expected, ("server-0", "sums")}
    shown = len(lanes["worker-0", ITERATIONS])
    for label in ("pushes", "answers"):  # every byte of the model once in each iteration
        assert lanes["worker-2", label].size_bytes.sum() == shown * job.model.size_bytes
    assert len(lanes["server-0", "sums"]) == job.workers * len(lanes["worker-0", "pushes"])
    assert len(list(lanes["worker-0", "pushes"].spread())) == 1  # one connection, one at a time


@pytest.mark.parametrize("make", [mesh, ps])
def test_one_iteration_is_that_of_the_slowest_worker(make: Callable[[], Job]) -> None:
    one = played(make())
    length_ns, lanes = one_iteration(one, 2)
    ends_ns, begins_ns = one.replayed.end_ns[one.end[:, 2]], one.replayed.start_ns[one.begin[:, 2]]
    assert length_ns == (ends_ns - begins_ns).max()
    assert {lane.role for lane in lanes} == {f"worker-{int(np.argmax(ends_ns - begins_ns))}"}
    for lane in lanes:
        assert lane.begin_ns.min() >= 0
        assert lane.end_ns.max() <= length_ns
    computes = by_place(lanes)[lanes[0].role, "computes"]
    graph = one.replayed.graph
    own = (graph.labels.rank == int(lanes[0].role[-1])) & (graph.labels.iteration == 2)
    own &= np.isin(graph.labels.kind, (Kind.FORWARD, Kind.BACKWARD))
    assert (computes.end_ns - computes.begin_ns).sum() == graph.duration_ns[own].sum()
