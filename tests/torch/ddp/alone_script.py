"""Trains where ranks are not together: ``alone_script.py WAY`` (``test_meeting.py``).

``evaluates``: before training, rank 0 runs a forward pass, and rank 1 waits for it. ``unset``: rank
1 runs without BYTEPROPHET_SYNC. ``hooks``: before the second batch, rank 0 registers a hook that
looks at a gradient. ``optimizes``: before that batch, rank 0 makes a further optimizer.
"""

from __future__ import annotations

import gc
import hashlib
import os
import sys

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    """Train, and print a digest of the parameters."""
    way = sys.argv[1]
    if way == "unset" and os.environ["RANK"] == "1" and os.environ.pop("BYTEPROPHET_SYNC", ""):
        os.execv(sys.executable, [sys.executable, *sys.argv])
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    print(f"digest {trained(way)}", flush=True)
    gc.collect()  # torch ends the process if a model outlives its process group
    distributed.destroy_process_group()


def trained(way: str) -> str:
    """Train a model, and return a digest of its parameters."""
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(6, 40), nn.Tanh(), nn.Linear(40, 3))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    torch.manual_seed(distributed.get_rank())
    data = torch.randn(4, 8, 6)
    first = distributed.get_rank() == 0
    if way == "evaluates":
        if first:
            model(data[0])
        distributed.barrier()
    for number, batch in enumerate(data):
        if first and number == 1 and way == "hooks":
            net[0].weight.register_post_accumulate_grad_hook(print)
        if first and number == 1 and way == "optimizes":
            kept = torch.optim.SGD(net.parameters(), lr=0.0)  # noqa: F841
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
    found = hashlib.sha256()
    for parameter in net.parameters():
        found.update(parameter.detach().numpy().tobytes())
    return found.hexdigest()[:12]


if __name__ == "__main__":
    main()
