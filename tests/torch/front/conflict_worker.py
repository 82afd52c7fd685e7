"""A rank that tries to have one gradient synchronised twice, in every way it knows.

Writes ``conflicts-<rank>.json``: per situation the error, or what the trained model is off from the
one that a single process trains on all ranks' batches.
"""

from __future__ import annotations

import copy
import json
import os
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed._composable import replicate
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from byteprophet.torch import DistributedOptimizer

Wrapped = tuple[nn.Module, Any]
SYNC = "allreduce"


def net() -> nn.Sequential:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 3))


def distribute(optimizer: Any, **options: Any) -> Any:
    return DistributedOptimizer(optimizer, sync=SYNC, **options)


def sgd(model: nn.Module) -> Any:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def alone(model: nn.Module) -> Wrapped:
    return model, distribute(sgd(model), model=model)


def wrapped_before(model: nn.Module) -> Wrapped:
    wrapped = DistributedDataParallel(model)
    return wrapped, distribute(sgd(wrapped))


def given_as_model(model: nn.Module) -> Wrapped:
    wrapped = DistributedDataParallel(model)
    return wrapped, distribute(sgd(wrapped), model=wrapped)


def wrapped_after(model: nn.Module) -> Wrapped:
    optimizer = distribute(sgd(model), model=model)
    return DistributedDataParallel(model), optimizer


def wrapped_within(model: nn.Module) -> Wrapped:
    """Only a part, within a module of the script's own."""
    optimizer = distribute(sgd(model), model=model)
    assert isinstance(model, nn.Sequential)
    return nn.Sequential(model[0], model[1], DistributedDataParallel(model[2])), optimizer


def replicated(model: nn.Module) -> Wrapped:
    optimizer = distribute(sgd(model), model=model)
    replicate(model, device_mesh=None)
    return model, optimizer


def sharded_before(model: nn.Module) -> Wrapped:
    fully_shard(model)
    return model, distribute(sgd(model), model=model)


def sharded_after(model: nn.Module) -> Wrapped:
    optimizer = distribute(sgd(model), model=model)
    fully_shard(model)
    return model, optimizer


def others_optimizer(model: nn.Module) -> Wrapped:
    """As Horovod and upstream BytePS make theirs: a class that says where its methods are from."""
    optimizer: Any = sgd(model)
    base = type(optimizer)
    optimizer.__class__ = type("SGD", (base,), {"__module__": "horovod.torch.optimizer"})
    return model, distribute(optimizer, model=model)


def others_hook(model: nn.Module) -> Wrapped:
    """Hooked after our optimizer was made, as some engines do when they are initialised."""
    optimizer = distribute(sgd(model), model=model)
    engine = types.ModuleType("deepspeed.runtime.zero")
    exec("def reduce(gradient): return gradient", vars(engine))
    next(model.parameters()).register_hook(engine.reduce)
    return model, optimizer


def without_averages(model: nn.Module) -> Wrapped:
    """Wrapped, but it never averages: right."""
    optimizer = distribute(sgd(model), model=model)
    wrapped = DistributedDataParallel(model)
    wrapped.require_backward_grad_sync = False
    return wrapped, optimizer


def beside(model: nn.Module) -> Wrapped:
    """Another model is wrapped, and called within ours: right."""
    other = DistributedDataParallel(nn.Linear(6, 6))

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.model(x + 0 * other(x))
            return result

    return Both(), distribute(sgd(model), model=model)


SITUATIONS: dict[str, Callable[[nn.Module], Wrapped]] = {
    each.__name__: each
    for each in (
        alone, wrapped_before, given_as_model, wrapped_after, wrapped_within, replicated,
        sharded_before, sharded_after, others_optimizer, others_hook, without_averages, beside,
    )
}  # fmt: skip


def batch(rank: int, iteration: int) -> Tensor:
    generator = torch.Generator().manual_seed(10 * iteration + rank)
    return torch.randn(4, 6, generator=generator)


def attempt(make: Callable[[nn.Module], Wrapped], rank: int, size: int) -> dict[str, Any]:
    model = net()
    reference = copy.deepcopy(model)
    plain = sgd(reference)
    try:
        run, optimizer = make(model)
        for iteration in range(6):
            optimizer.zero_grad()
            loss: Any = run(batch(rank, iteration)).square().mean()
            loss.backward()
            optimizer.step()
            plain.zero_grad()
            losses: Any = sum(reference(batch(r, iteration)).square().mean() for r in range(size))
            (losses / size).backward()
            plain.step()
    except RuntimeError as error:
        return {"error": str(error)}
    optimizer.finish()
    pairs = zip(model.parameters(), reference.parameters(), strict=True)
    return {"off": max(float((one - other).detach().abs().max()) for one, other in pairs)}


def main() -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    rank, size = distributed.get_rank(), distributed.get_world_size()
    results = {name: attempt(make, rank, size) for name, make in SITUATIONS.items()}
    path = Path(os.environ["BYTEPROPHET_RUN"]) / f"conflicts-{rank}.json"
    path.write_text(json.dumps(results))
    sys.stdout.flush()
    os._exit(0)  # wrappers of failed attempts may wait for each other


if __name__ == "__main__":
    main()
