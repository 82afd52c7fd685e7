"""The run in which regions are measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from byteprophet.errors import UserError
from byteprophet.launcher import JobResult, JobSpec
from byteprophet.launcher.spec import WEEK_S
from byteprophet.optimize.region_costs import measure_region_costs

from .test_trials import CONFIG


@pytest.mark.parametrize("memory", [False, True])
def test_units_are_measured_however_long_it_takes_if_memory_is_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory: bool
) -> None:
    ran: list[JobSpec] = []

    def run_job(spec: JobSpec, _echo: object) -> JobResult:
        ran.append(spec)
        return JobResult(0, (), None, 1.0)

    there = "byteprophet.optimize.region_costs"
    monkeypatch.setattr(f"{there}.run_job", run_job)
    monkeypatch.setattr(f"{there}.check_job", lambda spec: None)
    with pytest.raises(UserError, match="measured no regions"):
        measure_region_costs(CONFIG, ["compiled"], tmp_path, print, budget_s=60.0, memory=memory)
    (spec,) = ran
    assert spec.timeout_s == (WEEK_S if memory else 60.0 + 900.0)
