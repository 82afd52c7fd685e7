"""Standard output that is a full disk, or a pipe that nobody reads any more: no traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from byteprophet.cli.output import echo_to
from byteprophet.control.log import EventLog
from byteprophet.launcher.forked_process import VARIABLE

FULL = "byteprophet: error: standard output: cannot be written: No space left on device\n"
COMMANDS = [
    ("workload", "resnet50", "--toml"),  # longer than a pipe's buffer
    ("plan", "RUN"),  # a table
    ("run", "--help"),
]


def command(arguments: tuple[str, ...], directory: Path) -> list[str]:
    log = EventLog(directory, "life")
    log.record("started")
    log.close()
    given = [str(directory) if word == "RUN" else word for word in arguments]
    return [sys.executable, "-m", "byteprophet", *given]


@pytest.mark.parametrize(
    ("arguments", "unbuffered"), [*((command, "") for command in COMMANDS), (COMMANDS[0], "1")]
)
def test_a_full_disk_is_one_line(
    arguments: tuple[str, ...], unbuffered: str, tmp_path: Path
) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command(arguments, tmp_path),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=180,
            check=False,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        )
    assert (done.returncode, done.stderr) == (2, FULL)


@pytest.mark.parametrize("arguments", COMMANDS)
def test_who_reads_no_more_is_told_nothing(arguments: tuple[str, ...], tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            command(arguments, tmp_path),
            stdout=write,
            stderr=subprocess.PIPE,
            text=True,
            timeout=180,
            check=False,
        )
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (1, "")


def test_no_output_at_all_is_no_error(tmp_path: Path) -> None:
    done = subprocess.run(
        ["sh", "-c", '"$@" >&-', "sh", *command(("workload", "resnet50"), tmp_path)],
        stderr=subprocess.PIPE,
        text=True,
        timeout=180,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("error_too", [False, True])
def test_a_job_goes_on_where_its_output_is_not_kept(error_too: bool, tmp_path: Path) -> None:
    worker = "for _ in range(3): print('at work', flush=True)"
    arguments = ("run", "--servers", "0", "--runs", str(tmp_path / "runs"), "--")
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*command(arguments, tmp_path), sys.executable, "-c", worker],
            stdout=full,
            stderr=full if error_too else subprocess.PIPE,
            text=True,
            timeout=180,
            check=False,
            env={**os.environ, VARIABLE: "0"},  # its workers need nothing that takes time to import
        )
    assert done.returncode == 0
    (run,) = (tmp_path / "runs").iterdir()
    assert (run / "summary.json").is_file()
    assert (run / "logs" / "worker-1.log").read_text() == 3 * "at work\n"
    if not error_too:
        begin, warning, end = done.stderr.splitlines()
        assert begin == f"byteprophet: run {run}"
        assert warning == (
            "byteprophet: warning: the output cannot be written: No space left on device; "
            f"the job goes on, see {run / 'logs'}"
        )
        assert end.startswith("byteprophet: done after ")


@pytest.mark.parametrize("error_too", [False, True])
def test_a_time_limit_holds_where_nobody_reads(error_too: bool, tmp_path: Path) -> None:
    """Pipes that are full block whoever writes to them, and nothing says when they will not."""
    reading, writing = os.pipe()
    arguments = ("run", "--servers", "0", "--timeout", "2", "--runs", str(tmp_path / "runs"), "--")
    done = subprocess.run(
        [*command(arguments, tmp_path), "yes", "at work"],
        stdout=writing,
        stderr=writing if error_too else subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, VARIABLE: "0"},
    )
    os.close(writing)
    os.close(reading)
    assert done.returncode == 1
    (run,) = (tmp_path / "runs").iterdir()
    summary = json.loads((run / "summary.json").read_text())
    assert [role["stopped"] for role in summary["roles"]] == [True, True]
    assert summary["failed"].endswith("still running; nobody reads their output")
    if not error_too:
        assert done.stderr.splitlines()[-1] == f"byteprophet: error: {summary['failed']}"


_SAVES_AT_THE_END = """
import os, pathlib, signal
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
while not asked:
    print("at work", flush=True)
