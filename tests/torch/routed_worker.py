"""A rank of a job with servers and a mesh: ``routed_worker.py OPTIONS``, JSON as ``Options`` below.

It trains a network under strategies whose routes, pieces, buckets and keys it draws, and saves and
loads the state in the middle. It also trains the network by itself, on all ranks' batches, and adds
the gradients. It writes how far the results are apart to ``rank-<rank>.json`` in ``out``.
"""

from __future__ import annotations

import gc
import json
import os
import random
import socket
import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from shared_worker import Net, batch
from torch import Tensor, distributed, nn

import byteprophet.torch as bps
from byteprophet import schedulers
from byteprophet.job import Bucket, Model, Parameter, Policy, Strategy
from byteprophet.job.routes import MESH, SERVERS, WAYS, Piece, Route, carried
from byteprophet.job.strategy import ALL_REDUCE, DEAR, MIXED, OURS, Keys
from byteprophet.job.strategy_file import Used, write_strategy

STEPS = 5  # before the state is saved, and after it was loaded


@dataclass
class Options:
    out: str
    seeds: Sequence[int] = ()  # of the strategies that are drawn
    linear: bool = False  # a layer of two parameters, under the strategy in the environment
    dies_at: int | None = None  # rank 1, in this iteration
    odd_on: int | None = None  # the rank with another strategy
    calls: str = ""  # what is called after the first steps: it is to be refused
    compresses: bool = False  # the gradient of the first parameter, by BytePS


class Wide(Net):
    """Has a parameter that no loss depends on, and one that does not learn."""

    def __init__(self) -> None:
        super().__init__(8)
        self.idle = nn.Parameter(torch.ones(30))
        self.frozen = nn.Parameter(torch.ones(5), requires_grad=False)


@dataclass
class Drawn:
    """How one network is trained. ``cuts``: gradients may be cut. ``reads``: before each step."""

    mesh: str
    adam: bool
    clip: str
    passes: int
    cuts: bool
    reads: bool

    @classmethod
    def by(cls, chance: random.Random) -> Drawn:
        mesh = chance.choice(OURS)
        return cls(
            mesh,
            chance.random() < 0.5,
            chance.choice(["", "", "norm", "value"]),
            chance.choice([1, 1, 2]),
            mesh != DEAR and chance.random() < 0.7,
            chance.random() < 0.3,
        )

    def optimizer(self, parameters: Sequence[Tensor]) -> torch.optim.Optimizer:
        if self.adam:
            return torch.optim.AdamW(parameters, lr=1e-2)
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)

    def clipped(self, model: nn.Module) -> None:
        if self.clip == "norm":
            nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        elif self.clip == "value":
            nn.utils.clip_grad_value_(model.parameters(), 1e-3)


def used(model: nn.Module, prefix: str, drawn: Drawn, chance: random.Random) -> Used:
    """A strategy for ``model``, whose parameters are called so, but with ``prefix``."""
    parameters = tuple(
        Parameter(prefix + name, tensor.nbytes) for name, tensor in model.named_parameters()
    )
    routes = tuple(
        Route(each.name, _pieces(each, tensor.element_size(), drawn, chance))
        for each, tensor in zip(parameters, model.parameters(), strict=True)
    )
    always = {0: SERVERS, 1: MESH}  # both carry something
    routes = tuple(
        replace(route, pieces=(Piece(route.size_bytes, always[place]),))
        if place in always
        else route
        for place, route in enumerate(routes)
    )
    whole = Model(parameters)
    names = list(carried(whole, routes, MESH).names)
    chance.shuffle(names)
    buckets = []
    while names:
        count = chance.randint(1, 4)
        buckets.append(names[:count])
        names = names[count:]
    number = len(buckets)
    reduces, gathers = (chance.sample(range(number), number) for _ in range(2))
    shards = drawn.mesh != ALL_REDUCE and not any(route.is_cut for route in routes)
    servers = int(os.environ["DMLC_NUM_SERVER"])
    keys = tuple(
        Keys(name, chance.choice([0, 4096]), (chance.randrange(servers),))
        for name in carried(whole, routes, SERVERS).names
        if chance.random() < 0.3
    )
    scheduler = os.environ["BYTEPS_SCHEDULER"]
    _, partition_bytes = schedulers.resolve(scheduler, {})
    strategy = Strategy(
        MIXED,
        tuple(
            Bucket(
                tuple(held),
                reduce,
                number + gather,
                shards and (drawn.mesh == DEAR or chance.random() < 0.7),
            )
            for held, reduce, gather in zip(buckets, reduces, gathers, strict=True)
        ),
        partition_bytes=partition_bytes,
        keys=keys,
        routes=routes,
        mesh=drawn.mesh,
    )
    return Used(whole, strategy, 0, Policy(scheduler, {}))


