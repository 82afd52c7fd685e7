"""Jobs of plain commands: what is under test is the launcher, not BytePS."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from byteprophet.launcher import JobSpec, Limits, RoleCommands

STAY = ("sleep", "100")
MakeSpec = Callable[..., JobSpec]


def python(code: str) -> tuple[str, ...]:
    """A command that runs ``code``."""
    return (sys.executable, "-c", code)


@pytest.fixture
def make_spec(tmp_path: Path) -> MakeSpec:
    """A job with a run directory of its own; the servers and the scheduler stay until ended."""

    def make(command: Sequence[str] = ("true",), **fields: Any) -> JobSpec:
        defaults: dict[str, Any] = {
            "run_directory": tmp_path / "run",
            "directory": tmp_path,
            "scheduler": "stock",
            "timeout_s": 60.0,
            "roles": RoleCommands(STAY, STAY),
            "limits": Limits(grace_s=1.0, farewell_s=0.2, premature_s=0.2),
        }
        return JobSpec(command=tuple(command), **{**defaults, **fields})

    return make
