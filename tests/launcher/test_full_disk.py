"""Jobs whose run directory cannot be written any more: they go on, and end with a line."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from byteprophet.errors import NotWritten, UserError
from byteprophet.launcher import run_job
from byteprophet.launcher.forked_process import VARIABLE
from byteprophet.timeline.read_events import load_events, load_run

from ..small_disk import run_on_small_disk
from .conftest import MakeSpec, python

# The process that runs the job prints what the disk has when the job has ended: then it is gone.
_RUN = """
import json, sys
from pathlib import Path
from byteprophet.cli.main import run_cli
disk = Path(sys.argv[1])
status = run_cli(["run", "--runs", str(disk), *sys.argv[2:]])
(run,) = disk.iterdir()
files = {str(path.relative_to(run)): path.read_text() for path in run.glob("*.json")}
print(json.dumps([status, files, [path.name for path in run.rglob("*.partial")]]))
"""
_FILL = """
import os
with open(os.path.join(os.environ["BYTEPROPHET_RUN"], "fill"), "wb", buffering=0) as file:
    try:
        while True:
            file.write(bytes(4096))
    except OSError:
        print("full", flush=True)
"""
_TRAIN = """
import os, shutil, sys
import torch
from torch import nn
import byteprophet.torch as bps
bps.init()
model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(12)])
optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), model=model)
for _ in range(int(sys.argv[1])):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
optimizer.finish()
print("trained", flush=True)
bps.shutdown()
if bps.rank() == 0 and len(sys.argv) > 2:
    shutil.copytree(os.environ["BYTEPROPHET_RUN"] + "/events", sys.argv[2])
"""


def test_the_summary_is_kept_where_the_job_has_filled_the_disk(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    options = ("--servers", "0", "--workers", "1", "--", sys.executable, "-c", _FILL)
    done = run_on_small_disk(disk, 256, "-c", _RUN, str(disk), *options, **{VARIABLE: "0"})
    *shown, found = done.stdout.splitlines()
    assert shown == ["[worker-0] full"]
    status, files, partial = json.loads(found)
    assert status == 0
    assert json.loads(files["summary.json"])["status"] == "done"
    assert partial == []
    assert "Traceback" not in done.stderr


def test_a_job_that_does_not_fit_is_refused_in_one_line(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    code = f"""
import sys
from pathlib import Path
from byteprophet.cli.main import run_cli
Path({str(disk / "other")!r}).write_bytes(bytes(4096))
sys.exit(run_cli(sys.argv[1:]))
"""
    done = run_on_small_disk(disk, 4, "-c", code, "run", "--runs", str(disk), "--", "true")
    assert done.returncode == 2
    begin, refusal = done.stderr.splitlines()
    assert begin.startswith("byteprophet: run ")
    assert refusal.startswith(f"byteprophet: error: {disk}/")
    assert refusal.endswith("/config.toml: cannot be written: No space left on device")


@pytest.mark.parametrize("fails", [False, True])
def test_a_run_directory_that_is_gone_is_said_last(
    fails: bool, make_spec: MakeSpec, capsys: pytest.CaptureFixture[str]
) -> None:
    code = (
        f"import os, shutil, sys; shutil.rmtree(os.environ['BYTEPROPHET_RUN']); sys.exit({+fails})"
    )
    spec = make_spec(python(code), workers=1)
    result = run_job(spec)
    where = f"{spec.run_directory / 'summary.json'}: cannot be written: No such file or directory"
    assert result.exit_status == 1
    assert result.failed is not None
    if fails:
        assert result.failed.startswith("worker-0 ended with status 1 ")
        assert capsys.readouterr().err == f"byteprophet: warning: {where}\n"
    else:
        assert result.failed == f"the job is done, but {where}"


def test_no_room_for_logs_is_one_line(make_spec: MakeSpec) -> None:
    spec = make_spec()
    (spec.run_directory / "logs" / "worker-1.log").mkdir(parents=True)
    with pytest.raises(NotWritten, match=r"worker-1\.log: cannot be written: Is a directory"):
        run_job(spec)


def test_no_place_for_temporary_files_is_one_line(
    make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nowhere() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr("tempfile.gettempdir", nowhere)
    with pytest.raises(UserError, match="TMPDIR: No usable temporary directory found"):
        run_job(make_spec())


@pytest.mark.job
def test_a_recorded_job_trains_on_while_the_disk_is_full(tmp_path: Path) -> None:
    disk, copy = tmp_path / "disk", tmp_path / "run" / "events"
    script = tmp_path / "train.py"
    script.write_text(_TRAIN)
    options = ("--record", "--", sys.executable, str(script), "60", str(copy))
    done = run_on_small_disk(disk, 240, "-c", _RUN, str(disk), *options)
    status, files, partial = json.loads(done.stdout.splitlines()[-1])
    assert status == 0, done.stdout + done.stderr
    assert done.stdout.count("] trained\n") == 2
    assert json.loads(files["summary.json"])["status"] == "done"
    assert partial == []
    assert "Traceback" not in done.stdout + done.stderr
    warnings = [line for line in done.stdout.splitlines() if "warning: " in line]
    full = [line for line in warnings if "cannot be written: No space left on device" in line]
    assert full  # once one writer has stopped, what the others still write may fit
    assert len(set(full)) == len(full)  # each recorder says it once
    # A recorder that finds no room to begin leaves no file: it may be the only one that finds none.
    stopped = re.findall(r"/events/([^/:]+): cannot be written: No space left", done.stdout)
    assert stopped
    for path in (copy / name for name in stopped):
        assert not path.exists() or not load_events(path).whole
    assert any(len(events.rows) for events in load_run(copy.parent))
