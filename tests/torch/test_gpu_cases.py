"""Real jobs on a GPU: what ``cases.py`` does to models there, by servers and by collectives.

Two ranks share one GPU, so collectives are gloo's, which refuses none that share. Both ranks must
come out alike, bit for bit, and like the job of one process on that GPU, up to rounding.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from byteprophet.launcher import JobSpec

from .case_results import job_of_each_way, run_single

pytestmark = [
    pytest.mark.job,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here"),
]
FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER))
from cases import CASES, RANKS  # noqa: E402

WAYS = {
    "prophet": ("case_worker.py", "auto", {"scheduler": "prophet", "partition_bytes": 65536}),
    "our front alone": ("case_worker.py", "ours", {"scheduler": "stock"}),
    **{
        sync: ("collective_worker.py", sync, {"servers": 0})
        for sync in ("allreduce", "dear", "dear-planned")
    },
}
Job = Callable[[str], list[dict[str, Any]]]


@pytest.fixture(scope="module")
def single_on_gpu(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run_single(tmp_path_factory.mktemp("single"), tuple(CASES), "cuda")


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """Run all cases once per way; gives what each rank wrote."""

    def spec_of(way: str, folder: Path) -> JobSpec:
        worker, front, how = WAYS[way]
        options: dict[str, Any] = dict(how)
        return JobSpec(
            command=(sys.executable, str(FOLDER / worker), front, *CASES),
            run_directory=folder / "run",
            directory=folder,
            environment={"BYTEPROPHET_TEST_DEVICE": "cuda", "BYTEPROPHET_TIMEOUT_S": "120"},
            timeout_s=400.0,
            **options,
        )

    return job_of_each_way(tmp_path_factory, RANKS, spec_of)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", CASES)
def test_equals_one_process(job: Job, single_on_gpu: dict[str, Any], way: str, case: str) -> None:
    ranks = job(way)
    assert ranks[0]["digests"][case] == ranks[1]["digests"][case]
    values = ranks[0]["values"][case]
    assert len(values) == len(single_on_gpu["values"][case]) > 0
    for one, other in zip(values, single_on_gpu["values"][case], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
