"""Jobs on this machine, with one network for all roles and with one each: any role is killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from ..namespaces import why_not_permitted
from .jobs import (
    NAMED_S,
    RUN,
    SAVE_AT_THE_END,
    STAY,
    Started,
    each_killed_role_is_named,
    process_of,
    processes_below,
    saves_at_the_end,
    wait_until_gone,
)

pytestmark = [pytest.mark.job, pytest.mark.usefixtures("default_signals")]
NAMESPACES = pytest.param(
    ("--on", "namespaces"),
    marks=pytest.mark.skipif(why_not_permitted() is not None, reason=str(why_not_permitted())),
)


@pytest.mark.parametrize("on", [(), NAMESPACES])
def test_each_killed_role_is_named_and_nothing_is_left(tmp_path: Path, on: tuple[str, ...]) -> None:
    each_killed_role_is_named(
        tmp_path, on, os.environ, lambda: processes_below(str(tmp_path)), has_controller=True
    )


def test_a_script_saves_within_the_grace(tmp_path: Path) -> None:
    command = [*RUN, "--grace", "60", *SAVE_AT_THE_END]
    saves_at_the_end(Started(command, tmp_path, 2, os.environ), tmp_path)


def test_a_killed_rank_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    job = Started([*RUN, *STAY], tmp_path, 2, os.environ)
    os.kill(process_of("worker-1", str(tmp_path)), signal.SIGKILL)
    status, said = job.end(NAMED_S)
    assert status == 1
    assert said.startswith("byteprophet: error: worker-1 was killed by signal 9 (SIGKILL) after ")
    wait_until_gone(lambda: processes_below(str(tmp_path)), NAMED_S)
