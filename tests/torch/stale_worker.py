"""A rank of a job with delayed averages: ``stale_worker.py OPTIONS``, JSON as ``Options`` below.

Trains a small network under each strategy of ``ways``, and then again by plain torch code, which
computes the gradients of all ranks itself and delays their averages by hand. Writes
``rank-<rank>.pt`` to ``out``. Rank and peers come from the environment, as torchrun or the launcher
of a job with servers sets it.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from compression_reference import Reference
from partly_used import Net, batches, loss
from torch import Tensor, distributed, nn
from torch.optim.lr_scheduler import StepLR

from byteprophet.job.compression_file import compressors_as_json
from byteprophet.job.staleness import steps_by_name
from byteprophet.job.strategy import Strategy
from byteprophet.job.strategy_file import read_strategy_file

SAVED_AFTER = 5
SERVED = "DMLC_ROLE" in os.environ
AHEAD_S = 60.0
LATE_S = 0.3


@dataclass
class Options:
    out: str
    ways: list[str] = field(default_factory=list)  # strategies, each in ``<out>/<way>.json``
    resumes: bool = False  # from a state that was saved in the middle
    waits_for: int | None = None  # rank 1, in this iteration, until rank 0 is ``ahead`` of it
    ahead: int = 0


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    parameters = [*model.parameters()]
    groups = [{"params": parameters[:3]}, {"params": parameters[3:], "lr": 0.02}]
    return torch.optim.Adam(groups, lr=0.01)


def distributed_optimizer(model: nn.Module, path: Path) -> Any:
    from byteprophet.torch import DistributedOptimizer

    sync = "byteps" if SERVED else "allreduce"
    return DistributedOptimizer(optimizer_of(model), model=model, sync=sync, strategy=path)


def clips(path: Path) -> bool:
    return path.stem.startswith("clip")


def given(path: Path, ranks: int, rank: int) -> list[Tensor]:
    """In the end, rank 0 drops its optimizer while the last averages are on their way."""
    model = Net()
    optimizer = distributed_optimizer(model, path)
    schedule = StepLR(optimizer, 3, 0.9)
    everything = batches(ranks)
    for step, batch in enumerate(everything):
        if rank and step == len(everything) - 1:
            time.sleep(LATE_S)
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        loss(model, batch[rank], step).backward()
        if clips(path):
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        schedule.step()
    optimizer.finish()
    return [parameter.detach().clone() for parameter in model.parameters()]


def references(strategy: Strategy, ranks: int) -> dict[str, Reference]:
    """What is to become of compressed gradients, by the parameter's name."""
    rules = compressors_as_json(strategy.compressors)
    return {
        name: Reference(name, rule, ranks, rule["error_feedback"])
        for rule in rules
        for name in rule["parameters"]
    }


def by_hand(path: Path, ranks: int) -> list[Tensor]:
    strategy = read_strategy_file(path).strategy
    steps, delays = strategy.accumulation, steps_by_name(strategy.staleness)
    model = Net()
    named = dict(model.named_parameters())
    optimizer = optimizer_of(model)
    schedule = StepLR(optimizer, 3, 0.9)
    sums = [{name: torch.zeros_like(each) for name, each in named.items()} for _ in range(ranks)]
    waiting: dict[str, deque[Tensor]] = {name: deque() for name in named}
    compressing = references(strategy, ranks)
    for step, batch in enumerate(batches(ranks)):
        for rank in range(ranks):
            model.zero_grad()
            loss(model, batch[rank], step).backward()
            for name, parameter in named.items():
                if parameter.grad is not None:
                    sums[rank][name].add_(parameter.grad)
        if step % steps == steps - 1:
            for name, parameter in named.items():
                own = [sums[rank][name] / steps for rank in range(ranks)]
                for rank in range(ranks):
                    sums[rank][name].zero_()
                if name in compressing:
                    waiting[name].append(compressing[name].average(own))
                else:
                    total = own[0]
                    for each in own[1:]:
                        total = total + each
                    waiting[name].append(total * (1 / ranks))
                ready = len(waiting[name]) > delays.get(name, 0)
                parameter.grad = waiting[name].popleft() if ready else None
            if clips(path):
                nn.utils.clip_grad_norm_(named.values(), 0.1)
            optimizer.step()
        schedule.step()
    return [parameter.detach() for parameter in named.values()]


