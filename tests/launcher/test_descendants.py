"""Processes of a job that its roles leave behind, and those that its launcher may not end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from byteprophet.launcher import run_job, supervisor

from .conftest import MakeSpec, python

# Leaves a process behind, whose parent has ended, and waits until it is gone.
_LEAVE = """
import pathlib, subprocess, sys, time
shell = subprocess.run(["sh", "-c", "sleep 0.1 & echo $!"], capture_output=True, text=True)
left = pathlib.Path("/proc", shell.stdout.strip())
end_s = time.monotonic() + 10
while left.exists():
    if time.monotonic() > end_s:
        sys.exit("it is a zombie")
    time.sleep(0.05)
"""
# Starts one process as root and one as nobody, as whom it then ends the job.
_SCRIPT = """
import os, subprocess
from subprocess import DEVNULL
from byteprophet.launcher.descendants import Descendants
from byteprophet.launcher.signals import Signals
from byteprophet.launcher.spec import Limits
from byteprophet.launcher.stopped import StoppedWatch
from byteprophet.launcher.supervisor import Supervisor
def start():
    sleep = ["sleep", "100"]
    return subprocess.Popen(sleep, stdout=DEVNULL, stderr=DEVNULL, start_new_session=True)
with Signals() as signals, Descendants() as descendants:
    other = start()
    print(other.pid, flush=True)
    os.setuid(65534)
    own = start()
    stopped = StoppedWatch(descendants, None)
    Supervisor(descendants, signals, Limits(), stopped, None).stop()
    print(own.wait(10))
"""


def test_what_a_script_leaves_behind_does_not_stay_as_a_zombie(
    make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "_REAP_PERIOD_S", 0.1)
    assert run_job(make_spec(python(_LEAVE), workers=1)).failed is None


@pytest.mark.skipif(os.getuid() != 0, reason="only root can start processes of two users")
def test_another_users_process_is_named_and_the_others_are_ended() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT], capture_output=True, text=True, timeout=60, check=False
    )
    other, ended = done.stdout.split()
    os.kill(int(other), signal.SIGKILL)  # it is there
    assert int(ended) == -signal.SIGTERM
    assert done.returncode == 0
    assert done.stderr == (
        f"byteprophet: warning: processes of the job that belong to another user go on: {other}; "
        "end them as that user\n"
    )
