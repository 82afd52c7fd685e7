"""Which role a process takes that was started with a number."""

from __future__ import annotations

from pathlib import Path

import pytest

from byteprophet.cli.main import run_cli
from byteprophet.errors import UserError
from byteprophet.launcher.job_file import Address, JobFile
from byteprophet.launcher.spec import JobSpec
from byteprophet.remote.by_rank import role_of_rank


def test_too_many_processes_are_refused_also_where_nobody_says_how_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS"):
        monkeypatch.delenv(name, raising=False)
    job = JobFile(JobSpec(("true",), Path("run")), Address("127.0.0.1", 9000), None, "")
    monkeypatch.setenv("PMIX_RANK", "3")
    assert role_of_rank(job)[:2] == ("worker", 1)
    monkeypatch.setenv("PMIX_RANK", "4")
    with pytest.raises(UserError, match="this is process number 4, and the job has 4 roles"):
        role_of_rank(job)
    monkeypatch.setenv("PMI_SIZE", "5")
    with pytest.raises(UserError, match="there are 5 processes, and the job has 4 roles"):
        role_of_rank(job)


def test_an_index_is_refused_beside_the_number_of_the_process(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "job.toml"
    file.write_text(
        'schema = 1\nroot = "127.0.0.1:9000"\ncommand = ["true"]\nworkers = 2\nservers = 0\n'
    )
    assert run_cli(["role", "by-rank", "--job", str(file), "--index", "1"]) == 2
    assert "--index is what the number of a process says with by-rank" in capsys.readouterr().err
