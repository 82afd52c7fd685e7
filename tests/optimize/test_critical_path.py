"""What a critical path consists of, in jobs in which it is known."""

from __future__ import annotations

import pytest

from byteprophet.graph.labels import Kind
from byteprophet.graph.mesh_graph import build
from byteprophet.optimize.critical_path import critical_path, shares
from byteprophet.replay import replay
from byteprophet.replay.ps import PS

from ..graph.test_mesh_graph import MS, job
from ..measure.test_servers import a_job


def test_of_one_bucket_everything_is_on_the_path() -> None:
    """Forward 3 ms, backward 2 ms, update 1 ms, and either half of 800 kB takes 4 ms."""
    one = job(2, (800_000,), (3 * MS,), (2 * MS,), iterations=40, update_ns=MS)
    assert shares(replay(build(one).graph)) == pytest.approx(
        {
            "reduce-scatters": 4 / 14,
            "all-gathers": 4 / 14,
            "forward": 3 / 14,
            "backward": 2 / 14,
            "updates": 1 / 14,
        },
        abs=0.01,
    )


def test_a_path_has_no_gaps() -> None:
    one = job(3, (800_000, 40_000), (3 * MS, MS), (4 * MS, 2 * MS), iterations=5)
    replayed = replay(build(one).graph)
    path = critical_path(replayed)
    assert path.took_ns.sum() == replayed.makespan_ns
    assert (path.took_ns >= 0).all()
    assert set(path.of(Kind.FORWARD).kind.tolist()) == {Kind.FORWARD}


def test_jobs_with_servers_have_pushes_and_answers() -> None:
    parts = shares(PS.replay(a_job("p3")).replayed)
    assert sum(parts.values()) == pytest.approx(1)
    assert {"pushes", "answers", "forward", "backward"} <= set(parts)
    assert list(parts.values()) == sorted(parts.values(), reverse=True)
