"""How our programs are started on other hosts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from byteprophet.launcher.job_file import Address
from byteprophet.launcher.plan import resolve_on_hosts
from byteprophet.launcher.spec import JobSpec
from byteprophet.remote.mpi import MpiSite, _Elsewhere
from byteprophet.remote.programs import python_command

WHERE = """
import shutil, sys
print(shutil.which("python"), sys.argv[1:])
"""


def test_python_is_the_interpreter_that_runs_the_role(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "where.py").write_text(WHERE)
    command = python_command(sys.executable, "where", ["two words", "$HOME"])
    environment = {"PYTHONPATH": str(tmp_path), "PATH": os.defpath}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == f"{Path(sys.executable).parent}/python ['two words', '$HOME']\n"
    # mpirun on other hosts hands on no PATH, either.
    monkeypatch.chdir(tmp_path)
    spec = JobSpec(("true",), tmp_path / "run", servers=0)
    job = resolve_on_hosts(spec, "127.0.0.1", "127.0.0.1", 9000, None, runs_here=False)
    site = MpiSite(("mpirun", "-np", "2"), (), Address("127.0.0.1", 9000), None)
    (plan,) = _Elsewhere(site, spec).plans(job, tmp_path)
    role = ["role", "by-rank", "--job", str(tmp_path / "run" / "job.toml")]
    assert plan.argv[-3:] == python_command(sys.executable, "byteprophet", role)
