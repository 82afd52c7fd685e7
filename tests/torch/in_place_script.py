"""Trains one model in several ways, for ``test_in_place.py``: each from the same start.

    python in_place_script.py FOLDER WAY ...

A way is a ``sync``, and may be followed by ``:unnamed`` (the optimizer is not told of the model),
``:taken`` (another optimizer, which lives on, had the parameters before) or ``:held`` (every second
backward pass only accumulates). Or it is ``refused``: what is refused, and with which message.
Writes the digests of parameters and of the optimizer's state.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import io
import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import byteprophet.torch as bps
from byteprophet.errors import UserError

STEPS = 6


class Model(nn.Module):
    """With a frozen parameter, a buffer, and a parameter that the optimizer does not have."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 20), nn.Linear(20, 20)
        self.norm, self.last = nn.BatchNorm1d(20), nn.Linear(20, 2)
        self.second.bias.requires_grad_(False)
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, inputs: Tensor, *, factor: float = 1.0) -> Tensor:
        hidden = torch.relu(self.norm(self.second(torch.relu(self.first(inputs)))))
        outputs: Tensor = self.last(hidden) * self.scale.detach() * factor
        return outputs


def parameters_of(model: Model) -> list[nn.Parameter]:
    return [each for name, each in model.named_parameters() if name != "scale"]


def train(way: str) -> list[str]:
    """The digests of all parameters, and of the optimizer's state."""
    sync, _, kind = way.partition(":")
    rank = distributed.get_rank()
    torch.manual_seed(rank)  # ranks start with rank 0's parameters
    model = Model()
    optimizer: Any = torch.optim.AdamW(parameters_of(model), lr=0.01)
    told = {} if kind == "unnamed" else {"model": model}
    if kind == "taken":
        before = torch.optim.SGD(parameters_of(model), lr=0.01)
        bps.DistributedOptimizer(before, model=model, sync="allreduce")
    optimizer = bps.DistributedOptimizer(optimizer, sync=sync, **told)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    lot = torch.Generator().manual_seed(rank)
    for _ in range(STEPS):
        optimizer.zero_grad()
        for held in (True, False) if kind == "held" else (False,):
            with optimizer.no_sync() if held else contextlib.nullcontext():
                loss = model(torch.randn(8, 6, generator=lot), factor=2.0).square().mean()
                loss.backward()
        optimizer.synchronize()
        torch.nn.utils.clip_grad_norm_(parameters_of(model), 0.5)
        with optimizer.skip_synchronize():
            optimizer.step()
        schedule.step()
        with torch.no_grad():
            model.eval()(torch.ones(2, 6))
        model.train()
    optimizer.finish()
    state = optimizer.state_dict()
    moments = [state["state"][number]["exp_avg"] for number in state["state"]]
    return [_digest(list(model.parameters())), _digest(moments)]


def _digest(tensors: list[Tensor]) -> str:
    joined = b"".join(each.detach().numpy().tobytes() for each in tensors)
    return hashlib.sha256(joined).hexdigest()


def refused() -> dict[str, str]:
    """What is refused, and how."""
    found: dict[str, str] = {}

    def attempt(name: str, **arguments: Any) -> None:
        model = Model()
        if arguments.pop("compiled", False):
            model.compile()
        optimizer = torch.optim.SGD(parameters_of(model), lr=0.1)
        try:
            bps.DistributedOptimizer(optimizer, model=model, sync="ddp", **arguments)
            found[name] = ""
        except (RuntimeError, UserError, ValueError) as error:
            found[name] = str(error)

    attempt("passes", backward_passes_per_step=2)
    attempt("compression", compression=bps.Compression.fp16)
    attempt("owners", owners=[1, 2])
    attempt("compiled", compiled=True)
    model = Model()
    two = [torch.optim.SGD([*half.parameters()], lr=0.1) for half in (model.first, model.last)]
    bps.DistributedOptimizer(two[0], model=model, sync="ddp")
    try:
        bps.DistributedOptimizer(two[1], model=model, sync="ddp")
    except RuntimeError as error:
        found["two"] = str(error)
    found |= {name: refused_other(name) for name in ("again", "before", "horovod", "within")}
    found["thawed"] = thawed()
    found |= {name: unused(name) for name in ("unused", "frozen")}
    found["called"] = called()
    found |= {name: by_closure(name) for name in ("model", "forward")}
    found["by hand"] = by_hand()
    found["order"] = in_other_order()
    found["copied"] = copied()
    return found


