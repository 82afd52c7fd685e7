"""``byteprophet.torch.DistributedDataParallel``, and values that do not fit, in real jobs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from torch import nn

from byteprophet.launcher import JobResult, JobSpec, run_job
from byteprophet.torch import DistributedDataParallel

pytestmark = pytest.mark.timeout(300)
FOLDER = Path(__file__).parent


def run(
    folder: Path, lines: list[str], *command: str, sync: str = "", strategy: str = ""
) -> JobResult:
    spec = JobSpec(
        command=(sys.executable, *command),
        run_directory=folder / "run",
        servers=0,
        environment={
            "BYTEPROPHET_SYNC": sync,
            "BYTEPROPHET_STRATEGY": strategy,
            "BYTEPROPHET_TIMEOUT_S": "60",
        },
        timeout_s=200.0,
    )
    return run_job(spec, lambda role, line: lines.append(line))


@pytest.mark.job
def test_our_class_leaves_torchs_alone(tmp_path: Path) -> None:
    lines: list[str] = []
    run(tmp_path, lines, str(FOLDER / "by_hand_worker.py")).check()
    assert lines.count("equal") == 2


@pytest.mark.parametrize(
    ("variable", "says"),
    [("BYTEPROPHET_STRATEGY", "given says what"), ("BYTEPROPHET_RECORD", "record a job with")],
)
def test_a_trial_in_code_takes_no_strategy_and_is_not_recorded(
    monkeypatch: pytest.MonkeyPatch, variable: str, says: str
) -> None:
    monkeypatch.setenv(variable, "given")
    with pytest.raises(ValueError, match=f"sync='auto': {says}"):
        DistributedDataParallel(nn.Linear(1, 1), sync="auto")


@pytest.mark.job
@pytest.mark.parametrize(
    ("sync", "says"), [("ring", "must be allreduce, "), ("byteps", "this job has no servers; ")]
)
def test_a_runtime_that_cannot_be_is_refused_in_one_line(
    tmp_path: Path, sync: str, says: str
) -> None:
    lines: list[str] = []
    files = [str(tmp_path / name) for name in ("saved", "result")]
    result = run(tmp_path, lines, str(FOLDER / "checkpoint_script.py"), *files, sync=sync)
    assert result.failed is not None
    assert "ended with status 2" in result.failed
    assert f"byteprophet: error: BYTEPROPHET_SYNC={sync}: {says}" in "".join(lines)
    assert "Traceback" not in "".join(lines)


@pytest.mark.job
def test_a_strategy_that_compresses_is_refused_in_one_line(tmp_path: Path) -> None:
    """What is not sent would be in no state, because the optimizer is the script's own."""
    strategy = {
        "schema": 1,
        "runtime": "dear",
        "since": 0,
        "bucket_bytes": 0,
        "parameters": [{"name": "weight", "size_bytes": 400, "layer": ""}],
        "buckets": [],
        "compressors": [{"parameters": ["weight"], "type": "onebit"}],
    }
    path = tmp_path / "strategy.json"
    path.write_text(json.dumps(strategy))
    lines: list[str] = []
    files = [str(tmp_path / name) for name in ("saved", "result")]
    script = str(FOLDER / "checkpoint_script.py")
    result = run(tmp_path, lines, script, *files, sync="dear", strategy=str(path))
    assert result.failed is not None
    assert "ended with status 2" in result.failed
    assert "only DistributedOptimizer compresses gradients" in "".join(lines)
    assert "Traceback" not in "".join(lines)
