"""Trains an unfit and a fit model: ``recorded_script.py together|in-turn`` (``test_recorded.py``).

``together``: both are wrapped before the first forward pass, which is the unfit one's. ``in-turn``:
the unfit one is trained before the other is wrapped.
"""

from __future__ import annotations

import gc
import sys

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import optimizer as torch_optimizer


def main() -> None:
    """Train, and print whether anything waits for a whole step."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    unfit = wrap()
    for parameter in unfit[0].parameters():
        parameter.register_post_accumulate_grad_hook(lambda _: None)
    if sys.argv[1] == "in-turn":
        train(unfit)
    fit = wrap()
    for _ in range(3):
        train(unfit, fit)
    hooks = torch_optimizer._global_optimizer_pre_hooks
    print(f"{len(hooks)} hooks", flush=True)
    del unfit, fit
    gc.collect()  # torch ends the process if a model outlives its process group
    distributed.destroy_process_group()


def wrap() -> tuple[DistributedDataParallel, torch.optim.Optimizer]:
    """A model and its optimizer."""
    model = DistributedDataParallel(nn.Linear(3, 3))
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def train(*pairs: tuple[DistributedDataParallel, torch.optim.Optimizer]) -> None:
    """A step of each model."""
    for model, optimizer in pairs:
        optimizer.zero_grad()
        model(torch.ones(2, 3)).square().mean().backward()
        optimizer.step()


if __name__ == "__main__":
    main()
