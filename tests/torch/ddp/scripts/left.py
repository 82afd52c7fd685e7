"""What byteprophet leaves to DistributedDataParallel."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from common import STEPS, Net, batch, loss_of, script, start, train, wrap
from torch import Tensor, distributed, nn


@script
def uneven_inputs_with_join() -> Iterable[Tensor]:
    model, ddp = start()
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    train(ddp, optimizer)
    with ddp.join():
        train(ddp, optimizer, range(STEPS, 2 * STEPS - 2 * distributed.get_rank()))
    return model.parameters()


@script
def communication_hook() -> Iterable[Tensor]:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    model, ddp = start()
    ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
    train(ddp, torch.optim.SGD(ddp.parameters(), lr=0.1))
    return model.parameters()


@script
def communication_hook_in_the_middle() -> Iterable[Tensor]:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    model, ddp = start()
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=0.01)
    train(ddp, optimizer)
    ddp.register_comm_hook(None, default_hooks.allreduce_hook)
    train(ddp, optimizer, range(STEPS, 2 * STEPS))
    return model.parameters()


@script
def communication_hook_between_forward_and_backward() -> Iterable[Tensor]:
    """Of another model, as in a GAN: the backward pass of the first one still has its averages."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    one, first = start()
    two, second = start(lambda: nn.Linear(3, 3))
    optimizers = [torch.optim.AdamW(each.parameters(), lr=0.01) for each in (first, second)]
    for step in range(STEPS):
        for optimizer in optimizers:
            optimizer.zero_grad()
        output = first(batch(step))
        if step == STEPS // 2:
            second.register_comm_hook(None, default_hooks.allreduce_hook)
        second(output).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()
    return [*one.parameters(), *two.parameters()]


@script
def all_reduce_of_some_parameters_is_delayed() -> Iterable[Tensor]:
    model = Net()
    # Those of ``out`` are reduced when the gradient of ``into.weight``, the last one, is ready.
    delayed = [(name, each) for name, each in model.named_parameters() if "out" in name]
    ddp = wrap(
        model, delay_all_reduce_named_params=delayed, param_to_hook_all_reduce=model.into.weight
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(ddp, step).backward()
        distributed.barrier()  # waits for what was begun before: torch itself does not, on CPUs
        optimizer.step()
    return model.parameters()


@script
def zero_redundancy_optimizer() -> Iterable[Tensor]:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model, ddp = start()
    train(ddp, ZeroRedundancyOptimizer(ddp.parameters(), torch.optim.AdamW, lr=0.01))
    return model.parameters()


@script
def lbfgs() -> Iterable[Tensor]:
    model, ddp = start()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)

    def evaluate() -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(ddp, 0)
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(evaluate)
    return model.parameters()


@script
def two_optimizers_of_the_same_parameters() -> Iterable[Tensor]:
    model, ddp = start()
    one = torch.optim.SGD(model.parameters(), lr=0.1)
    two = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(STEPS):
        train(ddp, two if step % 2 else one, [step])
    return model.parameters()


@script
def sparse_embedding() -> Iterable[Tensor]:
    model = nn.Sequential(nn.Embedding(50, 16, sparse=True), nn.Linear(16, 3))
    ddp = wrap(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        optimizer.zero_grad()
        ddp(batch(step).abs().mul(10).long().clamp(max=49)).square().mean().backward()
        optimizer.step()
    return model.parameters()


@script
def a_group_of_its_own() -> Iterable[Tensor]:
    alone = [distributed.new_group([rank]) for rank in range(distributed.get_world_size())]
    model, ddp = start(process_group=alone[distributed.get_rank()])
    train(ddp, torch.optim.SGD(model.parameters(), lr=0.1))
    return model.parameters()


@script
def hooks_after_gradients() -> Iterable[Tensor]:
    model, ddp = start()

    def halve(parameter: Tensor) -> None:
        parameter.grad.mul_(0.5)

    def clip(parameter: Tensor) -> None:
        parameter.grad.clamp_(-0.001, 0.001)  # that of this rank

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(halve)
    train(ddp, torch.optim.SGD(model.parameters(), lr=0.1))
    later, its = start()
    optimizer = torch.optim.AdamW(later.parameters(), lr=0.01)
    train(its, optimizer)
    later.out.weight.register_post_accumulate_grad_hook(clip)
    train(its, optimizer, range(STEPS, 2 * STEPS))
    return [*model.parameters(), *later.parameters()]


@script
def static_graph_and_join_later() -> Iterable[Tensor]:
    model, ddp = start(static_graph=True)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    train(ddp, optimizer)
    with ddp.join():
        train(ddp, optimizer, range(STEPS, 2 * STEPS - 2 * distributed.get_rank()))
    return model.parameters()


@script
def unused_parameters_and_join_later() -> Iterable[Tensor]:
    model, ddp = start(find_unused_parameters=True)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=0.01)
    train(ddp, optimizer)
    model.uses_extra = False
    with ddp.join():
        train(ddp, optimizer, range(STEPS, 2 * STEPS - 2 * distributed.get_rank()))
    return model.parameters()


@script
def parameters_are_views_of_one_buffer() -> Iterable[Tensor]:
    model = Net()
    buffer = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    place = 0
    for parameter in model.parameters():
        parameter.data = buffer[place : place + parameter.numel()].view_as(parameter)
        place += parameter.numel()
    ddp = wrap(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = []
    for step in range(STEPS):
        train(ddp, optimizer, [step])
        seen.append(buffer.clone())
    return [*model.parameters(), *seen]


@script
def the_same_model_wrapped_twice() -> Iterable[Tensor]:
    model = Net()
    one, two = wrap(model), wrap(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(one, optimizer)
    train(two, optimizer, range(STEPS, 2 * STEPS))
    train(one, optimizer)
    return model.parameters()


@script
def wrapped_again_in_the_middle() -> Iterable[Tensor]:
    model, one = start()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(one, optimizer)
    two = wrap(model)
    train(two, optimizer, range(STEPS, 2 * STEPS))
    train(one, optimizer)
    return model.parameters()


@script
def training_beside_the_wrapper() -> Iterable[Tensor]:
    model, ddp = start()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(ddp, optimizer)
    for step in range(STEPS):
        optimizer.zero_grad()
        model(batch(step, 0)).square().mean().backward()
        optimizer.step()
    train(ddp, optimizer, range(STEPS, 2 * STEPS))
    return model.parameters()


@script
def a_fit_and_an_unfit_model_share_an_optimizer() -> Iterable[Tensor]:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    one, two = torch.nn.Linear(6, 40), torch.nn.Linear(40, 3)
    first, second = wrap(one), wrap(two)
    second.register_comm_hook(None, default_hooks.allreduce_hook)
    optimizer = torch.optim.AdamW([*first.parameters(), *second.parameters()], lr=0.01)
    for step in range(STEPS):
        optimizer.zero_grad()
        second(first(batch(step)).tanh()).square().mean().backward()
        optimizer.step()
    third = torch.nn.Linear(6, 3)
    optimizer.add_param_group({"params": third.parameters()})
    train(wrap(third), optimizer)
    return [*one.parameters(), *two.parameters(), *third.parameters()]
