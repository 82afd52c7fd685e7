"""The process that cleans up after a job, whatever becomes of the launcher."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from byteprophet.launcher import leftovers
from byteprophet.launcher.caretaker import Caretaker
from byteprophet.launcher.leftovers import Leftovers


def test_sigterm_does_not_end_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm sends it to all processes of a role at once."""
    directory = tmp_path / "temporary"
    directory.mkdir()
    job = Leftovers(str(tmp_path / "run"), str(directory), ())
    here: list[Leftovers] = []
    monkeypatch.setattr(leftovers, "sweep", here.append)  # what the launcher itself would do
    with Caretaker(job) as caretaker:
        os.kill(caretaker.pid, signal.SIGTERM)
    assert here == []
    assert not directory.exists()
    assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
