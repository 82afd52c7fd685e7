"""What jobs that run ``cases.py`` have written, and the one process that they are compared with."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from byteprophet.launcher import JobSpec, run_job

from ..python_process import run_python

_WORKER = str(Path(__file__).with_name("case_worker.py"))


def read(folder: Path, rank: int) -> dict[str, Any]:
    """What ``rank`` wrote below ``folder``, with the values themselves."""
    path = folder / "results" / f"worker-{rank}"
    record: dict[str, Any] = json.loads(path.with_suffix(".json").read_text())
    return {**record, "values": torch.load(path.with_suffix(".pt"))}


def job_of_each_way(
    folders: pytest.TempPathFactory, ranks: int, spec_of: Callable[[str, Path], JobSpec]
) -> Callable[[str], list[dict[str, Any]]]:
    """What each of ``ranks`` ranks wrote, by way: a way's job runs when it is first asked for.

    ``spec_of``: the job of a way in a folder, with ``run`` in there as its run directory.
    """

    @functools.cache
    def run(way: str) -> list[dict[str, Any]]:
        folder = folders.mktemp("job")
        run_job(spec_of(way, folder), None).check()
        return [read(folder / "run", rank) for rank in range(ranks)]

    return run


def run_single(folder: Path, names: Sequence[str], device: str = "cpu") -> dict[str, Any]:
    """What one process makes of all ranks' batches."""
    variables = {"BYTEPROPHET_RUN": str(folder), "BYTEPROPHET_TEST_DEVICE": device}
    done = run_python(_WORKER, "single", *names, env={**os.environ, **variables}, timeout=300)
    done.check_returncode()
    return read(folder, 0)
