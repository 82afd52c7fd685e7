"""What is read past a forward, parameters or gradients, is what it would be without us."""

from __future__ import annotations

import copy
import io
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.optim import swa_utils

from byteprophet.torch.front.flush_points import refuse_strangers

Attach = Callable[..., Any]
Job = tuple[nn.Module, Any]


def make_model() -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))


def loss_of(model: nn.Module, iteration: int) -> Tensor:
    generator = torch.Generator().manual_seed(iteration)
    return model(torch.randn(5, 6, generator=generator)).square().mean()


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.05)


@pytest.fixture
def jobs(network: Any, attach: Attach) -> list[Job]:
    """Ours and a plain one."""
    model, plain = make_model(), make_model()
    ours = attach(adam(model), network, named=model.named_parameters())
    return [(model, ours), (plain, adam(plain))]


@contextmanager
def gradients_under_way(network: Any, optimizer: Any) -> Iterator[None]:
    """Within it, gradients arrive only after the reader under test has had time to go wrong."""
    optimizer.finish()
    network.hold(lambda name: name.startswith("Gradient"))
    before = len(network.submitted)
    parameters = sum(len(group["params"]) for group in optimizer.param_groups)

    def release() -> None:
        deadline_s = time.monotonic() + 30
        while len(network.submitted) < before + parameters and time.monotonic() < deadline_s:
            time.sleep(0.01)
        time.sleep(0.2)
        network.release()

    releasing = threading.Thread(target=release)
    releasing.start()
    yield
    releasing.join()


def advance(jobs: list[Job], iterations: range) -> None:
    for model, optimizer in jobs:
        for iteration in iterations:
            optimizer.zero_grad()
            loss_of(model, iteration).backward()
            optimizer.step()


def assert_equal(one: Any, other: Any) -> None:
    if isinstance(one, Tensor):
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_equal(one[key], other[key])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            assert_equal(left, right)
    else:
        assert one == other


def saved(model: nn.Module) -> dict[str, Tensor]:
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    loaded: nn.Module = torch.load(buffer, weights_only=False)
    return {name: value.clone() for name, value in loaded.named_parameters()}


def held(model: nn.Module) -> list[nn.Parameter]:
    """The parameters, without going through a flush point."""
    return [p for module in model.modules() for p in module._parameters.values() if p is not None]


def after_eval(model: nn.Module) -> list[Tensor]:
    model.eval()
    result = [p.detach().clone() for p in held(model)]
    model.train()
    return result


def evaluated(model: nn.Module) -> Tensor:
    model.eval()
    with torch.no_grad():
        result = loss_of(model, 77)
    model.train()
    return result


READERS: dict[str, Callable[[nn.Module, Any], Any]] = {
    "module.state_dict": lambda model, _: {k: v.clone() for k, v in model.state_dict().items()},
    "submodule.state_dict": lambda model, _: {
        k: v.clone() for k, v in model[3].state_dict().items()
    },
    "optimizer.state_dict": lambda _, optimizer: copy.deepcopy(optimizer.state_dict()),
    "optimizer.state": lambda _, optimizer: [
        value.clone() for state in optimizer.state.values() for value in state.values()
    ],
    "eval": lambda model, _: after_eval(model),
    "evaluation": lambda model, _: evaluated(model),
    "save": lambda model, _: saved(model),
    "deepcopy": lambda model, _: [p.detach() for p in copy.deepcopy(model).parameters()],
    "double": lambda model, _: [p.detach().clone() for p in held(model.double().float())],
    "parameters": lambda model, _: [p.detach().clone() for p in model.parameters()],
    "gradients": lambda model, _: [p.grad.clone() for p in held(model)],
}


@pytest.mark.parametrize("reader", READERS)
def test_readers_see_finished_updates(jobs: list[Job], network: Any, reader: str) -> None:
    advance(jobs, range(2))
    with gradients_under_way(network, jobs[0][1]):
        advance(jobs, range(2, 3))
        ours, plain = (READERS[reader](model, optimizer) for model, optimizer in jobs)
    assert_equal(ours, plain)


def test_average_of_weights(jobs: list[Job], network: Any) -> None:
    averages = [swa_utils.AveragedModel(model) for model, _ in jobs]
    advance(jobs, range(2))
    with gradients_under_way(network, jobs[0][1]):
        advance(jobs, range(2, 3))
        for average, (model, _) in zip(averages, jobs, strict=True):
            average.update_parameters(model)
    assert_equal(averages[0].state_dict(), averages[1].state_dict())


def test_checkpoint_and_resume(
    jobs: list[Job], make_network: Callable[..., Any], attach: Attach
) -> None:
    advance(jobs, range(3))
    resumed = []
    for model, optimizer in jobs:
        checkpoint = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
        fresh = make_model()
        fresh_optimizer: Any = adam(fresh)
        if not resumed:
            fresh_optimizer = attach(fresh_optimizer, make_network(seed=9, late_s=0.01))
        fresh.load_state_dict(checkpoint[0])
        fresh_optimizer.load_state_dict(checkpoint[1])
        resumed.append((fresh, fresh_optimizer))
    advance(jobs, range(3, 6))
    advance(resumed, range(3, 6))
    for other in (jobs[1], resumed[0], resumed[1]):
        assert_equal(jobs[0][0].state_dict(), other[0].state_dict())
        assert_equal(jobs[0][1].state_dict(), other[1].state_dict())


