"""A worker whose partition size changes while it trains: ``repartition_worker.py SIZES [RANK]``.

SIZES are bytes, separated by commas; one after the other is taken over, two iterations apart.
"0" stands for no change; RANK is the only one that changes it. Prints what comes out.
"""

from __future__ import annotations

import hashlib
import random
import sys
import time

import torch
from torch import nn

import byteprophet.torch as bps
from byteprophet.torch.sync.byteps_synchroniser import process_synchroniser


def main() -> None:
    sizes = [int(size) for size in sys.argv[1].split(",")]
    bps.init()
    rank = bps.rank()
    if sys.argv[2:] not in ([], [str(rank)]):
        sizes = [0] * len(sizes)
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(300, 500), nn.Tanh(), nn.Linear(500, 400), nn.Tanh(), nn.Linear(400, 2)
    )
    other = nn.Linear(1000, 100)  # another optimizer's, which steps at other times
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = bps.DistributedOptimizer(optimizer, model=model)
    adam = bps.DistributedOptimizer(torch.optim.Adam(other.parameters()), model=other)
    pauses = random.Random(rank)
    begun = len(sizes)
    for iteration in range(2 * len(sizes) + 4):
        torch.manual_seed(100 * rank + iteration)
        optimizer.zero_grad()
        model(torch.randn(4, 300)).square().mean().backward()
        if rank == 1:
            time.sleep(pauses.uniform(0, 0.01))
        if iteration % 3 == 0:
            adam.zero_grad()
            other(torch.randn(4, 1000)).square().mean().backward()
        optimizer.step()
        if iteration % 3 == 1:
            adam.step()
        # A sum of the script's own travels meanwhile, and keeps its partitions.
        value = torch.full((50_000,), float(iteration + rank))
        handle = bps.push_pull_async_inplace(value, average=False, name="own")
        if iteration % 2 == 1 and sizes and sizes[0]:
            process_synchroniser().reconfigure({"partition_bytes": sizes.pop(0)})
        bps.synchronize(handle)
        assert value[7] == sum(iteration + each for each in range(bps.size()))
    total = hashlib.sha256()
    for tensor in (*model.state_dict().values(), *other.state_dict().values()):
        total.update(tensor.numpy().tobytes())
    changed = begun - len(sizes)
    sys.stdout.write(f"{changed} changes, {bps.scheduled_partitions()}: {total.hexdigest()}\n")
    bps.shutdown()


if __name__ == "__main__":
    main()
