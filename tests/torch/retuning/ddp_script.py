"""A plain script of DistributedDataParallel, which knows nothing of byteprophet.

``ddp_script.py FOLDER [--find-unused] [WAY ...]``: trains a model, and writes its buckets and
parameters to ``FOLDER/rank-<rank>.json``. Each WAY is another try, with the strategy in
``FOLDER/<WAY>.json`` or another argument of the constructor; what came of it is written, too.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

FOLDER = Path(sys.argv[1])
BATCH = 8


def train(**options: Any) -> dict[str, Any]:
    torch.manual_seed(3)
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 20), nn.ReLU(), nn.Linear(20, 2)),
        **options,
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    lot = torch.Generator().manual_seed(5)
    for _ in range(6):
        batch = torch.randn(2 * BATCH, 6, generator=lot)[BATCH * distributed.get_rank() :][:BATCH]
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
    told = model._get_ddp_logging_data().get("rebuilt_per_bucket_param_indices", "")
    return {
        "parameters": [p.detach().tolist() for p in model.parameters()],
        "buckets": [[int(index) for index in bucket.split()] for bucket in told.split(",")],
    }


def main() -> None:
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    ways = sys.argv[2:]
    finds_unused = "--find-unused" in ways
    results: dict[str, Any] = {"plain": train(find_unused_parameters=finds_unused)}
    for way in ways[finds_unused:]:
        options: dict[str, Any] = {}
        if way in ("static_graph", "find_unused_parameters"):
            options[way] = True
        else:
            name = f"{way}-{rank}" if way == "unequal" else way
            os.environ["BYTEPROPHET_STRATEGY"] = str(FOLDER / f"{name}.json")
        try:
            results[way] = train(**options)
        except SystemExit as end:
            results[way] = end.code
    (FOLDER / f"rank-{rank}.json").write_text(json.dumps(results))
    distributed.barrier()
    distributed.destroy_process_group()


main()
