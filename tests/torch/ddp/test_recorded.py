"""Real jobs that are recorded: a model that keeps its own exchange does not get in the way."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from byteprophet.job.strategy import DEAR_PLANNED
from byteprophet.launcher import JobSpec, run_job
from byteprophet.timeline.read_events import load_events
from byteprophet.timeline.tables import Kind

pytestmark = [pytest.mark.job, pytest.mark.timeout(300)]
SCRIPT = Path(__file__).with_name("recorded_script.py")


@pytest.mark.parametrize(
    ("way", "files"),
    [
        ("together", ["spans-worker-0.arrows"]),
        ("in-turn", ["spans-worker-0.arrows", "spans-worker-0~2.arrows"]),
    ],
)
def test_beside_a_model_that_keeps_its_own_exchange(
    tmp_path: Path, way: str, files: list[str]
) -> None:
    lines: list[str] = []
    spec = JobSpec(
        command=(sys.executable, str(SCRIPT), way),
        run_directory=tmp_path / "run",
        servers=0,
        environment={"BYTEPROPHET_SYNC": DEAR_PLANNED, "BYTEPROPHET_RECORD": "1"},
        timeout_s=100.0,
    )
    run_job(spec, lambda _role, line: lines.append(line)).check()
    assert lines.count("0 hooks") == 2
    folder = tmp_path / "run" / "events"
    assert sorted(path.name for path in folder.glob("spans-worker-0*.arrows")) == files
    kinds = load_events(folder / files[-1]).rows["kind"].tolist()
    assert kinds.count(Kind.ITERATION) >= 2
