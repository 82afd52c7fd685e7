"""Real jobs: whatever a script does to its model, scheduling does not change what comes out.

Two ranks, two servers and small partitions (stock: large ones, as it polls for every message).
Every case runs under a policy or without the plug-in, with small gradients fused, and must equal,
bit for bit, the job whose ``step()`` waits and whose gradients travel alone; where upstream's own
optimizer can do the case, that one's job, too. One process that averages the gradients of both
ranks' batches comes out the same up to rounding. With ``--thorough``, cases run in all ways.

Scripts see of a policy only when updates end, which ``front/`` has in any order; prophet also plans
between steps.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from byteprophet import _core
from byteprophet.launcher import JobSpec, run_job
from byteprophet.runtime_settings import FUSION_BYTES

from ..thorough import asked, pairs
from .case_results import read

pytestmark = [pytest.mark.job, pytest.mark.timeout(600)]
FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER))
from cases import CASES, RANKS, SHIPPED  # noqa: E402

WORKER = str(FOLDER / "case_worker.py")
Job = Callable[..., list[dict[str, Any]]]
WAYS = {
    **{policy: ("auto", policy, "1") for policy in _core.policy_names()},
    "without the plug-in": ("ours", "stock", "1"),
}
WAITING = ("ours", "fifo", "0")


@pytest.fixture(scope="module")
def job(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Job:
    """Run the cases of each way once; gives what each rank wrote, with the folder of the values."""
    known: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    cases = {
        ("shipped", "stock", "1"): SHIPPED,
        ("crossed", "p3", "1"): ("sgd",),
        WAITING: tuple(CASES),
        **{job: [each["case"] for each in asked(request, way=way)] for way, job in WAYS.items()},
    }

    def run(
        front: str, scheduler: str = "stock", overlap: str = "1", fusion_bytes: int = 20_000
    ) -> list[dict[str, Any]]:
        way = (front, scheduler, overlap, str(fusion_bytes))
        if way not in known:
            folder = tmp_path_factory.mktemp("-".join(way))
            spec = JobSpec(
                command=(sys.executable, WORKER, front, *cases[front, scheduler, overlap]),
                run_directory=folder / "run",
                directory=folder,
                servers=2,
                scheduler=scheduler,
                partition_bytes=4096000 if scheduler == "stock" else 65536,
                environment={
                    "BYTEPROPHET_TIMEOUT_S": "120",
                    "BYTEPROPHET_OVERLAP": overlap,
                    FUSION_BYTES: str(fusion_bytes),
                },
                timeout_s=400.0,
            )
            result = run_job(spec, None)
            assert result.failed is None
            known[way] = [read(folder / "run", rank) for rank in range(RANKS)]
        return known[way]

    return run


@pytest.mark.parametrize(("case", "way"), pairs(tuple(CASES), tuple(WAYS)))
def test_equals_the_job_that_waits(job: Job, way: str, case: str) -> None:
    expected = job(*WAITING, fusion_bytes=0)
    results = job(*WAYS[way])
    digests = [rank["digests"][case] for rank in (*expected, *results)]
    assert len(set(digests)) == 1
    assert all((rank["scheduled"] > 0) == (way in _core.policy_names()) for rank in results)


@pytest.mark.parametrize("case", SHIPPED)
def test_equals_upstreams_optimizer(job: Job, case: str) -> None:
    expected = job("shipped")
    assert expected[0]["digests"][case] == expected[1]["digests"][case]
    assert job(*WAITING, fusion_bytes=0)[0]["digests"][case] == expected[0]["digests"][case]


def test_equals_upstreams_cross_barrier_script(job: Job) -> None:
    results = job("crossed", "p3")
    assert {rank["digests"]["sgd"] for rank in results} == {job("shipped")[0]["digests"]["sgd"]}


@pytest.mark.parametrize("case", CASES)
def test_equals_one_process(job: Job, single: dict[str, Any], case: str) -> None:
    values = job(*WAITING, fusion_bytes=0)[0]["values"][case]
    assert len(values) == len(single["values"][case]) > 0
    for one, other in zip(values, single["values"][case], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)