def test_loading_in_mid_training_is_not_overwritten_by_late_updates(
    jobs: list[Job], network: Any
) -> None:
    start = copy.deepcopy(jobs[0][0].state_dict())
    advance(jobs, range(2))
    with gradients_under_way(network, jobs[0][1]):
        advance(jobs, range(2, 3))
        for model, _ in jobs:
            model.load_state_dict(start)
    advance(jobs, range(3, 5))
    assert_equal(jobs[0][0].state_dict(), jobs[1][0].state_dict())


def test_clip_by_value(jobs: list[Job]) -> None:
    for iteration in range(3):
        for model, optimizer in jobs:
            optimizer.zero_grad()
            loss_of(model, iteration).backward()
            nn.utils.clip_grad_value_(model.parameters(), 1e-3)
            optimizer.step()
    assert_equal(jobs[0][0].state_dict(), jobs[1][0].state_dict())


@pytest.mark.parametrize("unscale", [True, False])
def test_gradient_scaler(jobs: list[Job], unscale: bool) -> None:
    for model, optimizer in jobs:
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
        for iteration in range(5):
            optimizer.zero_grad()
            loss = loss_of(model, iteration)
            if iteration == 3:
                loss = loss * float("inf")  # this step is skipped
            scaler.scale(loss).backward()
            if unscale:
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
    assert_equal(jobs[0][0].state_dict(), jobs[1][0].state_dict())


def test_a_scaler_that_is_off_waits_for_nothing(jobs: list[Job], network: Any) -> None:
    advance(jobs, range(2))
    model, optimizer = jobs[0]
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    with gradients_under_way(network, optimizer):
        optimizer.zero_grad()
        loss_of(model, 2).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        assert optimizer._front.updater.outstanding
    advance(jobs[1:], range(2, 3))
    assert_equal(model.state_dict(), jobs[1][0].state_dict())


def test_the_process_group_goes_after_the_updates(jobs: list[Job], network: Any) -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model, optimizer = jobs[0]
        advance([(model, optimizer)], range(2))
        with gradients_under_way(network, optimizer):
            advance([(model, optimizer)], range(2, 3))
            assert optimizer._front.updater.outstanding
            dist.destroy_process_group()
            assert not optimizer._front.updater.outstanding
        assert not dist.is_initialized()
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


@contextmanager
def recomputed_gradients(model: nn.Module) -> Iterator[None]:
    """Forward once more in the backward pass, as activation checkpointing does."""
    original = model[3].forward

    def forward(x: Tensor) -> Tensor:
        result: Tensor = torch.utils.checkpoint.checkpoint(original, x, use_reentrant=False)
        return result

    model[3].forward = forward  # type: ignore[method-assign]
    yield
    del model[3].forward


def test_activation_checkpointing(jobs: list[Job]) -> None:
    for model, optimizer in jobs:
        with recomputed_gradients(model):
            advance([(model, optimizer)], range(4))
    assert_equal(jobs[0][0].state_dict(), jobs[1][0].state_dict())


def test_compiled_model(jobs: list[Job]) -> None:
    for model, optimizer in jobs:
        compiled = torch.compile(model, backend="eager")
        advance([(compiled, optimizer)], range(4))
    assert_equal(jobs[0][0].state_dict(), jobs[1][0].state_dict())


def test_two_optimizers_of_one_model(make_network: Callable[..., Any], attach: Attach) -> None:
    networks = [make_network(seed=seed, late_s=0.005) for seed in (10, 11)]
    results = []
    for distributed in (True, False):
        model = make_model()
        optimizers: list[Any] = [
            torch.optim.SGD(model[:2].parameters(), lr=0.1, momentum=0.9),
            torch.optim.Adam(model[3].parameters(), lr=0.01),
        ]
        if distributed:
            for optimizer, network in zip(optimizers, networks, strict=True):
                attach(optimizer, network, named=model.named_parameters())
        for iteration in range(5):
            model.zero_grad()
            loss_of(model, iteration).backward()
            for optimizer in optimizers:
                optimizer.step()
        results.append(model.state_dict())
    assert_equal(*results)


def test_a_new_optimizer_takes_over_its_parameters(
    make_network: Callable[..., Any], attach: Attach
) -> None:
    network = make_network(seed=12, late_s=0.005)
    results = []
    for distributed in (True, False):
        model = make_model()
        first: Any = adam(model)
        second: Any = torch.optim.SGD(model.parameters(), lr=0.1)
        for optimizer in (first, second):
            if distributed:
                attach(optimizer, network, named=model.named_parameters())
            advance([(model, optimizer)], range(3))
        results.append(model.state_dict())
    assert_equal(*results)


def test_averages_are_not_clipped_by_a_norm_that_ranks_do_not_share(
    make_network: Any, attach: Attach
) -> None:
    model = make_model()
    network = make_network(size=2)
    ours = attach(
        torch.optim.SGD(model[3].parameters(), lr=0.1), network, named=model[3].named_parameters()
    )
    loss_of(model, 0).backward()
    with pytest.raises(RuntimeError, match=r"clip_grad_norm_\(\) got a gradient of shape \[8, 6\]"):
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    refuse_strangers(ours.param_groups[0]["params"], nn.utils.clip_grad_norm_)
