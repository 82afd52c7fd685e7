"""A worker of a real job: trains a small twisted model and writes a digest of what came out.

``job_worker.py FRONT CASE``: FRONT is ``stock`` (BytePS as shipped, barrier in ``step()``),
``auto`` (the same script, with whatever the environment loads) or ``ours``. CASE is a function
below.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class Twisted(nn.Module):
    """Tied weights, a layer used twice, a non-leaf's parameter, functional use, an unused layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(97, 64)
        self.attention = nn.MultiheadAttention(64, 2, batch_first=True)
        self.twice = nn.Linear(64, 64)
        self.scale = nn.Parameter(torch.full((64,), 0.5))
        self.wide = nn.Linear(64, 3000)
        self.narrow = nn.Linear(3000, 64)
        self.norm = nn.LayerNorm(64)
        self.decode = nn.Linear(64, 97, bias=False)
        self.decode.weight = self.embed.weight
        self.unused = nn.Linear(3, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        x = x + self.attention(x, x, x, need_weights=False)[0]
        x = self.twice(torch.tanh(self.twice(x))) * self.scale
        x = x + functional.linear(torch.relu(self.wide(x)), self.narrow.weight, self.narrow.bias)
        return self.decode(self.norm(x))


def digest(tensors: list[Tensor]) -> str:
    """A checksum over the bytes of ``tensors``."""
    total = hashlib.sha256()
    for tensor in tensors:
        total.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


def loss_of(model: nn.Module, rank: int, iteration: int) -> Tensor:
    """The loss on a batch of this rank's own."""
    generator = torch.Generator().manual_seed(1000 * rank + iteration)
    tokens = torch.randint(0, 97, (4, 6), generator=generator)
    return functional.cross_entropy(model(tokens).flatten(0, 1), tokens.roll(1, 1).flatten())


def make(bps: Any, kind: str, crossed: bool = False, **options: Any) -> tuple[nn.Module, Any]:
    """The model, the same on all ranks, and its optimizer."""
    torch.manual_seed(bps.rank())
    model = Twisted()
    bps.broadcast_parameters(model.state_dict(), root_rank=0)
    first, *others = model.parameters()
    groups = [{"params": others}, {"params": [first], "lr": 0.02}]
    optimizer = getattr(torch.optim, kind)(groups, **options)
    names = model.named_parameters()
    if crossed:
        from byteps.torch.cross_barrier import CrossBarrier

        return model, CrossBarrier(model, optimizer, names, num_steps=12)
    return model, bps.DistributedOptimizer(optimizer, named_parameters=names)


def train(bps: Any, kind: str, **options: Any) -> list[Tensor]:
    """Twelve iterations with a schedule and evaluation in between."""
    model, optimizer = make(bps, kind, **options)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.7)
    seen = []
    for iteration in range(12):
        optimizer.zero_grad(set_to_none=False)
        loss_of(model, bps.rank(), iteration).backward()
        optimizer.step()
        schedule.step()
        if iteration % 5 == 4:
            model.eval()
            with torch.no_grad():
                seen.append(loss_of(model, 0, 99))
            model.train()
            seen.extend(value.clone() for value in model.state_dict().values())
    return [*seen, *model.parameters()]


def sgd(bps: Any) -> list[Tensor]:
    """SGD with momentum, weight decay and Nesterov's look ahead."""
    return train(bps, "SGD", lr=0.1, momentum=0.9, weight_decay=1e-3, nesterov=True)


def crossed_sgd(bps: Any) -> list[Tensor]:
    """As ``sgd``, by way of BytePS' own optimizer that crosses the barrier."""
    options = {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-3, "nesterov": True}
    return train(bps, "SGD", crossed=True, **options)


def adamw(bps: Any) -> list[Tensor]:
    """AdamW."""
    return train(bps, "AdamW", lr=1e-2)


def clipped(bps: Any) -> list[Tensor]:
    """Clipping by the norm of the averages, as BytePS' documentation has it."""
    model, optimizer = make(bps, "Adam", lr=1e-2)
    for iteration in range(6):
        optimizer.zero_grad(set_to_none=False)
        loss_of(model, bps.rank(), iteration).backward()
        optimizer.synchronize()
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        with optimizer.skip_synchronize():
            optimizer.step()
    return list(model.parameters())


