"""Jobs of many ranks as jobs of two: how far apart their iterations are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from small_jobs import random_job

from byteprophet.graph import mesh_graph
from byteprophet.job import Processors
from byteprophet.optimize.fold import folded, frame_bytes
from byteprophet.replay import replay
from byteprophet.replay.all_reduce import ALL_REDUCE
from byteprophet.replay.kinds import ReplayedJob

from ..strategy.jobs import mesh_job, served_job


@pytest.mark.parametrize("ranks", [3, 8])
def test_two_ranks_stand_for_many(ranks: int) -> None:
    errors = []
    for seed in range(8):
        job = random_job(seed, 16, ranks)
        small = folded(job)
        assert small.workers == 2
        assert small.model == job.model
        mesh = mesh_graph.build(small, frame_bytes(job, small))
        played = ReplayedJob(replay(mesh.graph), mesh.begin, mesh.end, 1)
        errors.append(
            np.median(played.iterations_ns[1:]) / np.median(ALL_REDUCE.iterations_ns(job)[1:]) - 1
        )
    assert np.mean(np.abs(errors)) < 0.015
    assert max(np.abs(errors)) < 0.04


@pytest.mark.parametrize("served", [True, False])
def test_workers_that_share_cores_stand_for_themselves(served: bool) -> None:
    job = served_job([10**9] * 4, [10**9]) if served else mesh_job([10**9] * 4)
    assert folded(job).workers == 2
    shared = replace(job.cluster, processors=(Processors((0, 1, 2, 3), 2),))
    job = replace(job, cluster=shared)
    assert folded(job) is job


def test_two_ranks_are_as_they_are() -> None:
    job = random_job(1, 5)
    assert folded(job) is job
