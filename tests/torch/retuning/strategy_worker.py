"""A rank of a job without servers: ``strategy_worker.py FOLDER``.

Trains the same model four times: as ``dear`` plans it, under ``FOLDER/strategy.json`` and
``FOLDER/dear.json``, and under the strategy of another model. What came of it goes to
``FOLDER/rank-<rank>.json``.
"""

from __future__ import annotations

import gc
import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn

import byteprophet.torch as bps
from byteprophet.errors import UserError

BATCH = 8


def model() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 20), nn.ReLU(), nn.Linear(20, 2)
    )


def train(strategy: Path | None) -> dict[str, Any]:
    network = model()
    optimizer: Any = bps.DistributedOptimizer(
        torch.optim.Adam(network.parameters(), lr=0.01),
        model=network,
        sync="dear",
        fusion=1000,
        strategy=strategy,
    )
    lot = torch.Generator().manual_seed(5)
    for _ in range(6):
        batch = torch.randn(2 * BATCH, 6, generator=lot)[BATCH * distributed.get_rank() :][:BATCH]
        optimizer.zero_grad()
        network(batch).square().mean().backward()
        optimizer.step()
    optimizer.finish()
    bucketing = optimizer._front.synchroniser.bucketing
    return {
        "parameters": [p.detach().tolist() for p in network.parameters()],
        "mode": bucketing.mode,
        "buckets": [
            [list(each.parameters), each.reduce_place, each.gather_place, not each.whole]
            for each in bucketing.layouts
        ],
    }


def main(folder: Path) -> None:
    distributed.init_process_group("gloo")
    results: dict[str, Any] = {"plain": train(None)}
    gc.collect()  # the first model's parameters have their names to themselves while they live
    for name, file in (("given", "strategy.json"), ("dear", "dear.json")):
        results[name] = train(folder / file)
        gc.collect()
    try:
        train(folder / "other.json")
    except UserError as error:
        results["refused"] = str(error)
    (folder / f"rank-{distributed.get_rank()}.json").write_text(json.dumps(results))
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
