"""A rank that trains one model several times: ``regions_worker.py FOLDER SYNC...``.

Under each sync once without a strategy, and with each ``FOLDER/SYNC/*.json``, with overlap and
without. The parameters that training ends with go to ``FOLDER/SYNC/rank-<rank>.txt``, one line per
training. The sync "torch" is DistributedDataParallel without a word of byteprophet. With
``SYNC:inner``, the optimizer is given the model, and another module calls it.
"""

from __future__ import annotations

import gc
import hashlib
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import byteprophet.torch as bps


class Block(nn.Module):
    """A residual block."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))

    def forward(self, data: Tensor) -> Tensor:
        added: Tensor = data + self.layers(data)
        return added


def train(sync: str, rank: int, strategy: Path | None) -> str:
    """Train, and return a digest of the parameters."""
    torch.manual_seed(3)
    network = nn.Sequential(*(Block() for _ in range(4)), nn.Linear(16, 2))
    model: nn.Module = network
    sync, _, inner = sync.partition(":")
    optimizer: Any = torch.optim.Adam(network.parameters(), lr=0.01)
    if sync == "torch":
        model = nn.parallel.DistributedDataParallel(network)
    elif inner:
        model = nn.Sequential(network)
        optimizer = bps.DistributedOptimizer(optimizer, model=network, sync=sync)
    else:
        optimizer = bps.DistributedOptimizer(
            optimizer, network.named_parameters(), sync=sync, strategy=strategy
        )
    lot = torch.Generator().manual_seed(5 + rank)
    for _ in range(6):
        optimizer.zero_grad()
        model(torch.randn(8, 16, generator=lot)).square().mean().backward()
        optimizer.step()
    optimizer.finish()
    trained = b"".join(p.detach().numpy().tobytes() for p in network.parameters())
    return hashlib.sha256(trained).hexdigest()[:12]


def main(folder: Path, sync: str) -> None:
    if sync == "byteps":
        bps.init()
        rank = bps.rank()
    else:
        torch.distributed.init_process_group("gloo")
        rank = torch.distributed.get_rank()
    lines = []
    for strategy in (None, *sorted((folder / sync).glob("*.json"))):
        for overlap in ("1", "0"):
            os.environ["BYTEPROPHET_OVERLAP"] = overlap
            name = "none" if strategy is None else strategy.stem
            lines.append(f"{name} {train(sync, rank, strategy)}\n")
            gc.collect()  # a model's parameters have their names to themselves while they live
    (folder / sync / f"rank-{rank}.txt").write_text("".join(lines))
    if sync == "byteps":
        bps.shutdown()
    else:
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    for each in sys.argv[2:]:
        main(Path(sys.argv[1]), each)
