"""Real jobs: a checkpoint that rank 0 saves fits jobs with and without byteprophet."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from byteprophet.job.strategy_file import read_strategy_file, strategy_path
from byteprophet.launcher import JobSpec, run_job

pytestmark = [pytest.mark.job, pytest.mark.timeout(400)]
SCRIPT = Path(__file__).with_name("checkpoint_script.py")


def trained(folder: Path, *syncs: str) -> list[torch.Tensor]:
    """The parameters after one job per sync, each of which goes on from the one before."""
    for number, sync in enumerate(syncs):
        spec = JobSpec(
            command=(sys.executable, str(SCRIPT), str(folder / "saved"), str(folder / "result")),
            run_directory=folder / f"run-{number}",
            servers=0,
            environment={"BYTEPROPHET_SYNC": sync, "BYTEPROPHET_TIMEOUT_S": "120"},
            timeout_s=180.0,
        )
        run_job(spec).check()
        if sync:  # every rank has the whole state, so a replay must not shard it
            used = read_strategy_file(strategy_path(spec.run_directory)).strategy
            assert not used.shardable
            assert not any(bucket.sharded for bucket in used.buckets)
    found: list[torch.Tensor] = torch.load(folder / "result")
    return found


def test_a_checkpoint_fits_the_other_kind_of_job(tmp_path: Path) -> None:
    results = []
    for syncs in (("", ""), ("dear", ""), ("", "dear-planned")):
        folder = tmp_path / "-".join(syncs)
        folder.mkdir()
        results.append(trained(folder, *syncs))
    for others in results[1:]:
        assert all(torch.equal(one, two) for one, two in zip(results[0], others, strict=True))
