"""A rank of a job without servers: ``shared_worker.py OPTIONS``, JSON as ``Options`` below.

Trains a small network on this rank's part of each batch, and writes ``rank-<rank>.pt`` to ``out``:
its parameters, the whole state, and what it saw of the runtime. Rank and peers come from the
environment, as torchrun sets it; without them it is one process that has all of each batch.
"""

from __future__ import annotations

import itertools
import json
import math
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn

from byteprophet.allreduce.model import Order

BATCH = 24


@dataclass
class Options:
    out: str
    sync: str | None = None  # None: DistributedDataParallel, or one process
    iterations: tuple[int, int] = (0, 24)
    fusion: int | str = "planned"
    owners: list[int] | None = None
    reloads: bool = False  # a fresh optimizer loads a rank's shares
    other_owners: list[int] | None = None  # of that optimizer
    odd_owners_on: int | None = None  # the rank that has other weights
    load: str | None = None  # a file that rank 0 has saved before
    autocast: bool = False
    dies_at: int | None = None  # rank 1, before this iteration's backward
    leaves_at: int | None = None  # rank 0, in order, before this iteration
    leaves_child: bool = False  # when it dies; until there is a file "over" in `out`
    dies_between: bool = False  # rank 1, before all others make a second optimizer
    wide_on: int | None = None  # the rank whose network is another one
    frozen_on: int | None = None  # the rank with a parameter that does not learn
    hook_on: int | None = None  # the rank whose optimizer has a hook after steps
    large: bool = False  # only averages gradients whose sum is too large for their 16 bits
    adopt_at: int | None = None  # a plan with whole and shared groups, after this iteration
    thaw_at: int | None = None  # a parameter joins the optimizer before this iteration
    until_settled: bool = False  # go on, as long as groups are not final
    clip: str | None = None  # all gradients, by "norm" or "value", in every iteration
    read: bool = False  # the gradients, before the last step


class Net(nn.Module):
    """Residual blocks, convolutions that lie in memory channels last, and a scalar."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, width, 3).to(memory_format=torch.channels_last)
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(6))
        self.scale = nn.Parameter(torch.tensor(1.0))
        self.last = nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.first(x)).mean((2, 3))
        for block in self.blocks:
            x = x + torch.tanh(block(x))
        return self.last(x * self.scale)


def batch(iteration: int, rank: int, size: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(iteration)
    x = torch.randn(BATCH, 3, 6, 6, generator=generator)
    y = torch.randint(0, 4, (BATCH,), generator=generator)
    return x[rank::size], y[rank::size]


def adopt_a_mixed_plan(synchroniser: Any) -> None:
    """Every third group is gathered before step(): whole on every rank."""
    count = len(synchroniser.bucketing.needed)
    groups = tuple((place,) for place in reversed(range(count)))
    order = Order(
        tuple(range(0, 2 * count, 2)),
        tuple(range(1, 2 * count, 2)),
        tuple(number % 3 != 0 for number in range(count)),
    )
    synchroniser.adopt(groups, order)


class MixedPlan:
    """Adopts that plan, as ``Planning`` would, once two steps have had an agreed order."""

    settled = False

    def __init__(self, synchroniser: Any) -> None:
        self._synchroniser = synchroniser
        self._steps = 0

    def declare(self) -> None:
        self._steps = 0

    def restart(self) -> None:
        self._steps = 0

    def drain(self) -> None:
        pass

    def after_step(self, owner: str, agreed: bool) -> None:
        self._steps += agreed
        if agreed and self._steps == 2:
            adopt_a_mixed_plan(self._synchroniser)


def clipped(model: nn.Module, by: str) -> Tensor:
    """Clips what is far above the limit; gives the norm before. One parameter is nobody's."""
    frozen = nn.Parameter(torch.ones(3), requires_grad=False)
    parameters = [*model.parameters(), frozen]
    if by == "value":
        nn.utils.clip_grad_value_(parameters, 1e-3)
    return nn.utils.clip_grad_norm_(parameters, 0.05 if by == "norm" else math.inf)


def reloaded(own: dict[str, Any], options: Options) -> dict[str, Any]:
    """The whole state of a fresh optimizer, before any plan, that has loaded a rank's shares.

    Then it refuses what no rank or another one has saved, and keeps what it has.
    """
    from byteprophet.torch import DistributedOptimizer

    model = Net(32)
    fresh: Any = torch.optim.AdamW(model.parameters(), lr=1e-2)
    assert options.sync is not None
    fresh = DistributedOptimizer(
        fresh,
        model=model,
        sync=options.sync,
        fusion=options.fusion,
        owners=options.other_owners,
    )
    fresh.load_sharded_state_dict(own)
    before = fresh.state_dict()
    wrong = {**own, "state": {n: {**state} for n, state in own["state"].items()}}
    wrong["state"][3]["exp_avg"] = torch.ones(5)
    wrong["state"][0]["exp_avg"] = wrong["state"][0]["exp_avg"] + 1
    saver = own["byteprophet_saver"]
    others = {**own, "byteprophet_saver": {**saver, "rank": saver["rank"] ^ 1}}
    refuses(fresh.load_sharded_state_dict, wrong, "'exp_avg' of 'blocks.0.weight")
    refuses(fresh.load_sharded_state_dict, others, "it was saved by rank")
    refuses(fresh.load_state_dict, own, "give it to load_sharded_state_dict() on that rank")
    torch.testing.assert_close(fresh.state_dict(), before, rtol=0, atol=0)
    return dict(before)


