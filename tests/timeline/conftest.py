"""A real trace, which is recorded once."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ..python_process import start_python

SCRIPT = Path(__file__).with_name("ddp_step.py")


@pytest.fixture(scope="session")
def ddp(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two ranks' traces of torch.profiler, of steps with DistributedDataParallel over gloo."""
    directory = tmp_path_factory.mktemp("ddp")
    paths = [directory / "rank0.json", directory / "rank1.json.gz"]
    processes = [
        start_python(SCRIPT, path, rank, directory / "store", stderr=subprocess.DEVNULL)
        for rank, path in enumerate(paths)
    ]
    assert [process.wait(timeout=200) for process in processes] == [0, 0]
    return paths
