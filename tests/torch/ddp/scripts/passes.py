"""Backward passes of unusual kinds, gradients cleared anywhere, copies, wrappers that go."""

from __future__ import annotations

import copy
import gc
import io
from collections.abc import Iterable

import torch
from common import STEPS, batch, loss_of, script, start, state_of, train, wrap, wrapped
from torch import Tensor, distributed
from torch.nn.utils import parameters_to_vector, vector_to_parameters


@script
def backward_twice_through_one_graph() -> Iterable[Tensor]:
    model, ddp = start()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(ddp, step)
        loss.backward(retain_graph=True)  # the second pass adds what this rank alone has
        loss.backward()
        optimizer.step()
    return model.parameters()


@script
def gradients_by_autograd_grad() -> Iterable[Tensor]:
    model, ddp = start()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(STEPS):
        found = torch.autograd.grad(loss_of(ddp, step), [*model.parameters()])
        for parameter, gradient in zip(model.parameters(), found, strict=True):
            distributed.all_reduce(gradient)
            parameter.grad = gradient / distributed.get_world_size()
        optimizer.step()
        train(ddp, optimizer, [step])
    return model.parameters()


@script
def zero_grad_in_odd_places() -> Iterable[Tensor]:
    model, ddp = start()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    for step in range(2 * STEPS):
        loss = loss_of(ddp, step)
        if step % 4 == 0:
            optimizer.zero_grad()
        loss.backward()
        if step % 4 == 1:
            optimizer.zero_grad()  # nothing is left for step()
        if step % 4 == 2:
            model.out.zero_grad(set_to_none=False)
            model.middle.weight.grad = None
        optimizer.step()
        if step % 4 == 3:
            ddp.zero_grad()
            optimizer.zero_grad(set_to_none=False)
    return model.parameters()


@script
def steps_without_backward() -> Iterable[Tensor]:
    model, ddp = start()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    optimizer.step()
    for step in range(STEPS):
        train(ddp, optimizer, [step])
        optimizer.step()  # the same gradients once more
        optimizer.zero_grad()
        optimizer.step()
    return [*model.parameters(), *state_of(optimizer)]


@script
def forwards_without_backward() -> Iterable[Tensor]:
    model, ddp = start()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    seen = []
    for step in range(STEPS):
        seen.append(loss_of(ddp, step + 50).detach())
        losses = [loss_of(ddp, step), loss_of(ddp, step + 100)]
        optimizer.zero_grad()
        losses[step % 2].backward()
        optimizer.step()
    return [*model.parameters(), *seen]


@script
def copies_are_trained() -> Iterable[Tensor]:
    model, ddp = start()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    train(ddp, optimizer)
    twin, twins = copy.deepcopy((ddp, optimizer))
    train(ddp, optimizer, range(STEPS, STEPS + 3))
    train(twin, twins, range(STEPS, 2 * STEPS))
    train(ddp, optimizer, range(STEPS + 3, STEPS + 6))
    states = [*state_of(optimizer), *state_of(twins)]
    return [*model.parameters(), *twin.parameters(), *states]


@script
def wrapper_and_optimizer_are_saved_whole() -> Iterable[Tensor]:
    model, ddp = start()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    train(ddp, optimizer)
    file = io.BytesIO()
    torch.save((ddp, optimizer), file)
    train(ddp, optimizer, range(STEPS, STEPS + 3))
    file.seek(0)
    loaded, its = torch.load(file, weights_only=False)
    train(loaded, its, range(STEPS, 2 * STEPS))
    same_class = torch.tensor(type(its) is torch.optim.AdamW)
    return [*model.parameters(), *loaded.parameters(), *state_of(its), same_class]


@script
def the_wrapper_is_deleted() -> Iterable[Tensor]:
    model, ddp = start()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    train(ddp, optimizer)
    wrapped.clear()
    del ddp
    gc.collect()
    for step in range(STEPS):  # each rank by itself
        optimizer.zero_grad()
        model(batch(step)).square().mean().backward()
        optimizer.step()
    train(wrap(model), optimizer)  # rank 0's parameters, each rank's momentum
    return [*model.parameters(), *_folds()]


def _folds() -> Iterable[Tensor]:
    """Those of three models, one after the other, of which rank 0 alone keeps the earlier ones."""
    kept = []
    for _ in range(3):
        wrapped.clear()
        model, ddp = start()
        train(ddp, torch.optim.AdamW(ddp.parameters(), lr=0.01), range(3))
        yield from (parameter.detach().clone() for parameter in model.parameters())
        if distributed.get_rank() == 0:
            kept.append(ddp)
        del ddp, model
        gc.collect()


@script
def parameters_are_set_from_a_vector() -> Iterable[Tensor]:
    model, ddp = start()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    train(ddp, optimizer)
    with torch.no_grad():
        vector = parameters_to_vector(model.parameters())
        vector_to_parameters(vector * 0.9, model.parameters())
    train(ddp, optimizer, range(STEPS, 2 * STEPS))
    return model.parameters()


@script
def a_call_with_other_parameters() -> Iterable[Tensor]:
    model, ddp = start()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen: list[Tensor] = []
    for step in range(STEPS):
        train(ddp, optimizer, [step])
        others = {
            name: (2 * parameter.detach()).requires_grad_()
            for name, parameter in ddp.named_parameters()
        }
        torch.func.functional_call(ddp, others, batch(step)).square().mean().backward()
        seen.extend(other.grad for other in others.values() if other.grad is not None)
    return [*model.parameters(), *seen]
