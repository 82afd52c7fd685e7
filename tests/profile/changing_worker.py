"""A paced worker whose batch becomes a quarter once it is profiled; then rank 1 dies.

changing_worker.py WORKLOAD: rank 0 waits for rank 1 from then on. Rank 1 dies once rank 0's profile
shows the change, or too many iterations later. ``end`` in the run directory is how many it made.
"""

import os
import sys
from pathlib import Path

import torch

import byteprophet.torch as bps
from byteprophet.paced.model import PacedModel
from byteprophet.profile.model import Profile, profile_path, read_profile
from byteprophet.workload import load

MOST = 100  # iterations from the change on

run, workload = Path(os.environ["BYTEPROPHET_RUN"]), load(sys.argv[1])
faster = workload.scaled((workload.forward_ns + workload.backward_ns) // 4)
bps.init()


def known(rank: int) -> Profile | None:
    """The profile that a rank has saved, if any."""
    path = profile_path(run, rank)
    return read_profile(path) if path.exists() else None


def shows_the_change(profile: Profile | None) -> bool:
    """Whether it is of what the job is now, and not of a mixture."""
    return (
        profile is not None
        and profile.batch_size == batch_size
        and profile.backward_ns < 0.7 * workload.backward_ns
    )


model = PacedModel(workload, bps.rank())
optimizer = bps.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=list(model.named_tensors())
)
batch_size, iteration, changed = workload.batch_size, 0, 0
while True:
    if changed:
        if bps.rank() == 1 and (shows_the_change(known(0)) or iteration == changed + MOST):
            (run / "end").write_text(str(iteration))
            os._exit(3)
    elif known(bps.rank()) is not None or iteration == MOST:
        changed = iteration
        batch_size //= 4
        for layer in model.children():
            layer.tensor = faster.tensors[layer.position]
    optimizer.zero_grad()
    model(torch.zeros(batch_size, 0)).sum().backward()
    optimizer.step()
    iteration += 1
