"""A worker that adds up tensors until it is killed."""

from __future__ import annotations

import torch

import byteprophet.torch as bps

bps.init()
tensors = [torch.ones(200_000) for _ in range(16)]
step = 0
while True:
    handles = [
        bps.push_pull_async_inplace(tensor, average=True, name=f"t{number}")
        for number, tensor in enumerate(tensors)
    ]
    for handle in handles:
        bps.synchronize(handle)
    step += 1
    if step == 20 and bps.rank() == 1:
        print("begun", flush=True)
