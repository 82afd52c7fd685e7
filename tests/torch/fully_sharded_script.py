"""Trains one model in several ways, for ``test_fully_sharded.py``: each from the same start.

    python fully_sharded_script.py FOLDER WAY ...

A way is a ``sync``, and may be followed by ``:KIND``, one of those in ``train``. Or it is
``refused``: what is refused, and with which message. Writes digests of the parameters and of the
optimizer's state.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import io
import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import byteprophet.torch as bps
from byteprophet.errors import UserError
from byteprophet.job import Bucket, Model, Parameter, Strategy
from byteprophet.job.strategy_file import Used, write_strategy

STEPS = 4
LONG = 10
"""Steps in which memory is measured, too."""
WORDS = 11


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm = nn.Linear(7, 7), nn.LayerNorm(7)

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + self.norm(torch.relu(self.inner(inputs)))


class Net(nn.Module):
    """With a tied weight, a frozen layer, buffers, and odd sizes, which ranks share unequally."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 7)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.frozen, self.norm = nn.Linear(7, 7).requires_grad_(False), nn.BatchNorm1d(7)
        self.head = nn.Linear(7, WORDS, bias=False)
        self.head.weight = self.embedding.weight

    def forward(
        self, words: Tensor, *, skipped: int = -1, again: bool = False, recomputed: bool = False
    ) -> Tensor:
        hidden: Any = self.frozen(self.embedding(words))
        for number, block in enumerate([*self.blocks, *self.blocks][: 6 if again else 3]):
            if recomputed:
                hidden = checkpoint(block, hidden, use_reentrant=False)
            elif number != skipped:
                hidden = block(hidden)
        return functional.linear(self.norm(hidden), self.embedding.weight)


def make(sync: str, **told: Any) -> tuple[Net, Any]:
    torch.manual_seed(distributed.get_rank())  # ranks start with rank 0's parameters
    net = Net()
    net.blocks[1].requires_grad_(not told.pop("freezes", False))
    plain = torch.optim.AdamW(net.parameters(), lr=0.01)
    if told.pop("named", False):
        return net, bps.DistributedOptimizer(plain, net.named_parameters(), sync=sync)
    return net, bps.DistributedOptimizer(plain, model=net, sync=sync, **told)


def train(way: str, folder: Path) -> list[str]:
    """The digests of all parameters, and of the optimizer's state."""
    sync, _, kind = way.partition(":")
    rank = distributed.get_rank()
    told: dict[str, Any] = {"named": kind == "unnamed", "freezes": kind == "long"}
    if kind == "units":
        told["strategy"] = write_units(folder / f"units-{rank}.json", sync)
    net, optimizer = make(sync, **told)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    lot = torch.Generator().manual_seed(rank)
    for step in range(LONG if kind == "long" else STEPS):
        if kind != "zeros":
            optimizer.zero_grad()
        if kind == "raised" and step == 1:
            broken_pass(net)
            optimizer.zero_grad()
        for held in (True, False) if kind == "held" else (False,):
            options: dict[str, Any] = {}
            if kind == "skipped":  # rank 1 may leave out another block than rank 0
                options["skipped"] = (step * (1 + rank)) % 4
            elif kind in ("again", "recomputed"):
                options[kind] = True
            with optimizer.no_sync() if held else contextlib.nullcontext():
                words = torch.randint(0, WORDS, (8,), generator=lot)
                outputs = net(words, **options)
                if kind == "zeros":
                    net.zero_grad(set_to_none=step % 2 == 0)
                outputs.square().mean().backward()
        optimizer.step()
        schedule.step()
        with torch.no_grad() if step % 2 else torch.inference_mode():
            net.eval()(torch.arange(3), **options)
        net.train()
        if kind == "saved" and step == 1:
            passed = schedule.state_dict()
            net, optimizer, schedule = resumed(net, optimizer, sync)
            schedule.load_state_dict(passed)
    optimizer.finish()
    state, moments = net.state_dict(), optimizer.state_dict()["state"]
    assert list(state) == list(Net().state_dict())
    return [
        digest(value for name, value in state.items() if "running" not in name),
        digest(moments[number]["exp_avg"] for number in moments),
    ]


def broken_pass(net: Net) -> None:
    """The backward pass ends by an exception after the last block's gradients are handed over."""

    def fail(_gradient: Tensor) -> None:
        raise ValueError("broken")

    handle = net.blocks[1].register_forward_hook(
        lambda _module, _inputs, outputs: outputs.register_hook(fail) and None
    )
    running = {name: each.clone() for name, each in net.named_buffers()}
    with contextlib.suppress(ValueError):
        net(torch.arange(8)).square().mean().backward()
    handle.remove()
    for name, each in net.named_buffers():
        each.copy_(running[name])


def refuses_shards(optimizer: Any, shards: dict[str, Any]) -> None:
    """Those of another rank, and any of them as the whole state."""
    saver = shards.get("byteprophet_saver")
    if saver is None:  # nothing is sharded
        return
    others = {**shards, "byteprophet_saver": {**saver, "rank": 5}}
    refuses(optimizer.load_sharded_state_dict, others, "it was saved by rank 5 of 2")
    refuses(optimizer.load_state_dict, shards, "give it to load_sharded_state_dict() on that rank")


