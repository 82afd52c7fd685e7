"""The cluster that docs/clusters.md offers to who has none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .pages import commands_for
from .slurm_cluster import why_not

CHECKOUT = Path(__file__).parents[2]


def shell_in_the_cluster(typed: str) -> subprocess.CompletedProcess[str]:
    """What the page's command does, with this Python, when ``typed`` is typed in its shell."""
    (command,) = commands_for("test_slurm_cluster.py")
    python, *words = command.split()
    assert python == ".venv/bin/python"
    return subprocess.run(
        [sys.executable, *words],
        cwd=CHECKOUT, env={**os.environ, "SHELL": "/bin/sh"}, input=typed,
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip


@pytest.mark.job
@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
def test_the_shell_finds_the_cluster_and_byteprophet() -> None:
    typed = "sinfo --noheader --Node --format='%N %t'; command -v byteprophet; echo $SLURM_CONF"
    done = shell_in_the_cluster(f"{typed}; exit 3\n")
    *nodes, program, config = done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (3, "")
    assert nodes == ["n1 idle", "n2 idle", "n3 idle"]
    assert Path(program).parent == Path(sys.executable).parent
    assert not Path(config).exists()


def test_without_slurm_one_line_says_what_to_install(tmp_path: Path) -> None:
    script = (
        "import sys; from tests.remote import slurm_cluster as it;"
        f"it._PATH = {str(tmp_path)!r}; sys.exit(it.main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=CHECKOUT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == (
        "slurm_cluster: munged is not installed: apt-get install slurm-wlm munge\n"
    )
