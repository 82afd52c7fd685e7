"""A rank of ``test_sharded.py``: trains under FSDP2, and writes the peak of each iteration."""

from __future__ import annotations

import gc
import json
import os
from pathlib import Path
from typing import Any

import torch
from malloc_peak import live_bytes, peak_bytes, reset_peak
from sharded_models import ROUNDS, linear_training, shard_blocks
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh

_WARMUP = 2


def main() -> None:
    """Train, write."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
    training = linear_training()
    shard_blocks(training.model, mesh)
    optimizer: Any = training.optimizer(list(training.model.parameters()))
    above = []  # what is left after an iteration; torch notes every collective, so that grows
    for _ in range(_WARMUP + ROUNDS):
        gc.collect()
        reset_peak()
        training.run(optimizer)
        reached_bytes = peak_bytes()
        gc.collect()
        left_bytes = live_bytes()
        above.append(reached_bytes - left_bytes)
    del training, optimizer
    gc.collect()
    rest_bytes = live_bytes()
    distributed.destroy_process_group()
    out = Path(os.environ["BYTEPROPHET_RUN"]) / f"rank-{rank}.json"
    peaks = [each + left_bytes - rest_bytes for each in above[_WARMUP:]]
    out.write_text(json.dumps(peaks), encoding="utf-8")


if __name__ == "__main__":
    main()