def failing(bps: Any) -> list[Tensor]:
    """One rank's script has a fault, while gradients are on their way."""
    model, optimizer = make(bps, "SGD", lr=0.1)
    for iteration in range(100):
        optimizer.zero_grad()
        loss_of(model, bps.rank(), iteration).backward()
        if iteration == 5 and bps.rank() == 1:
            raise ArithmeticError("a fault of this script")
        optimizer.step()
    return []


def operations(bps: Any) -> list[Tensor]:
    """What the module offers beside the optimizer. The results are checked here."""
    rank, size = bps.rank(), bps.size()
    mean = (size - 1) / 2
    value = torch.full((1000,), float(rank))
    assert torch.equal(bps.push_pull(value, name="mean"), torch.full((1000,), mean))
    assert torch.equal(value, torch.full((1000,), float(rank)))
    handle = bps.push_pull_async(value, average=False, name="sum")
    assert torch.equal(bps.synchronize(handle), torch.full((1000,), mean * size))
    bps.synchronize(bps.push_pull_async_inplace(value, average=False, name="in place"))
    assert torch.equal(value, torch.full((1000,), mean * size))
    leaf = torch.full((3,), 2.0, requires_grad=True)
    bps.push_pull(leaf, name="differentiable").sum().backward()
    assert leaf.grad is not None
    assert torch.equal(leaf.grad, torch.ones(3))

    odd = {
        "nan": torch.tensor([float("nan"), -0.0, 1.0]) if rank == 0 else torch.zeros(3),
        "bool": torch.tensor([rank == 0, False]),
        "brain": torch.full((5,), 1.5 - rank, dtype=torch.bfloat16),
        "scalar": torch.tensor(7 - rank),
        "empty": torch.zeros(0),
        "strided": torch.arange(6.0).reshape(2, 3).T.clone() * (1 - rank),
    }
    bps.broadcast_parameters(odd, root_rank=0)
    assert torch.equal(torch.signbit(odd["nan"]), torch.tensor([False, True, False]))
    assert odd["bool"].tolist() == [True, False]
    assert odd["brain"].tolist() == [1.5] * 5
    assert int(odd["scalar"]) == 7
    assert odd["strided"][2, 1] == 5.0

    torch.manual_seed(0)
    layer = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.1 * (rank + 1), betas=(0.5, 0.6))
    before = [p.detach().clone() for p in layer.parameters()]
    if rank == 1:  # only the root has state, and it is not rank 0
        layer(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        before = [p.detach().clone() for p in layer.parameters()]
    bps.broadcast_optimizer_state(optimizer, root_rank=1)
    assert optimizer.param_groups[0]["lr"] == 0.2
    assert optimizer.param_groups[0]["betas"] == (0.5, 0.6)
    assert all(torch.equal(p, b) for p, b in zip(layer.parameters(), before, strict=True))
    state = optimizer.state_dict()["state"]
    return [tensor for entry in state.values() for tensor in entry.values()]


def write_results(rank: int, scheduled: int, tensors: list[Tensor]) -> None:
    """Leave what the test compares in the run directory."""
    folder = Path(os.environ["BYTEPROPHET_RUN"]) / "results"
    folder.mkdir(exist_ok=True)
    record = {"digest": digest(tensors), "scheduled": scheduled}
    (folder / f"worker-{rank}.json").write_text(json.dumps(record))


def main() -> None:
    """Run one case, end right after its last step, and write the results at exit.

    The first exit handler runs last: by then BytePS is shut down, and updates must be finished.
    """
    front, case = sys.argv[1:]
    results: list[Any] = []
    atexit.register(lambda: write_results(*results) if results else None)
    if front == "ours":
        import byteprophet.torch as bps
    else:
        import byteps.torch as bps
    bps.init()
    tensors = globals()[case](bps)
    scheduled = -1
    if front != "stock":
        from byteprophet.torch import scheduled_partitions

        scheduled = scheduled_partitions()
    results.extend([bps.rank(), scheduled, tensors])


if __name__ == "__main__":
    main()
