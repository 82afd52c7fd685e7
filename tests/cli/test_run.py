"""``byteprophet run`` with real BytePS: a job of two workers that add up a tensor."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from byteprophet import schedulers
from byteprophet.cli.main import run_cli
from byteprophet.launcher.forked_process import VARIABLE
from byteprophet.launcher.leftovers import marked_processes

from ..namespaces import why_not_permitted
from ..thorough import by_default

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_RUN = (sys.executable, "-m", "byteprophet", "run")
_IN_TIME = ("run", "--timeout", "100")

# Each rank adds rank + 1 to 300000 elements (more than one partition); in place, as BytePS'
# out-of-place call is wrong for tensors in host memory.
_SUM = """
import json, os, sys, time
import torch
import byteps.torch as bps
bps.init()
rank, size = bps.rank(), bps.size()
for step in range(3):
    tensor = torch.full((300000,), float(rank + 1 + step))
    bps.synchronize(bps.byteps_push_pull(tensor, average=False, name="t"))
    expected = size * (size + 1) / 2 + size * step
    assert torch.all(tensor == expected), (step, tensor[0].item(), expected)
print("sums are right", flush=True)
if "stay" in sys.argv:
    time.sleep(100)
bps.shutdown()
path = os.path.join(os.environ["BYTEPROPHET_RUN"], "results", f"worker-{rank}.json")
with open(path, "w") as file:
    json.dump({"rank": rank, "size": size}, file)
"""

pytestmark = [pytest.mark.job, pytest.mark.usefixtures("default_signals")]


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The script, in the current directory."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "sum.py"
    path.write_text(_SUM)
    return path


@pytest.mark.parametrize("scheduler", by_default(schedulers.names, ("stock", "prophet")))
def test_two_workers_on_loopback_get_right_sums(
    script: Path, scheduler: str, capfd: pytest.CaptureFixture[str]
) -> None:
    options = ["--scheduler", scheduler, "--partition-bytes", "262144", "--servers", "2", "--json"]
    status = run_cli([*_IN_TIME, *options, "--", sys.executable, script.name])
    said, errors = capfd.readouterr()
    assert status == 0, errors
    report = json.loads(said)
    assert report["schema"] == 1
    assert report["status"] == "done"
    assert report["results"] == [{"rank": 0, "size": 2}, {"rank": 1, "size": 2}]
    roles = {role["name"]: role for role in report["roles"]}
    controllers = ["controller"] if scheduler in schedulers.PLANNED else []
    names = ["scheduler", "server-0", "server-1", "worker-0", "worker-1", *controllers]
    assert list(roles) == names
    # The job ends a controller, which may not have come far by then: not to its loop, where the
    # signal is a request, or not to its command, which passes the signal on as a shell does.
    statuses = {name: role["exit_status"] for name, role in roles.items()}
    assert statuses.pop("controller", 0) in (0, -signal.SIGTERM, 128 + signal.SIGTERM)
    assert set(statuses.values()) == {0}
    assert all(role["cpu_s"] > 0 for role in roles.values())
    assert "[worker-0] sums are right" in errors
    assert Path(report["run"], "summary.json").is_file()
    _assert_nothing_left(Path(report["run"]))


@pytest.mark.skipif(why_not_permitted() is not None, reason=str(why_not_permitted()))
def test_the_same_on_hosts_with_limited_links(
    script: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    status = run_cli([*_IN_TIME, "--bandwidth", "200mbit", "--", sys.executable, script.name])
    said, errors = capfd.readouterr()
    assert status == 0, errors
    assert sorted(line for line in said.splitlines() if "sums" in line) == [
        "[worker-0] sums are right",
        "[worker-1] sums are right",
    ]


@pytest.mark.parametrize(
    ("options", "name"), [([], "allreduce"), (["--sync", "dear-planned"], "dear-planned")]
)
def test_a_run_directory_is_named_after_the_exchange(
    options: list[str], name: str, tmp_path: Path
) -> None:
    runs = tmp_path / "runs"
    given = ["--runs", str(runs), "--servers", "0", *options]
    assert run_cli([*_IN_TIME, *given, "--", "true"]) == 0
    (run,) = runs.iterdir()
    assert run.name.endswith(f"Z-{name}")


@pytest.mark.parametrize(
    ("variable", "value", "option"),
    [
        ("BYTEPS_SCHEDULER", "p3", ("--scheduler", "fifo")),
        ("BYTEPROPHET_SETTINGS", "window_floor_bytes=1", ("--set", "window_floor_bytes=524288")),
    ],
)
def test_a_policy_that_the_shell_asks_for_is_not_dropped_in_silence(
    variable: str,
    value: str,
    option: tuple[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(variable, value)
    assert run_cli(["run", "--", "true"]) == 2
    asks = f"{variable}={value}: is for roles started by hand: use {option[0]}"
    assert asks in capsys.readouterr().err
    for accepted in (option, ("--servers", "0")):
        assert run_cli(["run", *accepted, "--", "no such program"]) == 2
        assert "command 'no such program': there is no such program" in capsys.readouterr().err


@pytest.mark.parametrize("variable", ["OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS"])
def test_several_starts_of_one_command_are_refused(
    variable: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As by mpirun -np 2 byteprophet run: each would be a job."""
    monkeypatch.setenv(variable, "2")
    assert run_cli(["run", "--runs", str(tmp_path / "runs"), "--servers", "0", "--", "true"]) == 2
    said = capsys.readouterr().err
    assert f"run: mpirun or srun has started it 2 times ({variable})" in said
    assert not (tmp_path / "runs").exists()


