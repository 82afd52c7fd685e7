"""``experiments/gpu.py`` compares jobs with plain torch: on processors, and on a GPU if any."""

from __future__ import annotations

import gpu
import pytest
import torch

from byteprophet.errors import UserError


def compare(device: str, ways: str, cases: str) -> None:
    """In this process, whose fork server has imported what the jobs need."""
    gpu.main(["--device", device, "--ways", ways, "--cases", cases])


@pytest.mark.job
def test_jobs_equal_plain_torch_on_processors(capsys: pytest.CaptureFixture[str]) -> None:
    compare("cpu", "prophet,dear:gloo", "conv,host_tensors")
    said = capsys.readouterr().err
    assert "prophet: conv =, host_tensors =" in said
    assert "dear:gloo: conv =, host_tensors =" in said


@pytest.mark.job
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here")
def test_jobs_may_use_any_stream_of_a_gpu() -> None:
    compare("cuda", "prophet,dear:gloo", "elsewhere,other_stream")


@pytest.mark.parametrize(
    ("ways", "cases", "said"),
    [("gossip", "conv", "--ways: there is no gossip"), ("prophet", "convex", "--cases: convex")],
)
def test_what_there_is_not_is_refused(ways: str, cases: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        compare("cpu", ways, cases)
