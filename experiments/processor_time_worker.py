"""A worker of ``processor_time.py``: trains a model that computes nothing.

    processor_time_worker.py RUNTIME TENSORS BYTES WARMUP ITERATIONS

RUNTIME is a scheduler (with servers), a ``sync`` of ``byteprophet.torch.DistributedOptimizer``
without servers, ``ddp``, or ``alone``, which exchanges nothing. ``TENSORS`` parameters have
``BYTES`` in all. Backward adds a gradient that is known to each parameter's, and SGD updates it, so
that every element is known at the end.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from thread_samples import Snapshot, snapshot
from torch import Tensor, distributed, nn

from byteprophet import schedulers
from byteprophet.schedulers import STOCK
from byteprophet.whole_files import write_whole

ALONE, DDP = "alone", "ddp"
_LEARNING_RATE = 2.0**-10  # all sums are exact


class _Known(torch.autograd.Function):
    """Passes a signal on; in backward, the parameter gets a gradient that was made before."""

    @staticmethod
    def forward(ctx: Any, signal: Tensor, _weight: Tensor, gradient: Tensor) -> Tensor:
        ctx.gradient = gradient
        return signal.clone()

    @staticmethod
    def backward(ctx: Any, signal: Tensor) -> tuple[Tensor, Tensor, None]:
        return signal, ctx.gradient, None


class _Layer(nn.Module):
    def __init__(self, elements: int, gradient: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(elements))
        self.weight.grad = torch.zeros(elements)
        self._gradient = torch.full((elements,), gradient)

    def forward(self, signal: Tensor) -> Tensor:
        """Nothing; but now is when it would read its parameter."""
        return _Known.apply(signal, self.weight, self._gradient)  # type: ignore[no-any-return,no-untyped-call]


def main() -> None:
    """Train, check, write the result."""
    runtime, tensors, size_bytes, warmup, iterations = sys.argv[1], *map(int, sys.argv[2:])
    torch.set_num_threads(1)
    rank, size, wrap = _join(runtime)
    elements = size_bytes // tensors // 4
    layers = [_Layer(elements, float(number % 8 + 2 * rank)) for number in range(tensors)]
    model, optimizer = wrap(nn.Sequential(*layers))
    signal = torch.zeros(1, requires_grad=True)
    run_directory = os.environ["BYTEPROPHET_RUN"]
    starts_ns = [0]
    before: Snapshot = []
    for iteration in range(warmup + iterations):
        if iteration == warmup:
            before = snapshot(run_directory) if rank == 0 else []
            starts_ns = [time.monotonic_ns()]
        optimizer.zero_grad(set_to_none=False)
        model(signal).backward()
        optimizer.step()
        starts_ns.append(time.monotonic_ns())
    after = snapshot(run_directory) if rank == 0 else []
    threads = {str(each.native_id): each.name for each in threading.enumerate()}
    mean = 2.0 * rank if runtime == ALONE else size - 1.0
    for number, layer in enumerate(layers):
        step = -_LEARNING_RATE * (number % 8 + mean)
        expected = torch.full((elements,), (warmup + iterations) * step)
        assert torch.equal(layer.weight, expected), f"tensor {number}: not the updates' sum"
    result = {
        "iteration_ns": [after - before for before, after in pairwise(starts_ns)],
        "first_monotonic_ns": starts_ns[0],
        "last_monotonic_ns": starts_ns[-1],
        "threads": threads,
        "before": before,
        "after": after,
    }
    folder = Path(run_directory) / "results"
    folder.mkdir(exist_ok=True)
    write_whole(folder / f"worker-{rank}.json", json.dumps(result))
    if runtime in schedulers.names:
        _byteps(runtime).shutdown()
    else:
        distributed.destroy_process_group()


def _byteps(scheduler: str) -> Any:
    return importlib.import_module("byteps.torch" if scheduler == STOCK else "byteprophet.torch")


def _join(runtime: str) -> Any:
    """Rank and number of ranks, and a function that makes model and optimizer distributed."""

    def plain(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=_LEARNING_RATE)

    if runtime in schedulers.names:
        bps = _byteps(runtime)
        bps.init()
        return (
            bps.rank(),
            bps.size(),
            lambda model: (
                model,
                bps.DistributedOptimizer(plain(model), named_parameters=model.named_parameters()),
            ),
        )
    distributed.init_process_group("gloo")
    rank, size = distributed.get_rank(), distributed.get_world_size()
    if runtime == ALONE:
        return rank, size, lambda model: (model, plain(model))
    if runtime == DDP:

        def parallel(model: nn.Module) -> tuple[nn.Module, torch.optim.Optimizer]:
            wrapped = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
            return wrapped, plain(model)

        return rank, size, parallel
    from byteprophet.torch import DistributedOptimizer

    return (
        rank,
        size,
        lambda model: (model, DistributedOptimizer(plain(model), model=model, sync=runtime)),
    )


if __name__ == "__main__":
    main()
