"""The complete diagnosis: what a replay and a bound need."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from byteprophet.diagnose import diagnose
from byteprophet.measure.run import Run
from byteprophet.timeline.events import Events
from byteprophet.timeline.tables import SERVED_TABLE, SPANS

from ..measure.recorded_replay import config_of, record
from ..measure.test_servers import a_job
from .hand_made import ps_job, save_run


def test_a_job_of_several_local_ranks_is_replayed(tmp_path: Path) -> None:
    """Each worker is two processes, of which the second one talks to servers."""
    job = a_job("fifo", iterations=6)
    events: list[Events] = []
    for one in record(job)[0]:
        if one.table is SERVED_TABLE:
            events.append(one)
            continue
        worker = one.origin.rank
        for local in (0, 1) if one.table is SPANS else (1,):
            role = f"worker-{worker}.{local}"
            origin = replace(one.origin, role=role, rank=2 * worker + local)
            events.append(replace(one, origin=origin))
    save_run(tmp_path, events, {**config_of(job), "local_ranks": 2})
    found = diagnose(Run(tmp_path))
    assert len(found.run.workers) == 2 * job.workers
    assert found.prediction is not None, found.not_predicted
    assert found.prediction.job.workers == job.workers
    assert abs(found.prediction.replay_error) < 0.03
    assert found.bound_ns == found.prediction.bound_ns


def test_a_window_of_iterations_is_replayed(tmp_path: Path) -> None:
    """It begins at iteration 11 (``--record-steps 11:14``)."""
    save_run(tmp_path, ps_job())
    found = diagnose(Run(tmp_path))
    assert found.prediction is not None, found.not_predicted
    assert found.settled()[0] == 2  # of three, the first is left out