def refuses(load: Callable[[dict[str, Any]], None], state: dict[str, Any], why: str) -> None:
    try:
        load(state)
    except ValueError as error:
        assert why in str(error), error  # noqa: PT017
    else:
        raise AssertionError("it was loaded")


def average_of_large(sync: str | None) -> Tensor:
    """The average of gradients of 40,000 that travel as float16, which ends at 65,504."""
    from byteprophet.torch import Compression, DistributedOptimizer

    model = nn.Linear(1, 5, bias=False)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=1.0)
    assert sync is not None
    optimizer = DistributedOptimizer(
        optimizer, model=model, sync=sync, compression=Compression.fp16
    )
    model(torch.full((1, 1), 40_000.0)).sum().backward()
    assert model.weight.grad is not None
    return model.weight.grad.clone()


def wait_for(path: Path) -> None:
    for _ in range(6000):
        if path.exists():
            return
        time.sleep(0.1)


def main() -> None:
    options = Options(**json.loads(sys.argv[1]))
    torch.set_num_threads(1)
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if size > 1:
        distributed.init_process_group("gloo")
    torch.manual_seed(rank)
    if options.sync is None:
        torch.manual_seed(0)
    if options.large:
        torch.save(average_of_large(options.sync), Path(options.out) / f"rank-{rank}.pt")
        return
    model: Any = Net(40 if rank == options.wide_on else 32)
    model.scale.requires_grad_(rank != options.frozen_on)
    late = [model.scale] if options.thaw_at is not None else []
    early = [p for p in model.parameters() if not late or p is not model.scale]
    optimizer: Any = torch.optim.AdamW(early, lr=1e-2)
    trained = model
    if options.sync is not None:
        from byteprophet.torch import DistributedOptimizer

        owners = None if options.owners is None else [*options.owners]
        if rank == options.odd_owners_on:
            owners = owners and owners[::-1]
        optimizer = DistributedOptimizer(
            optimizer, model=model, sync=options.sync, fusion=options.fusion, owners=owners
        )
        if rank == options.hook_on:
            optimizer.register_step_post_hook(lambda *_: None)
        if options.dies_between:
            if rank == 1:
                os._exit(3)
            other = Net(32)
            DistributedOptimizer(torch.optim.SGD(other.parameters()), sync=options.sync)
    elif size > 1:
        trained = nn.parallel.DistributedDataParallel(model)
    if options.load is not None:
        saved = torch.load(options.load)
        model.load_state_dict(saved["parameters"])
        optimizer.load_state_dict(saved["state"])
    between_steps = optimizer._front._between_steps if options.sync is not None else None
    first, last = options.iterations
    norms: list[Tensor] = []
    gradients: list[Tensor] = []
    for iteration in itertools.count(first):
        settles = options.until_settled and not between_steps.settled
        if iteration >= last and not (settles and iteration < 1000):
            break
        if iteration == options.dies_at and rank == 1:
            if options.leaves_child:
                over = Path(options.out) / "over"
                multiprocessing.get_context("fork").Process(target=wait_for, args=(over,)).start()
            os._exit(3)
        if iteration == options.leaves_at and rank == 0:
            sys.exit(0)
        if iteration == options.thaw_at:
            optimizer.add_param_group({"params": late, "lr": 1e-2})
        x, y = batch(iteration, rank, size)
        with torch.autocast("cpu", dtype=torch.bfloat16) if options.autocast else nullcontext():
            loss = nn.functional.cross_entropy(trained(x), y)
        optimizer.zero_grad()
        loss.backward()
        if options.clip is not None:
            norms.append(clipped(model, options.clip))
        if options.read and iteration == last - 1:
            gradients = [p.grad.clone() for p in model.parameters()]
        optimizer.step()
        if iteration == options.adopt_at:
            adopt_a_mixed_plan(optimizer._front.synchroniser)
    seen: dict[str, Any] = {"iterations": iteration}
    if options.sync is not None:
        own = optimizer.sharded_state_dict()
        optimizer.load_sharded_state_dict(own)
        optimizer.finish()
        if options.reloads or (options.adopt_at is not None and options.thaw_at is None):
            seen["reloaded"] = reloaded(own, options)
        distributed.barrier()  # what others have, we have sent
        seen["sent_bytes"] = optimizer._front.synchroniser.sent().payload_bytes
        groups = optimizer._front.synchroniser.bucketing.layouts
        seen["groups"] = [(group.parameters, group.whole) for group in groups]
        seen["bucket_bytes"] = optimizer._front.synchroniser.bucketing.bucket_bytes
        seen["settled"] = between_steps is None or between_steps.settled
        seen["kept"] = sum(
            value.numel() for state in optimizer.state.values() for value in state.values()
        )
    results = {
        "parameters": model.state_dict(), "state": optimizer.state_dict(), "seen": seen,
        "norms": norms, "gradients": gradients,
    }  # fmt: skip
    Path(options.out).mkdir(parents=True, exist_ok=True)
    torch.save(results, Path(options.out) / f"rank-{rank}.pt")


if __name__ == "__main__":
    main()
