"""A real grid of two cells: stopped in its middle, taken up again, and reported."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from byteprophet.bench.grid import Cell, Grid, load_grid
from byteprophet.bench.grid_report import make_report
from byteprophet.bench.grid_run import run_phase
from byteprophet.bench.grid_store import FILE, read_records
from byteprophet.cli.main import run_cli
from byteprophet.errors import UserError
from byteprophet.workload import Tensor, Workload, to_toml

GRID = """\
name = "tiny"
iterations = 2
warmup_iterations = 2
[[cell]]
workload = "two.toml"
link = "unlimited"
[[cell]]
workload = "two.toml"
link = "unlimited"
tensors_per_burst = 2
"""


@pytest.fixture
def grid_file(tmp_path: Path) -> Path:
    tensors = (
        Tensor("a", 2_000_000, 10_000_000, 20_000_000),
        Tensor("b", 40, 10_000_000, 20_000_000),
    )
    (tmp_path / "two.toml").write_text(to_toml(Workload("two", 4, tensors)))
    path = tmp_path / "tiny.toml"
    path.write_text(GRID)
    return path


def command(grid_file: Path, out: Path) -> list[str]:
    return [
        *("bench", "--grid", str(grid_file), "--schedulers", "prophet"),
        *("--rounds", "1", "--out", str(out)),
    ]


def stop_in_second_job(arguments: list[str], out: Path) -> None:
    """Sends Ctrl-C as soon as one job is recorded and another is under way."""
    process = subprocess.Popen(
        [sys.executable, "-m", "byteprophet", *arguments],
        stdout=subprocess.DEVNULL,
    )
    try:
        deadline_s = time.monotonic() + 200
        while len(list((out / "runs").glob("*"))) < 2:
            assert process.poll() is None
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    finally:
        process.kill()


def what_is_to_run(grid: Grid, out: Path) -> list[str]:
    """What a run says before its first job, in front of which it is stopped."""
    said: list[str] = []

    class Stopped(Exception):
        pass

    def progress(text: str) -> None:
        if " left: round" in text:
            raise Stopped
        said.append(text)

    with pytest.raises(Stopped):
        run_phase(grid, "base", ["prophet"], 1, out, False, progress)
    return said


@pytest.mark.job
@pytest.mark.usefixtures("default_signals")
def test_stopped_and_taken_up_again(
    grid_file: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = tmp_path / "out"
    arguments = command(grid_file, out)
    stop_in_second_job(arguments, out)
    (first,) = read_records(out)
    capfd.readouterr()

    assert run_cli([*arguments, "--json", str(tmp_path / "report.json")]) == 0
    assert "1 of 2 jobs to run" in capfd.readouterr().err
    records = read_records(out)
    assert records[0] == first
    assert [record["cell"] for record in records] == [
        "two-unlimited-2w1s",
        "two-unlimited-2w1s-b2",
    ]
    for record in records:
        assert len(record["iteration_ns"]) == 2
        assert min(record["iteration_ns"]) >= record["bound_ns"] == 60_000_000
        assert 0 < record["machine_cpu_fraction"] <= 1
        assert record["roles_cpu_s"].keys() == {"scheduler", "server-0", "worker-0", "worker-1"}
    assert len({record["parameters_sha256"] for record in records}) == 1

    assert run_cli([*arguments, "--report"]) == 0
    printed = capfd.readouterr().out
    assert "two-unlimited-2w1s-b2" in printed
    assert "prophet over the bound, worst" in printed
    report = json.loads((out / "report.json").read_text())
    assert report == json.loads((tmp_path / "report.json").read_text())
    assert report["jobs"] == 2
    assert (out / "ratios.png").stat().st_size > 10_000

    # What no longer fits is said, run again, and not reported.
    grid_file.write_text(
        GRID.replace("tensors_per_burst = 2", "tensors_per_burst = 2\nservers = 2")
    )
    assert make_report(load_grid(str(grid_file)), out)["jobs"] == 1
    grid_file.write_text(GRID.replace("iterations = 2\nwarmup", "iterations = 3\nwarmup"))
    with pytest.raises(UserError, match="no finished jobs"):
        make_report(load_grid(str(grid_file)), out)
    said = what_is_to_run(load_grid(str(grid_file)), out)
    assert said[0] == "settings have changed since: 2 jobs are run again"
    grid_file.write_text(GRID)
    text = (out / FILE).read_text()
    (out / FILE).write_text(text.replace(records[0]["code"], "0123456789ab"))
    said = what_is_to_run(load_grid(str(grid_file)), out)
    assert said[0].startswith("the code has changed since (now ")
    assert "2 of 2 jobs to run" in said[1]
    assert make_report(load_grid(str(grid_file)), out)["code"] == ["0123456789ab"]
    (out / FILE).write_text(text)
    monkeypatch.setattr("byteprophet.bench.grid_run.describe_machine", lambda: {"cores": 512})
    said = what_is_to_run(load_grid(str(grid_file)), out)
    assert said[0] == "the machine, kernel or torch has changed since: 2 jobs are run again"


def test_wrong_requests_start_and_leave_nothing(
    grid_file: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    for extra, named in (
        (["--schedulers", "fastest"], "fastest"),
        (["--phase", "first"], "--phase 'first'"),
        (["--rounds", "0"], "--rounds 0"),
        (["--report"], "no finished jobs"),
        (["--workers", "3"], "--workers cannot be combined with --grid"),
        (["--record"], "--record cannot be combined with --grid"),
        (["--controller"], "--controller cannot be combined with --grid"),
        (["--step", "1gbit@3i"], "--step cannot be combined with --grid"),
        (["--set", "a=1"], "--set cannot be combined with --grid"),
        (["--json", str(tmp_path / "none" / "file")], "written: No such file or directory"),
        (["--json", str(tmp_path)], "written: Is a directory"),
        (["--out", str(grid_file)], f"{grid_file}/workloads: cannot be written: Not a"),
    ):
        assert run_cli([*command(grid_file, out), *extra]) == 2
        assert named in capfd.readouterr().err
    assert not (out / FILE).exists()
    assert run_cli(["bench", "--workload", "resnet18", "--out", "x"]) == 2
    assert "--out needs --grid" in capfd.readouterr().err
    assert run_cli(["bench"]) == 2
    assert "--workload or --grid" in capfd.readouterr().err


def test_a_cell_in_which_nothing_takes_time_is_refused(tmp_path: Path) -> None:
    """Its bound would be 0, by which nothing can be divided."""
    path = tmp_path / "idle.toml"
    path.write_text(to_toml(Workload("idle", 4, (Tensor("a", 40, 0, 0),))))
    grid = Grid("mine", (Cell(str(path), "unlimited"),))
    with pytest.raises(UserError, match="idle-unlimited-2w1s': nothing takes time in it"):
        run_phase(grid, "base", ["stock"], 1, tmp_path / "out", False, print)
