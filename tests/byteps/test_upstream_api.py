"""What upstream documents and its release got wrong here, in BytePS as shipped and patched."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from byteprophet.launcher import JobSpec, run_job

SCRIPT = """
import torch
import byteps.torch as bps

bps.init()
rank = bps.rank()

tensor = torch.full((1000,), float(rank + 1))
total = bps.push_pull(tensor, average=False, name="out of place")
assert torch.equal(total, torch.full((1000,), 3.0)), total
assert torch.equal(tensor, torch.full((1000,), float(rank + 1))), "the input was changed"

torch.manual_seed(rank)
model = torch.nn.Linear(3, 2)
optimizer = torch.optim.Adam(model.parameters(), lr=0.1 * (rank + 1), betas=(0.5, 0.75))
model(torch.ones(3)).sum().backward()
optimizer.step()
bps.broadcast_parameters(model.state_dict(), root_rank=0)
bps.broadcast_optimizer_state(optimizer, root_rank=0)
assert optimizer.param_groups[0]["lr"] == 0.1
state = [values for entry in optimizer.state.values() for values in entry.values()]
parts = [values.detach().double().flatten() for values in [*model.parameters(), *state]]
mine = torch.cat(parts)
both = bps.push_pull(mine.clone(), average=True, name="both")
assert torch.equal(both, mine), "the ranks differ"
print("upstream's calls are right on rank", rank)
"""


@pytest.mark.job
def test_calls_that_failed_as_released(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    lines: list[str] = []
    spec = JobSpec(
        command=(sys.executable, str(script)),
        run_directory=tmp_path / "run",
        scheduler="stock",
        timeout_s=100.0,
    )
    result = run_job(spec, lambda _role, line: lines.append(line))
    assert result.failed is None
    for rank in (0, 1):
        assert f"upstream's calls are right on rank {rank}" in lines
