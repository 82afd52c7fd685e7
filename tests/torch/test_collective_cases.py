"""Real jobs without servers: whatever a script does to its model, sharing the work changes nothing.

Two ranks, small groups. Every case must come out the same on both ranks, bit for bit, and be the
job of one process that averages both ranks' gradients, up to rounding. Cases share the ways; with
``--thorough``, they run in all of them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from byteprophet.launcher import JobSpec

from ..thorough import asked, pairs
from .case_results import job_of_each_way

pytestmark = [pytest.mark.job, pytest.mark.timeout(600)]
FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER))
from cases import CASES, RANKS  # noqa: E402

WAYS = {
    **{sync: (sync, "sockets") for sync in ("allreduce", "dear", "dear-planned")},
    "a plan": ("mixed", "sockets"),
    "dear by gloo's collectives": ("dear", "collectives"),
}
Job = Callable[[str], list[dict[str, Any]]]


@pytest.fixture(scope="module")
def job(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Job:
    """Run a way's cases once; gives what each rank wrote."""

    def spec_of(way: str, folder: Path) -> JobSpec:
        sync, transport = WAYS[way]
        cases = [each["case"] for each in asked(request, way=way)]
        return JobSpec(
            command=(sys.executable, str(FOLDER / "collective_worker.py"), sync, *cases),
            run_directory=folder / "run",
            directory=folder,
            servers=0,
            environment={"BYTEPROPHET_TIMEOUT_S": "120", "BYTEPROPHET_TRANSPORT": transport},
            timeout_s=400.0,
        )

    return job_of_each_way(tmp_path_factory, RANKS, spec_of)


@pytest.mark.parametrize(("case", "way"), pairs(tuple(CASES), tuple(WAYS)))
def test_equals_one_process(job: Job, single: dict[str, Any], way: str, case: str) -> None:
    ranks = job(way)
    assert ranks[0]["digests"][case] == ranks[1]["digests"][case]
    values = ranks[0]["values"][case]
    assert len(values) == len(single["values"][case]) > 0
    for one, other in zip(values, single["values"][case], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)
