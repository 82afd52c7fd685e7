"""Trains long enough for a trial, and prints a digest of the parameters (``test_trial.py``).

byteprophet run --servers 0 -- python trial_script.py
"""

from __future__ import annotations

import hashlib
import sys
from contextlib import nullcontext
from pathlib import Path

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).with_name("scripts")))
from common import batch

_STEPS = 64


def main() -> None:
    """Train, and print."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    # The models are gone before the group is: torch's reducer, if it is the group's last owner,
    # joins gloo's thread with the GIL held, which that thread may be waiting for.
    print(f"digest {trained()}", flush=True)
    distributed.destroy_process_group()


def trained() -> str:
    """Train two models in turn, one of them with accumulation; a digest of the parameters.

    That one is also called without a backward pass, as a GAN's generator is for the discriminator.
    Rank 0 alone calls the other one after each step, as to evaluate.
    """
    torch.manual_seed(3)
    nets = [nn.Sequential(nn.Linear(6, 40), nn.Tanh(), nn.Linear(40, 3)) for _ in range(2)]
    models = [DistributedDataParallel(nets[0], static_graph=True), DistributedDataParallel(nets[1])]
    optimizers = [torch.optim.AdamW(net.parameters(), lr=0.01) for net in nets]
    for step in range(_STEPS):
        for passes, (model, optimizer) in enumerate(zip(models, optimizers, strict=True), 1):
            optimizer.zero_grad()
            for micro in range(passes):
                with model.no_sync() if micro < passes - 1 else nullcontext():
                    model(batch(2 * step + micro)).square().mean().backward()
            optimizer.step()
        models[1](batch(step))
        if distributed.get_rank() == 0:
            models[0](batch(step))
    found = hashlib.sha256()
    for net in nets:
        for parameter in net.parameters():
            found.update(parameter.detach().numpy().tobytes())
    return found.hexdigest()[:12]


if __name__ == "__main__":
    main()
