"""A paced worker that trains until the file STOP exists: ``job_worker.py WORKLOAD STOP [MORE]``.

It then makes MORE updates. Their number, the hash of its parameters and its partition size go to
``$BYTEPROPHET_RUN/results/worker-<rank>.json``.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch

import byteprophet.torch as bps
from byteprophet import _plugin
from byteprophet.paced.check import parameters_sha256
from byteprophet.paced.gradient import LEARNING_RATE
from byteprophet.paced.model import PacedModel
from byteprophet.workload.builtin import load


def main(workload: str, stop: Path, more: int) -> None:
    bps.init()
    model = PacedModel(load(workload), bps.rank())
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    named = list(model.named_tensors())
    optimizer = bps.DistributedOptimizer(optimizer, named_parameters=named, model=model)
    bps.broadcast_parameters({name: values.detach() for name, values in named}, root_rank=0)
    signal = torch.zeros(1)
    updates, ending = 0, False
    while not ending or more > 0:
        more -= ending
        optimizer.zero_grad()
        model(signal).sum().backward()
        optimizer.step()
        updates += 1
        # All or none: the sum is the same everywhere.
        wish = torch.tensor([float(stop.exists())])
        ending = bool(bps.push_pull(wish, average=False, name="stop") > 0)
    optimizer.finish()
    tensors = ((name, values.detach().numpy()) for name, values in named)
    plugin = _plugin.load()
    assert plugin is not None
    result = {
        "updates": updates,
        "parameters_sha256": parameters_sha256(tensors),
        "partition_bytes": plugin.partition_bytes(),
    }
    path = Path(os.environ["BYTEPROPHET_RUN"]) / "results" / f"worker-{bps.rank()}.json"
    path.write_text(json.dumps(result))
    bps.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]) if sys.argv[3:] else 0)
