"""What ``run --on`` refuses, and how it enters an allocation of Slurm."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from byteprophet.cli.main import run_cli

# Runs the command as in an allocation, but for its list of nodes.
_SALLOC = """#!/bin/sh
while [ "$1" != -- ]; do shift; done
shift
SLURM_JOB_ID=1 exec "$@"
"""


def test_a_module_in_the_users_directory_hides_none_in_an_allocation(tmp_path: Path) -> None:
    """And that the second run has salloc's options is no error."""
    salloc = tmp_path / "bin" / "salloc"
    salloc.parent.mkdir()
    salloc.write_text(_SALLOC)
    salloc.chmod(0o755)
    (tmp_path / "signal.py").write_text("raise SystemExit('hidden')")
    environment = {n: v for n, v in os.environ.items() if not n.startswith("SLURM_")}
    byteprophet = Path(sys.executable).with_name("byteprophet")
    done = subprocess.run(
        [byteprophet, "run", "--on", "slurm", "--slurm", "--partition=gpu", "--", "true"],
        cwd=tmp_path,
        env={**environment, "PATH": f"{salloc.parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.splitlines() == [
        "byteprophet: in no allocation yet: salloc --nodes=2 --partition=gpu",
        "byteprophet: error: SLURM_JOB_NODELIST is not set: this process is in no allocation of "
        "Slurm",
    ]


def test_options_of_salloc_are_refused_in_an_allocation(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    assert run_cli(["run", "--on", "slurm", "--slurm", "--gres=gpu:4", "--", "true"]) == 2
    assert "--slurm: this process is in an allocation already: " in capsys.readouterr().err
