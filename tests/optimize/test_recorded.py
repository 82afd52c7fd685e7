"""Runs that no search may take for the user's own job."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from small_jobs import random_job

from byteprophet.errors import UserError
from byteprophet.job.strategy import Region
from byteprophet.job.strategy_file import write_strategy
from byteprophet.optimize.recorded import check_given, used_by
from byteprophet.runtime_settings import STRATEGY


def test_a_run_with_regions_is_refused(tmp_path: Path) -> None:
    job = random_job(3, 5)
    path = tmp_path / "given.json"
    config = {"environment": {STRATEGY: str(path)}}
    write_strategy(path, used_by(job, job))
    check_given(config)
    regions = replace(job, strategy=replace(job.strategy, regions=(Region(("0",), True),)))
    write_strategy(path, used_by(regions, job))
    with pytest.raises(UserError, match=r"given\.json says: optimise the run it came from"):
        check_given(config)
    check_given({"environment": {}})
