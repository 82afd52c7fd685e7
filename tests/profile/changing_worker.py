"""A paced worker whose batch becomes a quarter in mid-run; rank 1 then dies, rank 0 waits for it.

changing_worker.py WORKLOAD CHANGE END: iterations before the change, and in all.
"""

import os
import sys

import torch

import byteprophet.torch as bps
from byteprophet.workload import load
from byteprophet.workload.paced import PacedModel

workload, change, end = load(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
faster = workload.scaled((workload.forward_ns + workload.backward_ns) // 4)
bps.init()
model = PacedModel(workload, bps.rank())
optimizer = bps.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=list(model.named_tensors())
)
batch_size = workload.batch_size
for iteration in range(end + 100):
    if iteration == change:
        batch_size //= 4
        for layer in model.children():
            layer.tensor = faster.tensors[layer.position]
    if iteration == end and bps.rank() == 1:
        os._exit(3)
    optimizer.zero_grad()
    model(torch.zeros(batch_size, 0)).sum().backward()
    optimizer.step()
