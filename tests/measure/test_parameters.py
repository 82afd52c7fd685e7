"""The parameters of a job with servers, one by one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from byteprophet.job.as_executed import as_executed
from byteprophet.measure.parameters import measure_parameters
from byteprophet.measure.run import Run
from byteprophet.schedulers import STOCK

from ..diagnose.hand_made import save_run
from .recorded_replay import config_of, record
from .test_servers import a_job


def test_an_iteration_has_as_many_passes_as_it_was_recorded_with(tmp_path: Path) -> None:
    """Else a replay accumulates again what is accumulated already."""
    job = a_job(STOCK, iterations=4)
    strategy = replace(job.strategy, accumulation=4)
    job = replace(job, times=replace(job.times, passes=4), strategy=strategy)
    save_run(tmp_path / "run", record(job)[0], config_of(job))
    model, times = measure_parameters(Run(tmp_path / "run"), job)
    assert model == job.model
    assert times.passes == 4
    found = replace(job, times=times)
    assert np.array_equal(as_executed(found).times.forward_ns, times.forward_ns)
    assert np.array_equal(times.forward_ns, job.times.forward_ns)