def _pieces(
    each: Parameter, element_bytes: int, drawn: Drawn, chance: random.Random
) -> tuple[Piece, ...]:
    elements = each.size_bytes // element_bytes
    ends = [elements]
    if drawn.cuts and elements > 3 and chance.random() < 0.6:
        ends = sorted({elements, *chance.sample(range(1, elements), chance.randint(1, 2))})
    starts = [0, *ends[:-1]]
    return tuple(
        Piece((end - start) * element_bytes, chance.choice(WAYS))
        for start, end in zip(starts, ends, strict=True)
    )


def losses(model: nn.Module, drawn: Drawn, iteration: int, rank: int, size: int) -> None:
    """All backward passes of one step on one rank."""
    for number in range(drawn.passes):
        x, y = batch(100 * number + iteration, rank, size)
        nn.functional.cross_entropy(model(x), y).backward()


def alone(drawn: Drawn, size: int) -> nn.Module:
    """Trained in this process, with the gradients of all ranks."""
    torch.manual_seed(0)
    model = Wide()
    optimizer = drawn.optimizer(list(model.parameters()))
    for iteration in range(2 * STEPS):
        sums = [torch.zeros_like(p) for p in model.parameters()]
        for rank in range(size):
            optimizer.zero_grad()
            losses(model, drawn, iteration, rank, size)
            for total, parameter in zip(sums, model.parameters(), strict=True):
                if parameter.grad is not None:
                    total += parameter.grad
        for total, parameter in zip(sums, model.parameters(), strict=True):
            parameter.grad = total / size if parameter.requires_grad else None
        drawn.clipped(model)
        optimizer.step()
    return model


def routed(
    options: Options, prefix: str, seed: int, saved: dict[str, Any] | None
) -> dict[str, Any]:
    """Trains for some steps under the strategy of ``seed``; gives the state."""
    chance = random.Random(seed)
    drawn = Drawn.by(chance)
    torch.manual_seed(bps.rank())  # the optimizer gives all ranks rank 0's values
    if bps.rank() == 0:
        torch.manual_seed(0)
    model = Wide()
    path = Path(options.out) / f"{prefix}{bps.rank()}.json"
    write_strategy(path, used(model, prefix, drawn, chance))
    optimizer: Any = bps.DistributedOptimizer(
        drawn.optimizer(list(model.parameters())),
        named_parameters=[(prefix + name, p) for name, p in model.named_parameters()],
        model=model,
        backward_passes_per_step=drawn.passes,
        strategy=path,
    )
    first = 0
    if saved is not None:
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["state"])
        first = STEPS
    for iteration in range(first, first + STEPS):
        optimizer.zero_grad()
        losses(model, drawn, iteration, bps.rank(), bps.size())
        drawn.clipped(model)
        if drawn.reads:
            gradients = [p.grad for p in model.parameters() if p.grad is not None]
            assert all(bool(each.isfinite().all()) for each in gradients)
        optimizer.step()
    optimizer.load_sharded_state_dict(optimizer.sharded_state_dict())
    optimizer.finish()
    front = optimizer._front
    layouts = front.synchroniser.mesh.bucketing.layouts
    given = used(model, prefix, *_again(seed)).strategy
    assert [each.parameters for each in layouts] == [each.parameters for each in given.buckets]
    assert [not each.whole for each in layouts] == [each.sharded for each in given.buckets]
    return {
        "model": {name: value.clone() for name, value in model.state_dict().items()},
        "state": optimizer.state_dict(),
        "cut": any(route.is_cut for route in given.routes),
        "shards": optimizer._front.synchroniser.shards,
    }


