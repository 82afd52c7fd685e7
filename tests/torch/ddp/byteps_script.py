"""Trains in BytePS' own ``DistributedDataParallel``, and prints a digest (``test_byteps.py``).

It does what BytePS' class allows: accumulation, layers that a pass skips, a forward pass within
``no_sync()`` whose backward pass is outside, evaluation with rank 0's buffers.
"""

from __future__ import annotations

import hashlib
from contextlib import nullcontext

import byteps.torch as bps
import torch
from byteps.torch.parallel import DistributedDataParallel
from torch import Tensor, nn

STEPS = 6


class Net(nn.Module):
    """``skipped`` takes part now and then."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.norm = nn.Linear(6, 150), nn.BatchNorm1d(150)
        self.skipped, self.out = nn.Linear(150, 150), nn.Linear(150, 3)
        self.skips = False

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.into(x)).tanh()
        result: Tensor = self.out(x if self.skips else self.skipped(x))
        return result


def loss_of(model: nn.Module, number: int) -> Tensor:
    """The loss on a batch of this rank."""
    lot = torch.Generator().manual_seed(100 * number + bps.rank())
    loss: Tensor = model(torch.randn(8, 6, generator=lot)).square().mean()
    return loss


bps.init()
torch.set_num_threads(1)
torch.manual_seed(7 + bps.rank())  # the constructor makes them equal
net = Net()
model = DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
seen = []
for step in range(STEPS):  # every layer, as in most scripts
    optimizer.zero_grad()
    loss_of(model, step).backward()
    optimizer.step()
for step in range(STEPS):  # accumulation
    optimizer.zero_grad()
    for micro in range(3):
        with model.no_sync() if micro < 2 else nullcontext():
            (loss_of(model, 3 * step + micro) / 3).backward()
    optimizer.step()
for step in range(STEPS):  # gradients are kept where they are zeroed, and layers are skipped
    net.skips = step % 3 == 1
    optimizer.zero_grad(set_to_none=step % 2 == 0)
    loss_of(model, step).backward()
    model.synchronize()
    seen.append(net.skipped.weight.grad.clone())
    optimizer.step()
net.skips = False
for step in range(STEPS):  # what matters is where backward runs
    optimizer.zero_grad()
    with model.no_sync():
        loss = loss_of(model, step)
    loss.backward()
    optimizer.step()
model.eval()
with torch.no_grad():
    seen.append(loss_of(model, 0) * 0 + net.norm.running_mean.sum())
digest = hashlib.sha256()
for tensor in (*net.parameters(), *net.buffers(), *seen):
    digest.update(tensor.detach().numpy().tobytes())
by = type(optimizer).__module__.partition(".")[0]
print(f"digest {digest.hexdigest()[:12]} by {by}, {next(iter(model.state_dict()))}", flush=True)
bps.shutdown()
