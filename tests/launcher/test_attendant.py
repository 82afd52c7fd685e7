"""The controller as the launcher sees it: the job survives it, and it is started again."""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from byteprophet.errors import UserError
from byteprophet.launcher import Limits, check_job, role, run_job
from byteprophet.launcher.attendant import Attendant
from byteprophet.launcher.forked_process import ForkPlan
from byteprophet.launcher.leftovers import marked_processes
from byteprophet.launcher.role import Role, RolePlan

from .conftest import MakeSpec

UNTIL_DONE = ("sh", "-c", "while ! test -e done; do sleep 0.1; done")


def wait_for(path: Path, text: str) -> None:
    deadline_s = time.monotonic() + 60
    while not path.is_file() or text not in path.read_text():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


@pytest.mark.job
def test_a_controller_that_is_killed_is_started_again_and_ended_with_the_job(
    make_spec: MakeSpec, tmp_path: Path
) -> None:
    limits = Limits(grace_s=30, farewell_s=0.2, premature_s=0.2)
    spec = make_spec(UNTIL_DONE, scheduler="prophet", controller=True, limits=limits)
    logs = spec.run_directory / "logs"

    def strike() -> None:
        wait_for(logs / "controller.log", "listens on")
        (pid,) = marked_processes(str(spec.run_directory), "controller")
        os.kill(pid, signal.SIGKILL)
        wait_for(logs / "controller.2.log", "listens on")
        (tmp_path / "done").touch()

    thread = threading.Thread(target=strike)
    thread.start()
    lines: list[tuple[str, str]] = []
    result = run_job(spec, lambda role, line: lines.append((role, line)))
    thread.join()
    result.check()
    assert [role.name for role in result.roles][-2:] == ["controller", "controller.2"]
    assert [role.exit_status for role in result.roles][-2:] == [-signal.SIGKILL, 0]
    (warning,) = (line for role, line in lines if role == "controller" and "warning" in line)
    assert "SIGKILL" in warning
    assert "the job goes on, it is started again" in warning
    assert not marked_processes(str(spec.run_directory))


@pytest.mark.parametrize(("status", "lives"), [(2, 1), (1, 4), (0, 4)])
def test_lives_are_counted(status: int, lives: int, tmp_path: Path) -> None:
    log = tmp_path / "controller.log"
    plan = RolePlan("controller", "controller", ("sh", "-c", f"exit {status}"), {}, tmp_path, log)
    attendant = Attendant(plan)
    warnings = []
    for second in range(10):
        due, warning = attendant.due(time.monotonic() + 2 * second)
        if warning is not None:
            warnings.append(warning)
            assert attendant.due(0.0) == (None, None)  # told once, and not started at once
        if due is not None:
            role = Role(due)
            attendant.lives.append(role)
            while not role.poll():
                time.sleep(0.01)
            role.close()
    assert len(attendant.lives) == lives
    assert len(warnings) == lives
    assert "not started again" in warnings[-1]
    assert len({role.plan.log for role in attendant.lives}) == lives


@pytest.mark.job
def test_one_that_cannot_be_started_again_is_given_up(
    make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = "while [ $(ls $BYTEPROPHET_RUN/logs | grep -c controller) -lt 2 ]; do sleep 0.1; done"
    spec = make_spec(("sh", "-c", f"{script}; sleep 0.5"), scheduler="prophet", controller=True)
    start, controllers = role.Process, 0

    def refuse(argv: list[str], plan: ForkPlan | None, **options: Any) -> Any:
        nonlocal controllers
        if "control" in argv:
            controllers += 1
            if controllers > 1:
                raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
            argv, plan = ["false"], None  # a plan would fork a controller in its place
        return start(argv, plan, **options)

    monkeypatch.setattr(role, "Process", refuse)
    lines: list[str] = []
    result = run_job(spec, lambda _role, line: lines.append(line))
    assert result.failed is None
    assert any("Cannot allocate memory; the job goes on without it" in line for line in lines)


def test_only_policies_that_use_plans_have_a_controller(make_spec: MakeSpec) -> None:
    with pytest.raises(UserError, match="p3 uses no plans"):
        check_job(make_spec((sys.executable,), scheduler="p3", controller=True))
