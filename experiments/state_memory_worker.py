"""A rank of ``state_memory.py``: trains with AdamW, and says what its optimizer's state takes.

    state_memory_worker.py SYNC LAYERS WIDTH ITERATIONS

SYNC is ``ddp`` or one of ``byteprophet.torch.DistributedOptimizer``'s.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn


def main() -> None:
    """Train, write the result."""
    sync, layers, width, iterations = sys.argv[1], *map(int, sys.argv[2:])
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    model: nn.Module = nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))
    # One parameter at a time: updates of all at once need room for all, whatever the state takes.
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False)
    if sync == "ddp":
        model = nn.parallel.DistributedDataParallel(
            model, bucket_cap_mb=1, gradient_as_bucket_view=True
        )
    else:
        from byteprophet.torch import DistributedOptimizer

        optimizer = DistributedOptimizer(optimizer, model=model, sync=sync)
    values = torch.randn(4, width, generator=torch.Generator().manual_seed(distributed.get_rank()))
    before_bytes = 0
    for iteration in range(iterations):
        model(values).square().mean().backward()
        if iteration == 0:
            before_bytes = _memory_bytes("VmRSS")
            Path("/proc/self/clear_refs").write_text("5")  # peaks count from here
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
    if sync != "ddp":
        optimizer.finish()
    peak_bytes = _memory_bytes("VmHWM")
    kept = [value for state in optimizer.state.values() for value in state.values()]
    result = {
        "state_bytes": sum(value.nbytes for value in kept if isinstance(value, Tensor)),
        "grown_bytes": peak_bytes - before_bytes,
        "parameters_bytes": sum(parameter.nbytes for parameter in model.parameters()),
    }
    path = Path(os.environ["BYTEPROPHET_RUN"]) / f"memory-{distributed.get_rank()}.json"
    path.write_text(json.dumps(result), encoding="utf-8")


def _memory_bytes(name: str) -> int:
    """Of this process, as ``/proc/self/status`` has it."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {name}")


if __name__ == "__main__":
    main()
