"""Which device BytePS uses, told and refused in one line. There is no GPU in these tests."""

from __future__ import annotations

import os
import subprocess

import pytest
import torch

from ..python_process import run_python

ALONE = {
    "DMLC_ROLE": "worker",
    "DMLC_NUM_WORKER": "1",
    "DMLC_NUM_SERVER": "0",
    "DMLC_WORKER_ID": "0",
    "BYTEPS_LOCAL_RANK": "0",
    "BYTEPS_LOCAL_SIZE": "1",
}


def worker(code: str, device: str) -> subprocess.CompletedProcess[str]:
    """Runs ``code`` as the only worker of a job."""
    environment = {**os.environ, **ALONE, "BYTEPROPHET_DEVICE": device}
    return run_python("-c", code, env=environment, timeout=100)


ON_A_GPU = """
import byteps.torch as bps, torch
from torch._subclasses.fake_tensor import FakeTensorMode

bps.init()
with FakeTensorMode():
    gradient = torch.zeros(3, device="cuda")
group = bps.ops.c_lib.byteps_torch_push_pull_group_sync_torch_cuda_FloatTensor
for send in (
    lambda: bps.ops.push_pull_async_inplace(gradient, name="gradient"),
    lambda: group(gradient, gradient, 1, "gradient", 0, 0),
):
    try:
        send()
    except ValueError as error:
        print(error)
cpu = bps.push_pull(torch.ones(3), average=False, name="on the host")
print("goes on:", cpu.tolist())
"""


def test_a_tensor_on_a_gpu_is_refused_where_the_host_is_used() -> None:
    done = worker(ON_A_GPU, "host")
    assert done.returncode == 0, done.stderr
    refusal = (
        "'gradient' is on cuda:0, but BytePS uses the host, as BYTEPROPHET_DEVICE=host is set: "
        "train on the CPU, or change that (byteprophet doctor)"
    )
    assert done.stdout.splitlines() == [refusal, refusal, "goes on: [1.0, 1.0, 1.0]"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_cuda_is_refused_where_there_is_none() -> None:
    done = worker("import byteps.torch as bps; bps.init()", "cuda")
    assert done.returncode == 2
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("byteprophet: error"))
    assert line.startswith("byteprophet: error: BYTEPROPHET_DEVICE=cuda is set, but ")
    assert line.endswith("; set BYTEPROPHET_DEVICE=host to train without a GPU")


def test_another_torch_than_it_was_built_for_is_refused() -> None:
    other = "import torch; torch.__version__ = '99.1.0'; import byteps.torch"
    done = worker(other, "auto")
    assert done.returncode == 1
    built_for = ".".join(torch.__version__.split(".")[:2])
    assert done.stderr.splitlines()[-1] == (
        f"ImportError: BytePS was built for torch {built_for}, but torch 99.1.0 is installed: "
        "build byteprophet again (pip install .)"
    )