pathlib.Path("saved-" + os.environ["RANK"]).touch()
"""


def test_a_script_can_save_at_the_end_where_nobody_reads(tmp_path: Path) -> None:
    """It may wait for its reader when it is asked to end."""
    reading, writing = os.pipe()
    arguments = ("run", "--servers", "0", "--timeout", "2", "--grace", "20", "--")
    done = subprocess.run(
        [*command(arguments, tmp_path), sys.executable, "-c", _SAVES_AT_THE_END],
        stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60, check=False, cwd=tmp_path,
        env={**os.environ, VARIABLE: "0"},
    )  # fmt: skip
    os.close(writing)
    os.close(reading)
    assert done.returncode == 1
    assert sorted(path.name for path in tmp_path.glob("saved-*")) == ["saved-0", "saved-1"]
    assert "nobody reads the output: its last lines are in the logs only" in done.stderr


_FILLS_A_PIPE = """
import os, pathlib
for _ in range(60):
    os.write(1, 1000 * b"x\\n")
pathlib.Path("ended").touch()
"""


def test_a_late_reader_gets_all_lines(tmp_path: Path) -> None:
    """Of a job that nobody has asked to end."""
    arguments = ("run", "--servers", "0", "--workers", "1", "--")
    process = subprocess.Popen(
        [*command(arguments, tmp_path), sys.executable, "-c", _FILLS_A_PIPE],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
        env={**os.environ, VARIABLE: "0"},
    )  # fmt: skip
    while not (tmp_path / "ended").exists():
        assert process.poll() is None
        time.sleep(0.1)
    time.sleep(1.0)  # in which the launcher reads what the worker has left in its pipe
    output, error = process.communicate(timeout=60)
    assert process.returncode == 0, error
    assert output.splitlines().count("[worker-0] x") == 60_000
    assert "nobody reads" not in error


def test_a_line_is_one_write() -> None:
    """Even where Python buffers nothing: roles that mpirun starts print to one place."""
    reading, writing = os.pipe2(os.O_DIRECT)  # which keeps writes apart
    code = (
        "from pathlib import Path; from byteprophet.cli.output import echo_to; "
        "from byteprophet.errors import tell; echo_to(Path('logs'))('worker-1', 'x'); tell('y')"
    )
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    subprocess.run(
        [sys.executable, "-c", code], stdout=writing, stderr=writing, env=environment, check=True,
        timeout=60,
    )  # fmt: skip
    os.close(writing)
    writes = [os.read(reading, 99) for _ in range(3)]
    os.close(reading)
    assert writes == [b"[worker-1] x\n", b"byteprophet: y\n", b""]


_NOTICE = "[21:20:33] byteps-source/3rdparty/ps-lite/src/./zmq_van.h:321: Start ZMQ recv thread"
_ERROR = "[21:20:33] byteps-source/3rdparty/ps-lite/src/van.cc:17: Check failed: port"


@pytest.mark.parametrize("variable", [None, "PS_VERBOSE", "BYTEPS_LOG_LEVEL"])
def test_notices_of_byteps_are_shown_to_who_asks(
    variable: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("PS_VERBOSE", "BYTEPS_LOG_LEVEL"):
        monkeypatch.delenv(name, raising=False)
    if variable is not None:
        monkeypatch.setenv(variable, "1")
    echo = echo_to(tmp_path)
    for line in (f"[{_NOTICE}", _NOTICE, "loss 0.5", _ERROR):
        echo("worker-0", line)
    shown = capsys.readouterr().out.splitlines()
    assert shown[-2:] == ["[worker-0] loss 0.5", f"[worker-0] {_ERROR}"]
    assert len(shown) == (2 if variable is None else 4)
