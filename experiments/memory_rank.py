"""A rank of ``memory_ranks.py``: trains, measures its peak, and predicts it.

    LD_PRELOAD=malloc_peak.so memory_rank.py MODEL RUNTIME

Buckets are of 2 MB, so that they stay what they are. Under ``ddp``, the script wraps its model in
DistributedDataParallel.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from malloc_peak import live_bytes, peak_bytes, reset_peak
from memory_models import MODELS
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from byteprophet.job import Bucket, Strategy
from byteprophet.job.strategy import DDP
from byteprophet.memory.runtimes import predict_rank_peak
from byteprophet.memory.training import Training
from byteprophet.torch import DistributedOptimizer
from byteprophet.torch.recording.ddp_buckets import rebuilt_buckets

BATCH = 4
BUCKET_BYTES = 2_000_000
WARMUP, COUNTED = 6, 4


def main() -> None:
    """Train, measure, predict, write."""
    name, runtime = sys.argv[1:]
    torch.set_num_threads(1)
    if runtime != "byteps":
        distributed.init_process_group("gloo")
    training = _training(name)
    training.run(training.optimizer(list(training.model.parameters())))  # what libraries keep
    del training
    gc.collect()
    before = live_bytes()
    training = _training(name)
    optimizer: Any = training.optimizer(list(training.model.parameters()))
    if runtime == DDP:
        wrapped = DistributedDataParallel(training.model, bucket_cap_mb=BUCKET_BYTES / (1 << 20))
        training = replace(training, model=wrapped)
    else:
        optimizer = DistributedOptimizer(
            optimizer, model=training.model, sync=runtime, fusion=BUCKET_BYTES
        )
    for _ in range(WARMUP):
        training.run(optimizer)
    reset_peak()
    for _ in range(COUNTED):
        training.run(optimizer)
    measured = peak_bytes() - before
    if runtime == DDP:
        rank, ranks = distributed.get_rank(), distributed.get_world_size()
        buckets = rebuilt_buckets(wrapped)
        assert buckets is not None
        strategy = Strategy(DDP, tuple(Bucket(names, n, n) for n, names in enumerate(buckets)))
    else:
        optimizer.finish()
        synchroniser = optimizer._front.synchroniser
        rank, ranks = synchroniser.rank, synchroniser.size
        layouts = () if runtime == "byteps" else synchroniser.bucketing.layouts
        strategy = Strategy(
            runtime,
            tuple(
                Bucket(each.parameters, each.reduce_place, each.gather_place, not each.whole)
                for each in layouts
            ),
        )
    peak = predict_rank_peak(_training(name), strategy, ranks, rank)
    result = {
        "measured_bytes": measured,
        "least_bytes": peak.least_bytes,
        "most_bytes": peak.most_bytes,
        "optimizer_state_bytes": peak.optimizer_state_bytes,
    }
    out = Path(os.environ["BYTEPROPHET_RUN"]) / f"rank-{rank}.json"
    out.write_text(json.dumps(result), encoding="utf-8")


def _training(name: str) -> Training:
    torch.manual_seed(1)
    made = MODELS[name](BATCH)
    return Training(made.model, [made.batch], made.loss_of, _adam)


def _adam(parameters: Any) -> torch.optim.Optimizer:
    """One parameter at a time, as updates of ranks are made."""
    found: list[nn.Parameter] = list(parameters)
    return torch.optim.Adam(found, foreach=False)


if __name__ == "__main__":
    main()
