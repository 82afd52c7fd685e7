"""A run's files are read once, and nobody can change what others read."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from byteprophet.errors import UserError
from byteprophet.measure.run import Run
from byteprophet.measure.servers import measure_run
from byteprophet.timeline.events import Events, Origin
from byteprophet.timeline.tables import MESSAGE, MESSAGES, SPANS, Kind

from ..diagnose.hand_made import save_run
from .recorded_replay import config_of, record
from .test_servers import a_job

COUNTED = """
import json, sys
opened = []
def note(event, arguments):
    if event == "open" and isinstance(arguments[0], str):
        opened.append(arguments[0])
sys.addaudithook(note)
from byteprophet.cli.main import run_cli
status = run_cli(sys.argv[1:])
print(json.dumps([status, opened]), file=sys.stderr)
"""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    job = a_job("fifo", iterations=6)
    save_run(tmp_path / "run", record(job)[0], config_of(job))
    return tmp_path / "run"


@pytest.mark.parametrize("command", ["report", "replay", "timeline"])
def test_each_file_is_opened_once(run: Path, command: str) -> None:
    """The loader opens files from Python, so none is opened unseen: then its count were 0."""
    done = subprocess.run(
        [sys.executable, "-c", COUNTED, command, str(run)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    status, opened = json.loads(done.stderr.splitlines()[-1])
    assert status == 0
    counts = Counter(opened)
    files = sorted((run / "events").iterdir())
    assert len(files) > 3
    assert {path.name: counts[str(path)] for path in files} == {path.name: 1 for path in files}
    assert counts[str(run / "config.toml")] == (0 if command == "timeline" else 1)


def test_tables_are_read_only(run: Path) -> None:
    loaded = Run(run)
    assert loaded.events is loaded.events
    assert loaded.aligned is loaded.aligned
    for table in (*loaded.events, *loaded.aligned.events):
        with pytest.raises(ValueError, match="read-only"):
            table.rows["iteration" if "iteration" in table.table.columns else "round"] = 1


def test_what_is_wrong_is_named_once(tmp_path: Path, run: Path) -> None:
    with pytest.raises(UserError, match=r"nothing: there is no such run directory"):
        Run(tmp_path / "nothing")
    (run / "config.toml").write_text("workers = 0\n")
    with pytest.raises(UserError, match=rf"^{run}/config\.toml: workers must be"):
        measure_run(Run(run))
    for path in (run / "events").iterdir():
        path.unlink()
    with pytest.raises(UserError, match=f"^{run}: has no recorded events"):
        _ = Run(run).events


def test_a_refusal_names_the_run_whatever_it_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "has").mkdir()
    monkeypatch.chdir(tmp_path)
    run = Run(Path("has"))
    assert str(run.refusal(UserError("has no spans of rank 2"))) == "has: has no spans of rank 2"
    for said in ("has: is empty", "has/config.toml: is empty"):
        assert str(run.refusal(UserError(said))) == said


def test_lost_rows_are_told_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is measured in messages."""
    job = a_job("fifo", iterations=2)
    recorded = record(job)[0]
    messages = Events(MESSAGES, Origin("worker-0", 0), np.zeros(0, MESSAGE), {}, lost=3)
    save_run(tmp_path / "run", [*recorded, messages], config_of(job))
    measure_run(Run(tmp_path / "run"))
    assert capsys.readouterr().err == ""
    recorded = [replace(each, lost=7) if each.table is SPANS else each for each in recorded]
    save_run(tmp_path / "lost", recorded, config_of(job))
    run = Run(tmp_path / "lost")
    measure_run(run)
    measure_run(run)
    (line,) = capsys.readouterr().err.splitlines()
    said = ", ".join(f"worker-{rank} lost 7 rows of spans" for rank in range(3))
    assert line.startswith(f"byteprophet: warning: {run.directory}: {said}: times of iterations")


@pytest.mark.parametrize("is_reversed", [True, False])
def test_iterations_without_a_length_are_refused(tmp_path: Path, is_reversed: bool) -> None:
    job = a_job("fifo", iterations=4)
    recorded = record(job)[0]
    for events in recorded:
        if events.table is SPANS:
            whole = np.flatnonzero(events.rows["kind"] == Kind.ITERATION)
            if is_reversed:
                events.rows["iteration"][whole] = events.rows["iteration"][whole[::-1]]
            else:
                for name in ("begin_ns", "end_ns"):
                    events.rows[name][whole] = events.rows["begin_ns"][whole[0]]
    save_run(tmp_path, recorded, config_of(job))
    took = r"-\d+" if is_reversed else "0"
    with pytest.raises(UserError, match=rf"^{tmp_path}: .*an iteration took {took} ns"):
        measure_run(Run(tmp_path))
