"""The client of one role behind a real sshd, which runs a line of shell in place of the role."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from byteprophet.remote.hosts_file import SshHost
from byteprophet.remote.ssh_client import SshTask

from .sshd import Sshd, User, why_not

Start = Callable[[str], "subprocess.Popen[str]"]
pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Start]:
    """Starts a client of a line of shell, which writes to ``there``; it is fetched to ``here``."""
    user = User(tmp_path / "home")
    sshd = Sshd(tmp_path / "sshd", "127.0.0.1", user)
    there, here = tmp_path / "there", tmp_path / "here"
    there.mkdir()

    def start(line: str) -> subprocess.Popen[str]:
        host = SshHost(
            sshd.address, None, None, sshd.port, None, None, "/", sys.executable, "/tmp", None
        )
        task = SshTask(host, f"cd {there}; {line}", "", str(there), str(here), ending_s=1.0)
        path = tmp_path / "task.json"
        path.write_text(json.dumps(task.to_fields()))
        return subprocess.Popen(
            [sys.executable, "-m", "byteprophet.remote.ssh_client", str(path)],
            env=user.environment, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    yield start
    sshd.close()


def fetched(process: subprocess.Popen[str]) -> str:
    """What a client said that ended well."""
    said = process.communicate(timeout=60)[0]
    assert process.returncode == 0, said
    return said


def test_files_and_links_are_fetched_and_nothing_stays(tmp_path: Path, client: Start) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    written = "mkdir step-5; echo 5 > step-5/model; ln -s step-5 latest; echo 1 > .hidden"
    assert fetched(client(written)) == ""
    assert (here / "latest").readlink() == Path("step-5")
    assert (here / "step-5" / "model").read_text() == "5\n"
    assert (here / ".hidden").exists()
    assert not there.exists()


def test_what_cannot_be_fetched_is_named_and_the_rest_is_fetched(
    tmp_path: Path, client: Start
) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    said = fetched(client("ln -s /etc a-link; echo 1 > summary.json"))
    assert [path.name for path in here.iterdir()] == ["summary.json"]
    assert (there / "summary.json").exists()
    (line,) = said.splitlines()
    assert line.startswith("byteprophet: warning: 1 of the results cannot be fetched (a-link: ")
    assert line.endswith(f"; all stay in {there} on 127.0.0.1")


def test_a_role_that_does_not_end_is_left_and_named(tmp_path: Path, client: Start) -> None:
    process = client("echo started; exec sleep 8")
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    process.terminate()
    said = process.communicate(timeout=7)[0]
    assert process.returncode == 1
    assert said == (
        "byteprophet: error: host 127.0.0.1: its role has not ended for 1 s after it was asked to; "
        f"its files are in {tmp_path / 'there'} there\n"
    )
