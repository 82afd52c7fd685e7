"""The connection of a role with a launcher elsewhere; and ``role --job -``, which has one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from byteprophet.errors import UserError
from byteprophet.input_files import read_json
from byteprophet.launcher.checks import LOOPBACK, root_port
from byteprophet.launcher.job_file import Address, JobFile, job_text, parse_job
from byteprophet.launcher.leftovers import marked_processes
from byteprophet.launcher.spec import JobSpec, Limits
from byteprophet.launcher.tether import BEAT, END, PASSED_ON, Tether, Told, read_told

ROLE = (sys.executable, "-m", "byteprophet", "role", "rank", "--job", "-")


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    yield reading, writing
    for descriptor in (reading, writing):
        with suppress(OSError):
            os.close(descriptor)


def test_what_is_told_arrives(pipe: tuple[int, int]) -> None:
    told = Told("schema = 1\n", {"worker.key": "a"}, "secret", is_scratch=True)
    os.write(pipe[1], told.to_line() + BEAT)
    assert read_told(pipe[0]) == told


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "standard input ended before the job came"),
        (b"schema = 1\n", "a launcher sends JSON first, this is not"),
        (b'{"job": ""}\n', "a launcher sends job, keys, mesh_key, is_scratch; its version differs"),
        (
            b'{"job": "", "keys": {"a": 1}, "mesh_key": "", "is_scratch": false}\n',
            "keys: must be texts",
        ),
    ],
)
def test_other_input_is_refused(pipe: tuple[int, int], data: bytes, says: str) -> None:
    os.write(pipe[1], data)
    os.close(pipe[1])
    with pytest.raises(UserError, match=says):
        read_told(pipe[0])


def act_and_wait(act: Callable[[], object]) -> None:
    act()
    time.sleep(20)


class Signalled(Exception):
    """SIGTERM has come."""


@pytest.fixture
def sigterm() -> Iterator[None]:
    def note(*_: object) -> None:
        raise Signalled

    before = signal.signal(signal.SIGTERM, note)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("sigterm")
def test_a_launcher_that_goes_is_noticed(pipe: tuple[int, int]) -> None:
    tether = Tether(pipe[0], None)
    with pytest.raises(Signalled), tether:
        act_and_wait(lambda: os.close(pipe[1]))
    assert tether.lost == "the launcher is gone: its connection to this role has ended"


@pytest.mark.usefixtures("sigterm")
def test_a_launcher_that_is_silent_is_noticed(pipe: tuple[int, int]) -> None:
    tether = Tether(pipe[0], 1.5)
    with pytest.raises(Signalled), tether:
        time.sleep(20)
    assert tether.lost is not None
    assert tether.lost.startswith("the launcher has been silent for ")


@pytest.mark.usefixtures("sigterm")
def test_a_launcher_that_asks_for_the_end_is_not_lost(pipe: tuple[int, int]) -> None:
    tether = Tether(pipe[0], 10)
    os.write(pipe[1], BEAT + END[:2])
    with pytest.raises(Signalled), tether:
        act_and_wait(lambda: os.write(pipe[1], END[2:]))
    assert tether.lost is None


def test_signals_for_the_script_arrive(pipe: tuple[int, int]) -> None:
    """Also in two pieces, and several at once."""
    came: list[int] = []
    before = {signum: signal.signal(signum, lambda n, _: came.append(n)) for signum in PASSED_ON}
    with Tether(pipe[0], None) as tether:
        os.write(pipe[1], BEAT + b"us")
        time.sleep(0.2)
        os.write(pipe[1], b"r2\n")
        time.sleep(0.2)
        os.write(pipe[1], BEAT + PASSED_ON[signal.SIGUSR1] + BEAT)
        time.sleep(0.2)
    for signum, handler in before.items():
        signal.signal(signum, handler)
    assert came == [signal.SIGUSR2, signal.SIGUSR1]
    assert tether.lost is None


@pytest.mark.usefixtures("sigterm")
def test_beats_keep_a_role_alive(pipe: tuple[int, int]) -> None:
    with Tether(pipe[0], 2.0) as tether:
        for _ in range(6):
            os.write(pipe[1], BEAT)
            time.sleep(0.5)
    assert tether.lost is None


def test_a_job_is_what_its_text_says() -> None:
    spec = JobSpec(
        ("python", "train.py", "a b"), Path("/run"), workers=3, servers=2, settings={"a": 1},
        environment={"BYTEPS_LOG_LEVEL": "INFO"}, directory=Path("/data"), timeout_s=5.0,
        controller=True,
    )  # fmt: skip
    job = JobFile(spec, Address("10.0.0.1", 9000), Address("10.0.0.1", 9001), "/keys")
    assert parse_job(job_text(job), "job") == job


def start_role(run: Path, *script: str) -> subprocess.Popen[bytes]:
    """A role whose worker runs, and has made the file "ready" if it runs ``script``."""
    command = ("sh", "-c", *script) if script else ("sleep", "100")
    limits = Limits(grace_s=30)  # what handles no SIGTERM ends at once
    spec = JobSpec(command, run, workers=2, servers=0, directory=run.parent, limits=limits)
    job = JobFile(spec, Address(LOOPBACK, root_port(None, LOOPBACK)), None, "")
    role = subprocess.Popen(
        ROLE, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert role.stdin is not None
    role.stdin.write(Told(job_text(job), is_scratch=True).to_line())
    role.stdin.flush()
    if script:
        wait_for(run.parent / "ready")
        return role
    deadline_s = time.monotonic() + 60
    while not marked_processes(str(run), "worker-0"):
        assert role.poll() is None
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    return role


def wait_for(path: Path) -> None:
    deadline_s = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def test_a_role_ends_with_its_launcher_and_leaves_nothing(tmp_path: Path) -> None:
    role = start_role(tmp_path / "run")
    assert (tmp_path / "run").stat().st_mode & 0o777 == 0o700
    said, _ = role.communicate(timeout=30)  # closes its standard input
    assert role.returncode == 1
    assert said.decode().splitlines()[-1] == (
        "byteprophet: error: the launcher is gone: its connection to this role has ended"
    )
    assert not (tmp_path / "run").exists()
    assert marked_processes(str(tmp_path / "run")) == []


def test_a_role_that_is_asked_to_end_keeps_its_files(tmp_path: Path) -> None:
    role = start_role(tmp_path / "run")
    role.communicate(END, timeout=30)
    assert role.returncode == 143
    assert (tmp_path / "run" / "summary-worker-0.json").is_file()


def test_a_script_keeps_its_grace_when_slurm_and_the_launcher_end_the_role(tmp_path: Path) -> None:
    """scancel sends SIGTERM to a role, and to its launcher, which then asks the role to end."""
    saves = "trap '' TERM; touch saving; sleep 0.7; touch saved; exit 0"
    script = f'trap "{saves}" TERM; touch ready; while :; do sleep 0.1; done'
    role = start_role(tmp_path / "run", script)
    role.terminate()
    wait_for(tmp_path / "saving")
    role.communicate(END, timeout=30)
    assert role.returncode == 143
    assert (tmp_path / "saved").exists()
    assert read_json(tmp_path / "run" / "summary-worker-0.json")["status"] == "interrupted"


def test_a_role_that_is_told_no_secret_takes_the_one_that_is_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BYTEPROPHET_MESH_KEY", "1f")
    script = 'echo "$BYTEPROPHET_MESH_KEY" >key; touch ready; exec sleep 100'
    role = start_role(tmp_path / "run", script)
    role.communicate(END, timeout=30)
    assert (tmp_path / "key").read_text() == "1f\n"


def test_a_name_is_resolved_where_the_role_starts() -> None:
    assert Address.parse("root", "localhost:9000").resolved(1.0) == Address("127.0.0.1", 9000)
