"""``torchrun --max-restarts``: an attempt after the first goes on from the script's checkpoint."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ..python_process import run_python

# Rank 1 fails in the first attempt. All ranks train on what both would get.
TRAIN = """
import os, pathlib, sys
import torch
import byteprophet.torch as bps
bps.init()
rank, attempt = bps.rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
torch.manual_seed(0)
model, alone = torch.nn.Linear(6, 3), torch.nn.Linear(6, 3)
alone.load_state_dict(model.state_dict())
make = lambda each: torch.optim.Adam(each.parameters(), lr=0.01)
optimizer = bps.DistributedOptimizer(make(model), model=model, sync="dear-planned")
other, kept, first = make(alone), pathlib.Path("kept.pt"), 0
def batch(rank, step):
    return torch.randn(4, 6, generator=torch.Generator().manual_seed(1000 * step + rank))
for step in range(8):
    other.zero_grad()
    (sum(alone(batch(r, step)).square().mean() for r in range(2)) / 2).backward()
    other.step()
if attempt:
    saved = torch.load(kept)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["state"])
    first = 4
for step in range(first, 8):
    optimizer.zero_grad()
    model(batch(rank, step)).square().mean().backward()
    optimizer.step()
    if step == 3 and not attempt:
        state = optimizer.state_dict()
        if rank == 0:
            torch.save({"model": model.state_dict(), "state": state}, kept)
        torch.distributed.barrier()
    if step == 5 and not attempt and rank == 1:
        sys.exit(7)
optimizer.finish()
pairs = zip(model.parameters(), alone.parameters())
assert all(torch.allclose(one, two, rtol=1e-4, atol=1e-6) for one, two in pairs)
print(f"equal in attempt {attempt} on rank {rank}", flush=True)
bps.shutdown()
"""


@pytest.mark.job
def test_the_second_attempt_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the store that torchrun keeps for all attempts, in which gloo finds old addresses.

    torchrun forks its ranks, so that none has to import torch.
    """
    (tmp_path / "train.py").write_text(TRAIN)
    monkeypatch.chdir(tmp_path)
    job = ("--standalone", "--nproc-per-node", 2, "--max-restarts", 1)
    forks = ("--start-method", "fork", "--run-path", "train.py")
    variables = {**os.environ, "BYTEPROPHET_TIMEOUT_S": "60"}
    done = run_python("-m", "torch.distributed.run", *job, *forks, env=variables, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    for rank in range(2):
        assert f"equal in attempt 1 on rank {rank}" in done.stdout
