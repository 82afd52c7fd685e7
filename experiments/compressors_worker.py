"""A rank of ``compressors.py``: trains the digits model under a strategy, counts what it sends.

    compressors_worker.py COMPRESSOR SEED ITERATIONS

COMPRESSOR is one of ``COMPRESSORS``. Writes ``compressors-<rank>.json`` in the run directory: bytes
per iteration as the process counts them, as its host's interface does, and as stated; accuracy.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from counters import counted
from torch import Tensor, distributed, nn
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).parent / "digits"))
from data import batch_indices, load
from model import ResNet
from recipe import evaluate, make_optimizer, make_schedule, set_up

from byteprophet.job import Bucket, Model, Parameter, Strategy
from byteprophet.job.compression import Compressed
from byteprophet.job.compression_file import read_compressors
from byteprophet.job.strategy import ALL_REDUCE
from byteprophet.job.strategy_file import Used, write_strategy

NONE = "none"
COMPRESSORS: Mapping[str, dict[str, Any]] = {
    NONE: {},
    "topk": {"type": "topk", "k": 0.1},
    "randomk": {"type": "randomk", "k": 0.5},
    "onebit": {"type": "onebit"},
    "dithering": {"type": "dithering", "k": 7, "error_feedback": True},
    "powersgd": {"type": "powersgd", "rank": 4},
}
"""Rules of a strategy file, for all weights of convolutions and of the last layer."""
WARM_UP = 6
LEAST_BYTES = 1024  # parameters of batch norm are smaller
_SETTLE_S = 0.5


def strategy_of(named: Mapping[str, Tensor], rule: Mapping[str, Any]) -> Used:
    """A strategy with one bucket; ``rule`` is for what is large."""
    model = Model(tuple(Parameter(name, each.nbytes) for name, each in named.items()))
    compressors: tuple[Compressed, ...] = ()
    if rule:
        everything = {"parameters": ["*"], "min_bytes": LEAST_BYTES, **rule}
        compressors = read_compressors([everything], model)
    alone = {name for each in compressors for name in each.parameters}
    bucket = Bucket(tuple(name for name in named if name not in alone), 0, 1)
    return Used(model, Strategy(ALL_REDUCE, (bucket,), compressors=compressors), since=0)


def stated_bytes(used: Used, named: Mapping[str, Tensor], ranks: int) -> float:
    """What a rank sends per iteration."""
    compressors = used.strategy.compressor_of
    return sum(
        compressors[name].form(tuple(each.shape)).sent_bytes(ranks)
        if name in compressors
        else each.nbytes * 2 * (ranks - 1) / ranks
        for name, each in named.items()
    )


def main() -> None:
    """Train, write the result."""
    compressor, seed, iterations = sys.argv[1], *map(int, sys.argv[2:])
    set_up()
    torch.manual_seed(seed)
    distributed.init_process_group("gloo")
    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    train, test = load()
    model = ResNet()
    named = dict(model.named_parameters())
    used = strategy_of(named, COMPRESSORS[compressor])
    directory = Path(os.environ["BYTEPROPHET_RUN"])
    path = directory / f"given-{rank}.json"
    write_strategy(path, used)
    optimizer: Any = make_optimizer(model)
    schedule = make_schedule(optimizer, iterations)
    from byteprophet.torch import DistributedOptimizer

    optimizer = DistributedOptimizer(optimizer, model=model, sync="allreduce", strategy=path)
    before, started = (0, 0), 0
    for iteration in range(iterations):
        if iteration == WARM_UP:
            optimizer.finish()
            before, started = _quiet_counts(optimizer), time.monotonic_ns()
        images, labels = train[batch_indices(iteration, rank, ranks, len(train))]
        optimizer.zero_grad()
        functional.cross_entropy(model(images), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
    optimizer.finish()
    took_ns = time.monotonic_ns() - started
    after = _quiet_counts(optimizer)
    measured = iterations - WARM_UP
    loss, accuracy = evaluate(model, test)
    result = {
        "payload_bytes": (after[0] - before[0]) / measured,
        "interface_bytes": (after[1] - before[1]) / measured,
        "stated_bytes": stated_bytes(used, named, ranks),
        "iteration_ns": took_ns / measured,
        "loss": loss,
        "accuracy": accuracy,
        "parameters_sum": float(_flat(model).double().sum()),
    }
    (directory / f"compressors-{rank}.json").write_text(json.dumps(result), encoding="utf-8")


def _flat(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def _quiet_counts(optimizer: Any) -> tuple[int, int]:
    """What this process and its host have sent, once no rank sends anything."""
    distributed.barrier()
    time.sleep(_SETTLE_S)
    sent, _ = counted(Path("/proc/self/net/dev").read_text(encoding="ascii"))
    payload_bytes = optimizer._front.synchroniser.sent().payload_bytes
    distributed.barrier()
    return payload_bytes, sent


if __name__ == "__main__":
    main()
