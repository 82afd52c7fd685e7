"""Which role a process takes that was started with a number."""

from __future__ import annotations

from pathlib import Path

import pytest

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
