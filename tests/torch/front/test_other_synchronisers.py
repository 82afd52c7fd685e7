"""Two synchronisers for one gradient: refused by name, before parameters are wrong.

Once parameters were silently wrong where a script, or a framework on its behalf, kept
DistributedDataParallel beside our optimizer.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from byteprophet.launcher import JobSpec, run_job

pytestmark = [pytest.mark.job, pytest.mark.timeout(200)]
FOLDER = Path(__file__).parent
# Who is named; None: it is right, and trains.
EXPECTED = {
    "alone": None,
    "wrapped_before": "DistributedDataParallel",
    "given_as_model": "DistributedDataParallel",
    "wrapped_after": "DistributedDataParallel",
    "wrapped_within": "DistributedDataParallel",
    "replicated": "DDP",
    "sharded_before": "DTensor",
    "sharded_after": "FSDPModule",
    "others_optimizer": "horovod",
    "others_hook": "deepspeed",
    "without_averages": None,
    "beside": None,
}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("conflicts")
    spec = JobSpec(
        command=(sys.executable, str(FOLDER / "conflict_worker.py")),
        run_directory=folder / "run",
        directory=folder,
        servers=0,
        environment={"BYTEPROPHET_TIMEOUT_S": "60"},
        timeout_s=180.0,
    )
    run_job(spec, None).check()
    return [json.loads((folder / "run" / f"conflicts-{rank}.json").read_text()) for rank in (0, 1)]


@pytest.mark.parametrize("situation", EXPECTED)
def test_one_gradient_has_one_synchroniser(ranks: list[dict[str, Any]], situation: str) -> None:
    named = EXPECTED[situation]
    for rank in ranks:
        result = rank[situation]
        if named is None:
            assert result.get("off", result) == pytest.approx(0, abs=1e-5)
        else:
            assert named in result["error"]
            assert result["error"].startswith("byteprophet: ")
            assert "\n" not in result["error"]


def test_the_parameter_is_named(ranks: list[dict[str, Any]]) -> None:
    assert "'0.weight'" in ranks[0]["wrapped_after"]["error"]
    assert "'2.weight'" in ranks[0]["wrapped_within"]["error"]
