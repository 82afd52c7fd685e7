"""Models: frozen, checkpointed, tied, compiled, several in one job, of other types."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from common import STEPS, Net, batch, script, start, train, wrap
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel


@script
def bfloat16_model() -> Iterable[Tensor]:
    model = Net().bfloat16()
    ddp = wrap(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    for step in range(STEPS):
        optimizer.zero_grad()
        ddp(batch(step).bfloat16()).square().mean().backward()
        optimizer.step()
    return [parameter.float() for parameter in model.parameters()]


@script
def frozen_layers() -> Iterable[Tensor]:
    model = Net()
    model.middle.requires_grad_(False)
    ddp = wrap(model)
    train(ddp, torch.optim.AdamW(model.parameters(), lr=0.01))
    return model.parameters()


@script
def layers_are_unfrozen_and_wrapped_again() -> Iterable[Tensor]:
    model = Net()
    model.into.requires_grad_(False)
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    train(ddp, optimizer)
    model.into.requires_grad_(True)
    del ddp
    train(wrap(model), optimizer, range(STEPS, 2 * STEPS))
    return model.parameters()


@script
def checkpointed_layers() -> Iterable[Tensor]:
    result: list[Tensor] = []
    for kind in ("reentrant", "not reentrant"):
        model = Net()
        model.checkpoints = kind
        ddp = wrap(model)
        train(ddp, torch.optim.SGD(model.parameters(), lr=0.1))
        result += model.parameters()
    return result


@script
def two_models_of_a_gan() -> Iterable[Tensor]:
    makes = nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 6))
    judges = nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 1))
    maker, judge = wrap(makes), wrap(judges)
    of_maker = torch.optim.Adam(maker.parameters(), lr=0.01)
    of_judge = torch.optim.Adam(judge.parameters(), lr=0.01)
    for step in range(STEPS):
        of_judge.zero_grad()
        made = maker(batch(step))
        (judge(made.detach()).mean() - judges(batch(step + 50)).mean()).backward()
        of_judge.step()
        of_maker.zero_grad()
        (-judge(made).mean()).backward()
        of_maker.step()
    return [*makes.parameters(), *judges.parameters()]


@script
def one_optimizer_of_two_models() -> Iterable[Tensor]:
    one, two = nn.Linear(6, 40), nn.Linear(40, 3)
    first, second = wrap(one), wrap(two)
    optimizer = torch.optim.AdamW([*first.parameters(), *second.parameters()], lr=0.01)
    for step in range(STEPS):
        optimizer.zero_grad()
        second(first(batch(step)).tanh()).square().mean().backward()
        optimizer.step()
    return [*one.parameters(), *two.parameters()]


@script
def a_model_beside_it_is_not_wrapped() -> Iterable[Tensor]:
    """Each rank has another one, and parameters of its own that no exchange could carry."""
    model = Net()
    model.register_parameter("table", nn.Parameter(torch.zeros(3, dtype=torch.uint8), False))
    model._ddp_params_and_buffers_to_ignore = ["more.bias"]  # type: ignore[assignment]
    ddp = wrap(model)
    rank = distributed.get_rank()
    torch.manual_seed(rank)
    local = nn.Sequential(nn.Linear(3, 5 + rank), nn.Linear(5 + rank, 1))
    with torch.no_grad():
        model.more.bias.add_(rank)
        model.out.bias.add_(rank)  # it is averaged, and never was equal
    result: list[Tensor] = []
    for kind, rate in ((torch.optim.SGD, 0.1), (torch.optim.AdamW, 0.01)):
        optimizer = kind([*local.parameters(), *ddp.parameters()], lr=rate)
        for step in range(STEPS):
            optimizer.zero_grad()
            local(ddp(batch(step))).square().mean().backward()
            optimizer.step()
        result += [*model.parameters(), *local.parameters()]
    return [each.detach().clone() for each in result]


@script
def several_forwards_and_tied_weights() -> Iterable[Tensor]:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.decode = nn.Embedding(50, 32), nn.Linear(32, 50, bias=False)
            self.decode.weight = self.embed.weight

        def forward(self, tokens: Tensor) -> Tensor:
            result: Tensor = self.decode(self.embed(tokens).tanh())
            return result

    model, ddp = start(Tied)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(STEPS):
        optimizer.zero_grad()
        tokens = [batch(2 * step + part).abs().mul(10).long().clamp(max=49) for part in range(2)]
        sum(ddp(each).square().mean() for each in tokens).backward()
        optimizer.step()
    return model.parameters()


@script
def compiled_outside() -> Iterable[Tensor]:
    model, ddp = start()
    train(torch.compile(ddp, backend="aot_eager"), torch.optim.SGD(model.parameters(), lr=0.1))
    return model.parameters()


@script
def compiled_inside() -> Iterable[Tensor]:
    model = Net()
    ddp = wrap(torch.compile(model, backend="aot_eager"))
    train(ddp, torch.optim.AdamW(ddp.parameters(), lr=0.01))
    return model.parameters()


@script
def whole_iterations_are_compiled() -> Iterable[Tensor]:
    model, ddp = start()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @torch.compile(backend="eager")
    def iteration(inputs: Tensor) -> None:
        loss: Tensor = ddp(inputs).square().mean()
        loss.backward()

    for step in range(STEPS):
        optimizer.zero_grad()
        iteration(batch(step))
        optimizer.step()
    return model.parameters()


@script
def compiled_in_place() -> Iterable[Tensor]:
    model = Net()
    model.middle.compile(backend="aot_eager")
    ddp = wrap(model)
    train(ddp, torch.optim.AdamW(ddp.parameters(), lr=0.01))
    return model.parameters()
