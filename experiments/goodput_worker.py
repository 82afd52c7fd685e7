"""A worker of the goodput experiment: pushes and pulls, and does nothing else.

    goodput_worker.py SCHEDULER BYTES WARMUP ITERATIONS

Eight tensors of ``BYTES`` in all are the gradients, the same memory in every iteration, of an
optimizer that updates nothing; no backward pass makes them. In place of each comes its average over
the ranks, which the next iteration averages again: every element is known.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from byteprophet.schedulers import STOCK
from byteprophet.whole_files import write_whole

TENSORS = 8


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
    """Push and pull, check, write the result."""
    scheduler, size_bytes, warmup, iterations = sys.argv[1], *map(int, sys.argv[2:])
    torch.set_num_threads(1)
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
    starts_ns = [0]
    for iteration in range(warmup + iterations):
        if iteration == warmup:
            starts_ns = [time.monotonic_ns()]
        model(signal)
        optimizer.step()
        starts_ns.append(time.monotonic_ns())
    for number, layer in enumerate(layers):
        gradient = layer.weight.grad
        assert gradient is not None
        average = torch.full_like(gradient, float(number + bps.size() - 1))
        assert torch.equal(gradient, average), f"tensor {number}: not the average"
    result = {
        "iteration_ns": [after - before for before, after in pairwise(starts_ns)],
        "first_monotonic_ns": starts_ns[0],
        "last_monotonic_ns": starts_ns[-1],
        "partition_bytes": 0 if scheduler == STOCK else bps.partition_bytes(),
    }
    folder = Path(os.environ["BYTEPROPHET_RUN"]) / "results"
    folder.mkdir(exist_ok=True)
    write_whole(folder / f"worker-{bps.rank()}.json", json.dumps(result))
    bps.shutdown()


if __name__ == "__main__":
    main()