def refused_other(name: str) -> str:
    """What is said of an optimizer, or of a model, whose gradients are exchanged already."""
    model: Any = Model()
    plain: Any = torch.optim.SGD(parameters_of(model), lr=0.1)
    sync = "ddp"
    if name == "again":
        plain = bps.DistributedOptimizer(plain, model=model, sync="allreduce")
    elif name == "before":
        bps.DistributedOptimizer(plain, model=model, sync="ddp")
        plain, sync = torch.optim.SGD(parameters_of(model), lr=0.1), "allreduce"
    elif name == "horovod":
        plain.__class__ = type("Other", (torch.optim.SGD,), {"__module__": "horovod.torch"})
    elif name == "within":
        model.last = DistributedDataParallel(model.last)
    try:
        bps.DistributedOptimizer(plain, model=model, sync=sync)
    except (RuntimeError, ValueError) as error:
        return str(error)
    return ""


def said_by_step(optimizer: torch.optim.Optimizer) -> str:
    """What ``step()`` raises; "" if nothing."""
    try:
        optimizer.step()
    except RuntimeError as error:
        return str(error)
    return ""


def called() -> str:
    """What is said at the first step() without a forward pass of the model itself."""
    model = Model()
    plain = torch.optim.SGD(parameters_of(model), lr=0.1)
    optimizer: Any = bps.DistributedOptimizer(plain, model=model, sync="ddp")
    model(torch.ones(8, 6)).sum().backward()
    optimizer.step()
    optimizer.step()  # the same gradients once more
    with optimizer.no_sync():
        model(torch.ones(8, 6)).sum().backward()
    model.forward(torch.ones(8, 6)).sum().backward()
    return said_by_step(optimizer)


def unused(name: str) -> str:
    """What is said of a layer that a pass leaves out, or that is frozen after a step."""
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = bps.DistributedOptimizer(optimizer, model=model, sync="ddp")
    if name == "frozen":
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        model[0].requires_grad_(False)
    else:
        model.forward = model[1].forward  # type: ignore[method-assign]
    model(torch.ones(2, 3)).sum().backward()
    return said_by_step(optimizer)


def by_closure(name: str) -> str:
    """What is said at the first step() whose closure calls the model, or its forward() only."""
    model = Model()
    optimizer: Any = torch.optim.SGD(parameters_of(model), lr=0.1)
    optimizer = bps.DistributedOptimizer(optimizer, model=model, sync="ddp")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = (model if name == "model" else model.forward)(torch.ones(8, 6)).sum()
        loss.backward()
        return loss

    before = model.last.bias.detach().clone()
    try:
        optimizer.step(closure)
        optimizer.step(closure=closure)
    except RuntimeError as error:
        assert torch.equal(model.last.bias, before)
        return str(error)
    assert not torch.equal(model.last.bias, before)
    return ""


def by_hand() -> str:
    """What is said at step() if the model is not known, and no module's call has shown it."""
    model = Model()
    plain = torch.optim.SGD(model.first.parameters(), lr=0.1)
    optimizer = bps.DistributedOptimizer(plain, sync="ddp")
    optimizer.step()  # without gradients, there is nothing to say
    functional.linear(torch.ones(2, 6), model.first.weight, model.first.bias).sum().backward()
    return said_by_step(optimizer)


def in_other_order() -> str:
    """What is said if rank 1 has its groups in another order than rank 0."""
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    layers = [*model][:: 1 if distributed.get_rank() == 0 else -1]
    plain = torch.optim.SGD([{"params": [*layer.parameters()]} for layer in layers], lr=0.1)
    try:
        bps.DistributedOptimizer(plain, model=model, sync="ddp")
    except UserError as error:
        return str(error)
    return ""


def copied() -> str:
    """What is wrong with copies of a model: they are plain models."""
    model = Model()
    plain = torch.optim.SGD(parameters_of(model), lr=0.1)
    bps.DistributedOptimizer(plain, model=model, sync="ddp")
    model(torch.ones(8, 6)).sum().backward()
    saved = io.BytesIO()
    torch.save(model, saved)
    saved.seek(0)
    for each in (copy.deepcopy(model), torch.load(saved, weights_only=False)):
        each.zero_grad()
        rank = distributed.get_rank()
        each(torch.full((8, 6), 1.0 + rank)).sum().backward()
        gradients = [torch.empty_like(each.last.bias.grad) for _ in range(2)]
        weights = [torch.empty_like(each.first.weight.grad) for _ in range(2)]
        distributed.all_gather(gradients, each.last.bias.grad)
        distributed.all_gather(weights, each.first.weight.grad)
        if not torch.equal(*gradients) or torch.equal(*weights):
            return "gradients of a copy are not each rank's own"
    return ""


def thawed() -> str:
    """What is said of a layer that is no longer frozen, at the first step that would update it."""
    model = Model()
    model.first.requires_grad_(False)
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = bps.DistributedOptimizer(plain, model=model, sync="ddp")
    optimizer.step()
    model.first.requires_grad_(True)
    return said_by_step(optimizer)


def main() -> None:
    folder, *ways = sys.argv[1:]
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    results: dict[str, Any] = {way: train(way) for way in ways if way != "refused"}
    if "refused" in ways:
        results["refused"] = refused()
    path = Path(folder) / f"rank-{distributed.get_rank()}.json"
    path.write_text(json.dumps(results))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
