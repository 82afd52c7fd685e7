"""``experiments/gpu.py`` compares jobs with plain torch: on processors, and on a GPU if any."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch

from ..python_process import run_python

SCRIPT = Path(__file__).parents[2] / "experiments" / "gpu.py"


def compare(device: str, ways: str, cases: str) -> subprocess.CompletedProcess[str]:
    return run_python(SCRIPT, "--device", device, "--ways", ways, "--cases", cases, timeout=280)


@pytest.mark.job
def test_jobs_equal_plain_torch_on_processors() -> None:
    done = compare("cpu", "prophet,dear:gloo", "conv,host_tensors")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "prophet: conv =, host_tensors =" in done.stderr
    assert "dear:gloo: conv =, host_tensors =" in done.stderr


@pytest.mark.job
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here")
def test_jobs_may_use_any_stream_of_a_gpu() -> None:
    done = compare("cuda", "prophet,dear:gloo", "elsewhere,other_stream")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("ways", "cases", "said"),
    [("gossip", "conv", "--ways: there is no gossip"), ("prophet", "convex", "--cases: convex")],
)
def test_what_there_is_not_is_refused(ways: str, cases: str, said: str) -> None:
    done = compare("cpu", ways, cases)
    assert done.returncode == 2
    assert said in done.stderr
