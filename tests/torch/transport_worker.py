"""A worker that trains a small network by BytePS' calls, or by those of a job without servers.

    transport_worker.py DIRECTORY byteprophet|upstream|SYNC

Writes what it computed to DIRECTORY/rank-N.txt. Ranks push metrics in different orders, as BytePS
allows once they are declared.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn


def main(directory: Path, kind: str) -> None:
    """Train."""
    bps: Any
    if kind == "upstream":
        import byteps.torch as bps
    else:
        import byteprophet.torch as bps
    without = kind not in ("byteprophet", "upstream")
    if without:
        distributed.init_process_group("gloo")
        rank, size = distributed.get_rank(), distributed.get_world_size()
    else:
        bps.init()
        rank, size = bps.rank(), bps.size()
    torch.manual_seed(rank)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 32), nn.Linear(32, 4))
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    said = [f"{size} {bps.local_rank()} of {bps.local_size()}"]
    if without:
        optimizer = bps.DistributedOptimizer(optimizer, model=model, sync=kind)
    else:
        bps.broadcast_parameters(model.state_dict(), root_rank=0)
        named = model.named_parameters()
        optimizer = bps.DistributedOptimizer(optimizer, named_parameters=named)
        bps.broadcast_optimizer_state(optimizer, root_rank=0)
    lot = torch.Generator().manual_seed(10 + rank)
    for _ in range(6):
        optimizer.zero_grad()
        model(torch.randn(8, 16, generator=lot)).square().mean().backward()
        optimizer.step()
    if not without:
        names = [f"metric.{number}" for number in range(3)]
        for name in names:
            bps.declare(name)
        handles = {
            n: bps.byteps_push_pull(torch.tensor([10.0 * n + rank]), name=names[n])
            for n in ((0, 1, 2) if rank == 0 else (2, 0, 1))
        }
        said += [f"metric {n}: {float(bps.synchronize(handles[n])):g}" for n in sorted(handles)]
        count = bps.push_pull(torch.tensor([rank + 3]), average=False, name="count")
        said.append(f"count {int(count)}")
        said.append(f"mean {int(bps.push_pull(torch.tensor([-1 - rank]), name='mean'))}")
    said += [f"{value:.9g}" for p in model.parameters() for value in p.flatten().tolist()]
    (directory / f"rank-{rank}.txt").write_text("\n".join(said))
    if without:
        distributed.destroy_process_group()


main(Path(sys.argv[1]), sys.argv[2])
