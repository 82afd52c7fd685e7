"""The client of one role behind a real sshd, which runs a line of shell in place of the role."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from byteprophet.remote.hosts_file import SshHost
from byteprophet.remote.ssh_client import SshTask

from .sshd import Sshd, User, why_not

pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))


def fetched(tmp_path: Path, written: str) -> tuple[Path, Path, str]:
    """Where the files of ``written`` are there and here, and what the client said."""
    user = User(tmp_path / "home")
    sshd = Sshd(tmp_path / "sshd", "127.0.0.1", user)
    there, here = tmp_path / "there", tmp_path / "here"
    there.mkdir()
    host = SshHost(
        sshd.address, None, None, sshd.port, None, None, "/", sys.executable, str(tmp_path), None
    )
    task = SshTask(host, f"cd {there}; {written}", "", str(there), str(here))
    path = tmp_path / "task.json"
    path.write_text(json.dumps(task.to_fields()))
    try:
        done = subprocess.run(
            [sys.executable, "-m", "byteprophet.remote.ssh_client", str(path)],
            env=user.environment, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
    finally:
        sshd.close()
    assert done.returncode == 0, done.stdout + done.stderr
    return there, here, done.stdout


def test_files_and_links_are_fetched_and_nothing_stays(tmp_path: Path) -> None:
    written = "mkdir step-5; echo 5 > step-5/model; ln -s step-5 latest; echo 1 > .hidden"
    there, here, said = fetched(tmp_path, written)
    assert (here / "latest").readlink() == Path("step-5")
    assert (here / "step-5" / "model").read_text() == "5\n"
    assert (here / ".hidden").exists()
    assert not there.exists()
    assert said == ""


def test_what_cannot_be_fetched_is_named_and_the_rest_is_fetched(tmp_path: Path) -> None:
    there, here, said = fetched(tmp_path, "ln -s /etc a-link; echo 1 > summary.json")
    assert [path.name for path in here.iterdir()] == ["summary.json"]
    assert (there / "summary.json").exists()
    (line,) = said.splitlines()
    assert line.startswith("byteprophet: warning: 1 of the results cannot be fetched (a-link: ")
    assert line.endswith(f"; all stay in {there} on 127.0.0.1")