def refuses(load: Callable[[dict[str, Any]], None], state: dict[str, Any], why: str) -> None:
    try:
        load(state)
    except ValueError as error:
        assert why in str(error)  # noqa: PT017
    else:
        raise AssertionError("it was loaded")


def resumed(net: Net, optimizer: Any, sync: str) -> tuple[Net, Any, Any]:
    """A new model, optimizer and schedule; the first two are from the checkpoint of these."""
    state, saved = net.state_dict(), copy.deepcopy(optimizer.state_dict())
    shards = copy.deepcopy(optimizer.sharded_state_dict())
    part = net.blocks[1].state_dict()
    assert torch.equal(part["inner.weight"], state["blocks.1.inner.weight"])
    Net().load_state_dict(state)  # a single process can load it
    net, optimizer = make(sync)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    net.load_state_dict(state)
    optimizer.load_state_dict(saved)
    optimizer.load_sharded_state_dict(shards)
    refuses_shards(optimizer, shards)
    return net, optimizer, schedule


def write_units(path: Path, sync: str) -> Path:
    """A strategy: two blocks are a unit, and then the last one is; the rest is the root's."""
    sizes = {name: each.nbytes for name, each in Net().named_parameters()}
    blocks = [[name for name in sizes if name.startswith(f"blocks.{n}.")] for n in range(3)]
    rest = [name for name in sizes if not name.startswith("blocks.")]
    units = (rest, blocks[0] + blocks[1], blocks[2])
    buckets = tuple(
        Bucket(tuple(unit), 6 - place, place, sharded=True) for place, unit in enumerate(units)
    )
    model = Model(tuple(Parameter(name, size) for name, size in sizes.items()))
    write_strategy(path, Used(model, Strategy(sync, buckets), 0))
    return path


def digest(tensors: Iterable[Tensor]) -> str:
    joined = b"".join(each.detach().contiguous().numpy().tobytes() for each in tensors)
    return hashlib.sha256(joined).hexdigest()


def clipped_norm(sync: str) -> float:
    net, optimizer = make(sync)
    net(torch.arange(WORDS)).square().mean().backward()
    optimizer.synchronize()
    norm = nn.utils.clip_grad_norm_(net.parameters(), 0.01)
    with optimizer.skip_synchronize():
        optimizer.step()
    optimizer.finish()
    return float(norm)


def refused() -> dict[str, str]:
    """What is refused, and how."""
    found: dict[str, str] = {}
    words = torch.arange(WORDS)

    def attempt(name: str, call: Callable[[], object]) -> None:
        try:
            call()
            found[name] = ""
        except (RuntimeError, UserError, ValueError) as error:
            found[name] = str(error)

    attempt("passes", lambda: make("fsdp2", backward_passes_per_step=2))
    attempt("compression", lambda: make("fsdp2", compression=bps.Compression.fp16))
    attempt("owners", lambda: make("fsdp2", owners=[1, 2]))
    attempt("fusion", lambda: make("fsdp2", fusion=100))
    net, optimizer = make("fsdp2")
    attempt("part", lambda: net.blocks[0](torch.ones(2, 7)))
    attempt("two", lambda: bps.DistributedOptimizer(plain_of(net), model=net, sync="fsdp2"))
    attempt("assign", lambda: net.load_state_dict(Net().state_dict(), assign=True))
    attempt("pickled", lambda: torch.save(optimizer, io.BytesIO()))
    attempt("copied", lambda: copy.deepcopy(optimizer))
    with optimizer.no_sync():
        net(words).mean().backward()
    attempt("held", optimizer.step)
    hooked = net.head.weight.register_hook(lambda gradient: gradient)
    attempt("hook", lambda: net(words))
    hooked.remove()
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(3))]})
    net(words).mean().backward()
    attempt("added", optimizer.step)
    stepped = Net()
    plain = plain_of(stepped)
    stepped(words).mean().backward()
    plain.step()
    attempt("state", lambda: bps.DistributedOptimizer(plain, model=stepped, sync="fsdp2"))
    net = Net()
    optimizer = bps.DistributedOptimizer(plain_of(net), sync="fsdp2")
    functional.linear(torch.ones(2, 7), net.head.weight).sum().backward()
    attempt("by hand", optimizer.step)
    net, optimizer = make("fsdp2")
    attempt("alone", lambda: alone(net, words))
    os.environ["BYTEPROPHET_TIMEOUT_S"] = "1"
    net, optimizer = make("fsdp2")
    if distributed.get_rank() == 0:
        attempt("missing", net.state_dict)
    else:
        time.sleep(2)
    return found


def plain_of(net: Net) -> torch.optim.Optimizer:
    return torch.optim.AdamW(net.parameters(), lr=0.01)


def alone(net: Net, words: Tensor) -> None:
    """Rank 0 evaluates while the other one trains."""
    with torch.set_grad_enabled(distributed.get_rank() != 0):
        net(words)


def main() -> None:
    folder, *ways = sys.argv[1:]
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    trained = [way for way in ways if way not in ("refused", "norms")]
    results: dict[str, Any] = {way: train(way, Path(folder)) for way in trained}
    if "norms" in ways:
        results["norms"] = [clipped_norm("allreduce"), clipped_norm("fsdp2")]
    if "refused" in ways:
        results["refused"] = refused()
    path = Path(folder) / f"rank-{distributed.get_rank()}.json"
    path.write_text(json.dumps(results))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