def by_hand_locally(path: Path, ranks: int, rank: int) -> list[Tensor]:
    """Local SGD: every rank has an optimizer of its own, and parameters are averaged at times."""
    steps = read_strategy_file(path).strategy.local_sgd
    models = [Net() for _ in range(ranks)]
    optimizers = [optimizer_of(model) for model in models]
    schedules = [StepLR(optimizer, 3, 0.9) for optimizer in optimizers]
    for step, batch in enumerate(batches(ranks)):
        for own, model, optimizer, schedule in zip(
            batch, models, optimizers, schedules, strict=True
        ):
            optimizer.zero_grad(set_to_none=step % 2 == 0)
            loss(model, own, step).backward()
            if clips(path):
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            schedule.step()
        if step % steps == steps - 1:
            for values in zip(*(model.parameters() for model in models), strict=True):
                total = values[0].detach().clone()
                for each in values[1:]:
                    total = total + each.detach()
                for each in values:
                    each.detach().copy_(total * (1 / ranks))
    return [parameter.detach() for parameter in models[rank].parameters()]


def resumed(path: Path, ranks: int, rank: int, shards: bool) -> list[Tensor]:
    """Trains in two parts: each has a model and an optimizer of its own."""
    saved: Any = None
    everything = [*enumerate(batches(ranks))]
    for part in (everything[:SAVED_AFTER], everything[SAVED_AFTER:]):
        model = Net()
        optimizer = distributed_optimizer(model, path)
        schedule = StepLR(optimizer, 3, 0.9)
        if saved is not None:
            model.load_state_dict(saved["model"])
            load = optimizer.load_sharded_state_dict if shards else optimizer.load_state_dict
            load(saved["optimizer"])
            schedule.load_state_dict(saved["schedule"])
        for step, batch in part:
            optimizer.zero_grad(set_to_none=step % 2 == 0)
            loss(model, batch[rank], step).backward()
            if clips(path):
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            schedule.step()
        state = optimizer.sharded_state_dict() if shards else optimizer.state_dict()
        file = path.with_name(f"saved-{rank}.pt")
        parts = {"model": model.state_dict(), "optimizer": state, "schedule": schedule.state_dict()}
        torch.save(parts, file)
        saved = torch.load(file)
        values = [parameter.detach().clone() for parameter in model.parameters()]
        del model, optimizer, schedule
        gc.collect()
    return values


def with_a_slow_rank(path: Path, options: Options, rank: int) -> dict[str, list[int]]:
    """When each iteration's backward pass began, and its forward pass ended, in ns.

    In one iteration, rank 1 waits until rank 0 has ended the forward pass of a later one. Then it
    stays behind for a while, in which rank 0 would go on if it could.
    """
    model = Net()
    optimizer = distributed_optimizer(model, path)
    backward_ns, forward_ns = [], []
    assert options.waits_for is not None
    reached = Path(options.out) / "reached"
    for step, batch in enumerate(batches(2)):
        optimizer.zero_grad()
        value = loss(model, batch[rank], step)
        forward_ns.append(time.monotonic_ns())
        if rank == 0 and step == options.waits_for + options.ahead:
            reached.touch()
        if rank == 1 and step == options.waits_for:
            until_s = time.monotonic() + AHEAD_S
            while not reached.exists():
                assert time.monotonic() < until_s, "rank 0 did not come so far"
                time.sleep(0.001)
            time.sleep(0.3)
        backward_ns.append(time.monotonic_ns())
        value.backward()
        optimizer.step()
    optimizer.finish()
    return {"backward_ns": backward_ns, "forward_ns": forward_ns}


def main() -> None:
    options = Options(**json.loads(sys.argv[1]))
    torch.set_num_threads(1)
    if SERVED:
        import byteprophet.torch as bps

        bps.init()
        rank, ranks = bps.rank(), bps.size()
    else:
        rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        distributed.init_process_group("gloo")
    results: dict[str, Any] = {}
    for way in options.ways:
        path = Path(options.out) / f"{way}.json"
        if options.waits_for is not None:
            results[way] = with_a_slow_rank(path, options, rank)
            continue
        trained = given(path, ranks, rank)
        if read_strategy_file(path).strategy.local_sgd:
            expected = by_hand_locally(path, ranks, rank)
        else:
            expected = by_hand(path, ranks)
        results[way] = {"given": trained, "by hand": expected}
        gc.collect()  # the next model's parameters take these names
        if options.resumes:
            for name, shards in (("whole", False), ("shards", True)):
                results[way][name] = resumed(path, ranks, rank, shards)
    torch.save(results, Path(options.out) / f"rank-{rank}.pt")
    if SERVED:
        bps.shutdown()
    else:
        distributed.barrier()
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