def _again(seed: int) -> tuple[Drawn, random.Random]:
    chance = random.Random(seed)
    return Drawn.by(chance), chance


def compare(options: Options, seed: int) -> dict[str, Any]:
    """Trains under the strategy of ``seed`` and alone; says how far results are apart."""
    drawn, _ = _again(seed)
    half = routed(options, f"s{seed}.", seed, None)
    gc.collect()  # a name belongs to a parameter while that lives
    ended = routed(options, f"s{seed}b.", seed, half)
    gc.collect()
    expected = alone(drawn, bps.size()).state_dict()
    apart = max(
        float((ended["model"][name] - value).abs().max()) for name, value in expected.items()
    )
    return {
        "seed": seed,
        # Norms of shards are added up, which rounds otherwise than the norm of a whole gradient.
        "rounds": drawn.clip == "norm" and ended["shards"],
        "cut": ended["cut"],
        "shards": ended["shards"],
        "apart": apart,
        "parameters": [value.flatten().tolist() for value in ended["model"].values()],
    }


def rates(descriptors: Sequence[int]) -> list[int]:
    """The limits of sockets in bytes per second, read back from the kernel."""
    found = []
    for number in descriptors:
        known = socket.socket(socket.AF_INET, socket.SOCK_STREAM, fileno=number)
        found.append(struct.unpack("@L", known.getsockopt(socket.SOL_SOCKET, 47, 8))[0])
        known.detach()
    return found


def linear(options: Options) -> dict[str, Any]:
    """A layer of two parameters, each of which goes another way, and one that sees all batches."""
    rank, size = bps.rank(), bps.size()
    torch.manual_seed(rank)
    model = nn.Linear(64, 10)
    if options.compresses:
        bps.declare("Gradient.weight", byteps_compressor_type="onebit")
    if rank == options.odd_on:
        os.environ["BYTEPROPHET_STRATEGY"] += ".odd"
    optimizer: Any = bps.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), model=model
    )
    synchroniser = optimizer._front.synchroniser
    mesh = synchroniser.mesh
    paced: list[int] = []  # the limits of the mesh's sockets after each change
    if synchroniser._pacing is not None:
        limit = synchroniser._pacing._limit

        def change(rate_bps: int) -> None:
            limit(rate_bps)
            paced.extend(rates(mesh._exchange._pace._sockets))

        synchroniser._pacing._limit = change
    torch.manual_seed(0)
    other = nn.Linear(64, 10)
    plain = torch.optim.SGD(other.parameters(), lr=0.1, momentum=0.9)
    began = mesh.sent().payload_bytes
    for iteration in range(1_000_000 if options.dies_at is not None else 10):
        if iteration == options.dies_at:
            (Path(options.out) / f"here-{rank}").touch()
        parts = torch.randn(
            size, 4, 64, generator=torch.Generator().manual_seed(iteration % 100)
        ).tanh()
        optimizer.zero_grad()
        model(parts[rank]).square().mean().backward()
        optimizer.step()
        if options.dies_at is None:
            plain.zero_grad()
            for part in parts:
                (other(part).square().mean() / size).backward()
            plain.step()
    optimizer.finish()
    distributed.barrier()  # what others have, we have sent
    sent_bytes = mesh.sent().payload_bytes - began
    if options.calls:
        getattr(bps, options.calls)(*((size, 1, rank) if options.calls == "resume" else ()))
    return {
        "equal": all(map(torch.equal, model.parameters(), other.parameters())),
        "weight": model.weight.flatten().tolist(),
        "sent_bytes": sent_bytes,
        "paced": paced,
        "limits": rates(mesh._exchange._pace._sockets),
    }


def main() -> None:
    options = Options(**json.loads(sys.argv[1]))
    torch.set_num_threads(1)
    bps.init()
    if options.linear:
        found: Any = linear(options)
    else:
        found = [compare(options, seed) for seed in options.seeds]
    (Path(options.out) / f"rank-{bps.rank()}.json").write_text(json.dumps(found))
    bps.shutdown()


if __name__ == "__main__":
    main()
