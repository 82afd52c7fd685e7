"""A worker of the goodput experiment: pushes and pulls, or reduce-scatters, and does nothing else.

    goodput_worker.py SCHEDULER|reduce-scatter BYTES WARMUP ITERATIONS

With ``reduce-scatter``, one tensor of ``BYTES`` goes through our mesh, one operation after the
other, without an optimizer.

Under a scheduler, eight tensors of ``BYTES`` in all are the gradients, the same memory in every
iteration, of an optimizer that updates nothing; no backward pass makes them. In place of each comes
its average over the ranks, which the next iteration averages again: every element is known.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn

from byteprophet.job.owners import Owners
from byteprophet.schedulers import STOCK
from byteprophet.whole_files import write_whole

REDUCE_SCATTER = "reduce-scatter"
TENSORS = 8
_TIMEOUT_S = 60.0


class Layer(nn.Module):
    """One parameter that forward needs."""

    def __init__(self, elements: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(elements))

    def forward(self, signal: Tensor) -> Tensor:
        """Nothing; but now is when it would read its parameter."""
        return signal


class Nothing(torch.optim.Optimizer):
    """Updates nothing."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Nothing."""


def main() -> None:
    """Exchange, check, write the result."""
    runtime, size_bytes, warmup, iterations = sys.argv[1], *map(int, sys.argv[2:])
    torch.set_num_threads(1)
    if runtime == REDUCE_SCATTER:
        _reduce_scatters(size_bytes, warmup, iterations)
    else:
        _pushes_and_pulls(runtime, size_bytes, warmup, iterations)


def _pushes_and_pulls(scheduler: str, size_bytes: int, warmup: int, iterations: int) -> None:
    bps: Any = importlib.import_module(
        "byteps.torch" if scheduler == STOCK else "byteprophet.torch"
    )
    bps.init()
    elements = size_bytes // TENSORS // 4
    layers = [Layer(elements) for _ in range(TENSORS)]
    model = nn.Sequential(*layers)
    optimizer = bps.DistributedOptimizer(
        Nothing(model.parameters()), named_parameters=model.named_parameters()
    )
    for number, layer in enumerate(layers):  # now: BytePS' own optimizer starts with zeros
        layer.weight.grad = torch.full((elements,), float(number + 2 * bps.rank()))
    signal = torch.zeros(1)

    def iterate() -> None:
        model(signal)
        optimizer.step()

    starts_ns = _timed(iterate, warmup, iterations)
    for number, layer in enumerate(layers):
        gradient = layer.weight.grad
        assert gradient is not None
        average = torch.full_like(gradient, float(number + bps.size() - 1))
        assert torch.equal(gradient, average), f"tensor {number}: not the average"
    _write(bps.rank(), starts_ns, 0 if scheduler == STOCK else bps.partition_bytes())
    bps.shutdown()


def _reduce_scatters(size_bytes: int, warmup: int, iterations: int) -> None:
    from byteprophet.torch.sync.process_exchange import process_exchange

    distributed.init_process_group("gloo")
    exchange = process_exchange("cpu", _TIMEOUT_S)
    rank, size = exchange.rank, exchange.size
    owners = Owners.equal(size)
    tensor = torch.full((size_bytes // 4 // size * size,), float(rank))
    own = tensor.chunk(size)[rank]
    expected = torch.full((), float(rank))

    def iterate() -> None:
        over = threading.Event()
        failed: list[BaseException] = []

        def done(error: BaseException | None) -> None:
            if error is not None:
                failed.append(error)
            over.set()

        exchange.reduce_scatter(next(exchange.numbers), [tensor], owners, True, 0, done)
        if not over.wait(_TIMEOUT_S):
            raise TimeoutError(f"reduce-scatter: waited {_TIMEOUT_S:g} s for the other ranks")
        if failed:
            raise failed[0]
        # The other ranks' elements of this share stay as they were.
        expected.add_(sum(range(size)) - rank).div_(size)

    starts_ns = _timed(iterate, warmup, iterations)
    assert torch.equal(own, expected.expand_as(own)), "not the average"
    _write(rank, starts_ns, 0)
    distributed.destroy_process_group()


def _timed(iterate: Callable[[], None], warmup: int, iterations: int) -> list[int]:
    """When each measured iteration began, and when the last one ended."""
    starts_ns = [0]
    for iteration in range(warmup + iterations):
        if iteration == warmup:
            starts_ns = [time.monotonic_ns()]
        iterate()
        starts_ns.append(time.monotonic_ns())
    return starts_ns


def _write(rank: int, starts_ns: Sequence[int], partition_bytes: int) -> None:
    result = {
        "iteration_ns": [after - before for before, after in pairwise(starts_ns)],
        "first_monotonic_ns": starts_ns[0],
        "last_monotonic_ns": starts_ns[-1],
        "partition_bytes": partition_bytes,
    }
    folder = Path(os.environ["BYTEPROPHET_RUN"]) / "results"
    folder.mkdir(exist_ok=True)
    write_whole(folder / f"worker-{rank}.json", json.dumps(result))


if __name__ == "__main__":
    main()