def _start_and_wait(
    tmp_path: Path, script: Path, scheduler: str
) -> tuple[subprocess.Popen[str], Path]:
    """A job whose workers have done their sums and stay."""
    process = subprocess.Popen(
        [*_RUN, "--scheduler", scheduler, "--", sys.executable, script.name, "stay"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        start_new_session=True,
    )
    assert process.stdout is not None
    ready = 0
    while ready < 2:
        line = process.stdout.readline()
        assert line, process.communicate()[1]
        ready += "sums are right" in line
    (run,) = (tmp_path / "runs").iterdir()
    return process, run


def _assert_nothing_left(run: Path) -> None:
    assert marked_processes(str(run)) == []
    port = tomllib.loads((run / "config.toml").read_text())["port"]
    assert list(Path("/dev/shm").glob(f"BytePS_*_{port}_*")) == []


def _kill_a_worker_at_work(runs: Path, killed_s: list[float]) -> None:
    """Kill worker 1 of the one job in ``runs`` once both workers have done their sums."""
    deadline_s = time.monotonic() + 90
    while sum("sums are right" in log.read_text() for log in runs.glob("*/logs/worker-*.log")) < 2:
        if time.monotonic() > deadline_s:
            return
        time.sleep(0.05)
    (run,) = runs.iterdir()
    pids = {_variable(pid, "DMLC_WORKER_ID"): pid for pid in marked_processes(str(run))}
    killed_s.append(time.monotonic())
    os.kill(pids["1"], signal.SIGKILL)


@pytest.mark.parametrize("scheduler", ["stock", "prophet"])
def test_a_killed_worker_ends_the_job_and_is_named(
    tmp_path: Path, script: Path, scheduler: str, capfd: pytest.CaptureFixture[str]
) -> None:
    killed_s: list[float] = []
    killer = threading.Thread(target=_kill_a_worker_at_work, args=(tmp_path / "runs", killed_s))
    killer.start()
    command = ["--scheduler", scheduler, "--", sys.executable, script.name, "stay"]
    status = run_cli([*_IN_TIME, *command])
    ended_s = time.monotonic()
    killer.join()
    errors = capfd.readouterr().err
    assert ended_s - killed_s[0] < 15  # what the launcher promises, not a measurement
    assert status == 1
    (run,) = (tmp_path / "runs").iterdir()
    assert "byteprophet: error: worker-1 was killed by signal 9 (SIGKILL) after " in errors
    assert f"its log: {run}/logs/worker-1.log" in errors
    assert "Traceback" not in errors
    _assert_nothing_left(run)


@pytest.mark.parametrize(
    ("signum", "status", "scheduler"),
    [(signal.SIGINT, 130, "prophet"), (signal.SIGTERM, 143, "stock")],
)
def test_an_interrupted_job_leaves_nothing(
    tmp_path: Path, script: Path, signum: int, status: int, scheduler: str
) -> None:
    process, run = _start_and_wait(tmp_path, script, scheduler)
    process.send_signal(signum)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == status
    assert "byteprophet: error: " in errors
    assert "Traceback" not in errors
    _assert_nothing_left(run)


def test_a_reader_that_goes_away_ends_the_job(tmp_path: Path) -> None:
    talk = "import time\nwhile True: print('x', flush=True); time.sleep(0.01)"
    process = subprocess.Popen(
        [*_RUN, "--", sys.executable, "-c", talk],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**os.environ, VARIABLE: "0"},  # its workers need nothing that takes time to import
    )
    with process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        errors = process.stderr.read()
        assert process.wait(timeout=60) == 1
    assert "nobody reads the output" in errors
    assert "Traceback" not in errors
    (run,) = (tmp_path / "runs").iterdir()
    assert marked_processes(str(run)) == []


def _variable(pid: int, name: str) -> str:
    for item in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
        if item.startswith(f"{name}=".encode()):
            return item.decode().partition("=")[2]
    return ""
