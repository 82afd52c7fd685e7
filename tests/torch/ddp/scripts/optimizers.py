"""Optimizers: kinds, groups, several of them, wrappers, and their state."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Iterable
from typing import Any

import torch
from common import STEPS, Net, batch, loss_of, script, start, state_of, train, wrap
from torch import Tensor, distributed
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn, update_bn


@script
def plain_sgd() -> Iterable[Tensor]:
    model, ddp = start()
    train(ddp, torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9))
    return model.parameters()


@script
def adamw_and_its_state() -> Iterable[Tensor]:
    model, ddp = start()
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=0.01)
    train(ddp, optimizer)
    return [*model.parameters(), *state_of(optimizer)]


@script
def optimizer_made_before_the_model_is_wrapped() -> Iterable[Tensor]:
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    train(wrap(model), optimizer)
    return model.parameters()


@script
def parameter_groups_and_a_schedule() -> Iterable[Tensor]:
    model, ddp = start()
    groups: list[dict[str, Any]] = [
        {"params": [p for p in ddp.parameters() if p.ndim > 1], "weight_decay": 0.1},
        {"params": [p for p in ddp.parameters() if p.ndim == 1], "weight_decay": 0.0, "lr": 0.02},
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=STEPS + 1)
    for step in range(STEPS):
        train(ddp, optimizer, [step])
        schedule.step()
    return model.parameters()


@script
def two_optimizers_of_one_model() -> Iterable[Tensor]:
    model, ddp = start()
    body = [p for name, p in model.named_parameters() if not name.startswith("out")]
    one = torch.optim.SGD(body, lr=0.1)
    two = torch.optim.Adam(model.out.parameters(), lr=0.01)
    for step in range(STEPS):
        ddp.zero_grad()
        loss_of(ddp, step).backward()
        one.step()
        if step % 2:
            two.step()
    return model.parameters()


@script
def an_optimizer_is_replaced() -> Iterable[Tensor]:
    model, ddp = start()
    train(ddp, torch.optim.Adam(ddp.parameters(), lr=0.01))
    train(ddp, torch.optim.SGD(ddp.parameters(), lr=0.1), range(STEPS, 2 * STEPS))
    return model.parameters()


@script
def a_group_is_added() -> Iterable[Tensor]:
    model, ddp = start()
    optimizer = torch.optim.Adam(model.out.parameters(), lr=0.01)
    train(ddp, optimizer)
    model.zero_grad()
    optimizer.add_param_group({"params": list(model.into.parameters()), "lr": 0.005})
    train(ddp, optimizer, range(STEPS, 2 * STEPS))
    optimizer.param_groups[0]["params"].append(model.middle.weight)
    train(ddp, optimizer, range(3))
    optimizer.param_groups.pop()
    train(ddp, optimizer, range(3))
    return model.parameters()


@script
def own_optimizer_class() -> Iterable[Tensor]:
    class Sign(torch.optim.Optimizer):
        def __init__(self, params: Any) -> None:
            super().__init__(params, {"lr": 0.001})

        @torch.no_grad()
        def step(self, closure: Any = None) -> None:
            for group in self.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        parameter.add_(parameter.grad.sign(), alpha=-group["lr"])

    model, ddp = start()
    train(ddp, Sign(ddp.parameters()))
    return model.parameters()


@script
def sharpness_aware_wrapper() -> Iterable[Tensor]:
    class Sam(torch.optim.Optimizer):
        def __init__(self, params: Any) -> None:
            super().__init__(params, {})
            self.base = torch.optim.SGD(self.param_groups, lr=0.1)
            self.param_groups = self.base.param_groups

        @torch.no_grad()
        def climb(self) -> None:
            self.old = [p.clone() for group in self.param_groups for p in group["params"]]
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.add_(parameter.grad, alpha=0.05)
            self.zero_grad()

        @torch.no_grad()
        def step(self, closure: Any = None) -> None:
            parameters = [p for group in self.param_groups for p in group["params"]]
            for parameter, old in zip(parameters, self.old, strict=True):
                parameter.data = old
            self.base.step()
            self.zero_grad()

    model, ddp = start()
    optimizer = Sam(model.parameters())
    for step in range(STEPS):
        loss_of(ddp, step).backward()
        optimizer.climb()
        loss_of(ddp, step).backward()
        optimizer.step()
    return model.parameters()


def evaluation(optimizer: torch.optim.Optimizer, ddp: Any, step: int) -> Callable[[], Tensor]:
    """The closure of a step."""

    def evaluate() -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(ddp, step)
        loss.backward()
        return loss

    return evaluate


@script
def closure() -> Iterable[Tensor]:
    model, ddp = start()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        optimizer.step(evaluation(optimizer, ddp, step))
    return model.parameters()


@script
def own_optimizer_class_that_evaluates_twice() -> Iterable[Tensor]:
    """It also clears gradients without an argument."""

    class Sam(torch.optim.AdamW):
        def zero_grad(self) -> None:  # type: ignore[override]
            super().zero_grad()

        @torch.no_grad()
        def step(self, closure: Any = None) -> Any:
            with torch.enable_grad():
                first = closure()
            parameters = [p for group in self.param_groups for p in group["params"]]
            old = [p.clone() for p in parameters]
            for parameter in parameters:
                parameter.add_(parameter.grad, alpha=0.05)
            with torch.enable_grad():
                second = closure()
            for parameter, before in zip(parameters, old, strict=True):
                parameter.copy_(before)
            super().step()
            return first, second

    model, ddp = start()
    optimizer = Sam(model.parameters(), lr=0.01)
    losses = []
    for step in range(STEPS):
        losses += optimizer.step(evaluation(optimizer, ddp, step))
    return [*losses, *model.parameters()]


@script
def hooks_of_the_optimizer() -> Iterable[Tensor]:
    model, ddp = start()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    seen: list[Tensor] = []
    optimizer.register_step_pre_hook(lambda *_: seen.append(model.out.weight.grad.clone()))
    optimizer.register_step_post_hook(lambda *_: seen.append(model.out.weight.clone()))
    train(ddp, optimizer)
    return [*model.parameters(), *seen]


@script
def rank_0_saves_and_all_resume() -> Iterable[Tensor]:
    def saved(ddp: Any, optimizer: Any) -> list[Any]:
        held: list[Any] = [None]
        if distributed.get_rank() == 0:
            file = io.BytesIO()
            torch.save({"model": ddp.state_dict(), "optimizer": optimizer.state_dict()}, file)
            held = [file.getvalue()]
        distributed.broadcast_object_list(held)
        return held

    model, ddp = start()
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=0.01)
    train(ddp, optimizer)
    (file,) = saved(ddp, optimizer)
    train(ddp, optimizer, range(STEPS, STEPS + 2))  # lost
    loaded = torch.load(io.BytesIO(file))
    model, ddp = start()
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=0.5)
    ddp.load_state_dict(loaded["model"])
    optimizer.load_state_dict(loaded["optimizer"])
    train(ddp, optimizer, range(STEPS, 2 * STEPS))
    return [*model.parameters(), *state_of(optimizer)]


@script
def state_is_loaded_in_the_middle() -> Iterable[Tensor]:
    model, ddp = start()
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=0.01)
    train(ddp, optimizer)
    kept = copy.deepcopy((ddp.state_dict(), optimizer.state_dict()))
    train(ddp, optimizer, range(STEPS))
    ddp.load_state_dict(kept[0])
    optimizer.load_state_dict(kept[1])
    train(ddp, optimizer, range(STEPS, 2 * STEPS))
    return [*model.parameters(), *state_of(optimizer)]


@script
def moving_average_of_weights() -> Iterable[Tensor]:
    model, ddp = start()
    average = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=0.01)
    for step in range(STEPS):
        train(ddp, optimizer, [step])
        with torch.no_grad():
            for mine, its in zip(average.parameters(), model.parameters(), strict=True):
                mine.mul_(0.9).add_(its.data, alpha=0.1)
    return [*model.parameters(), *average.parameters()]


@script
def swa_and_ema_of_torch() -> Iterable[Tensor]:
    model, ddp = start(lambda: Net(norm=True))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    ema = AveragedModel(ddp, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    swa = AveragedModel(model)
    schedule = SWALR(optimizer, swa_lr=0.05)
    for step in range(STEPS):
        train(ddp, optimizer, [step])
        ema.update_parameters(ddp)
        if step > STEPS // 2:
            swa.update_parameters(model)
            schedule.step()
    update_bn([batch(step, 0) for step in range(3)], swa)
    return [*model.parameters(), *ema.module.parameters(), *swa.state_dict().values()]


@script
def optimizers_that_end_with_their_functions() -> Iterable[Tensor]:
    """What follows uses gradients without any optimizer, and then with another one."""
    model, ddp = start()

    def fit() -> None:
        train(ddp, torch.optim.SGD(model.parameters(), lr=0.1), range(3))

    fit()
    seen = []
    for step in range(3, 6):
        ddp.zero_grad()
        loss_of(ddp, step).backward()
        seen += [p.grad.clone() for p in model.parameters() if p.grad is not None]
        with torch.no_grad():
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter -= 0.05 * parameter.grad
    fit()
    return [*model.parameters(), *seen]


@script
def an_optimizer_is_replaced_within_an_iteration() -> Iterable[Tensor]:
    """Between forward and backward, between backward and the step, and never for a new one."""
    model, ddp = start()
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(ddp, optimizer, range(2))
    ddp.zero_grad()
    loss = loss_of(ddp, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    loss.backward()
    optimizer.step()
    ddp.zero_grad()
    loss_of(ddp, 3).backward()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.step()
    train(ddp, optimizer, range(4, 6))
    ddp.zero_grad()
    loss_of(ddp, 6).backward()
    del optimizer
    return [*model.parameters(), *(p.grad for p in model.parameters() if p.grad is not None)]
