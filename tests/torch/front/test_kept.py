"""Accumulated steps in one process: whatever the script does, the mean of all of them updates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.amp import GradScaler
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

from .test_front import Twisted, assert_equal, loss_of, pair, sgd, zeros_for_unused

Attach = Callable[..., Any]
STEPS = 3


def accumulate(plain: nn.Module, iteration: int, scale: float = 1.0) -> None:
    """Add one more batch to the gradients, as a script does that accumulates by itself."""
    (scale * loss_of(plain, iteration)).backward()


def step_plain(plain: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    zeros_for_unused(plain)
    for parameter in plain.parameters():
        assert parameter.grad is not None
        parameter.grad.div_(STEPS)
    optimizer.step()
    optimizer.zero_grad()


def sent(network: Any) -> int:
    """How many gradients have been submitted."""
    return sum(name.startswith("Gradient.") for _, name, _ in network.submitted)


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("clears", ["optimizer", "model", "none", "zeros"])
def test_parameters_are_those_of_a_script_that_accumulates(
    attach: Attach, network: Any, clears: str, overlap: bool
) -> None:
    model, plain = pair()
    optimizer = attach(sgd(model), network, overlap=overlap, accumulation=STEPS)
    other = sgd(plain)
    for iteration in range(4 * STEPS):
        if clears == "optimizer":
            optimizer.zero_grad()
        elif clears == "none":
            for parameter in model.parameters():
                parameter.grad = None
        else:
            model.zero_grad(set_to_none=clears == "model")
        before = sent(network)
        loss_of(model, iteration).backward()
        optimizer.step()
        accumulate(plain, iteration)
        if iteration % STEPS == STEPS - 1:
            step_plain(plain, other)
            assert_equal(model, plain)
        else:
            assert sent(network) == before
    assert network.iterations == 4


def test_gradients_that_a_script_never_clears_are_used_as_it_sees_them(
    attach: Attach, network: Any
) -> None:
    model, plain = (nn.Linear(3, 1, bias=False) for _ in range(2))
    plain.load_state_dict(model.state_dict())
    optimizer = attach(torch.optim.SGD(model.parameters(), lr=0.5), network, accumulation=2)
    for value in (1.0, 2.0):
        model(torch.full((1, 3), value)).sum().backward()
        optimizer.step()
    # It would have used 1, and then 1 + 2.
    expected = plain.weight - 0.5 * (1.0 + 3.0) / 2
    assert torch.equal(model.weight, expected)


def test_no_sync_passes_and_closures_accumulate_within_a_step(attach: Attach, network: Any) -> None:
    model, plain = pair()
    optimizer = attach(sgd(model), network, passes=2, accumulation=STEPS)
    other = sgd(plain)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        with optimizer.no_sync():
            loss_of(model, 3 * iteration).backward()
        loss_of(model, 3 * iteration + 1).backward()
        loss = loss_of(model, 3 * iteration + 2)
        loss.backward()
        return loss

    for iteration in range(2 * STEPS):
        assert optimizer.step(closure) > 0
        earlier = [p.grad for p in plain.parameters()]
        plain.zero_grad()
        for n in range(3):
            accumulate(plain, 3 * iteration + n)
        for parameter, total in zip(plain.parameters(), earlier, strict=True):
            if total is not None and parameter.grad is not None:
                parameter.grad.add_(total)  # the sums of steps are added, as they are kept
        if iteration % STEPS == STEPS - 1:
            step_plain(plain, other)
    assert_equal(model, plain)


def test_clipping_is_that_of_the_mean(attach: Attach, network: Any) -> None:
    model, plain = pair()
    optimizer = attach(sgd(model), network, accumulation=STEPS)
    other = sgd(plain)
    for iteration in range(2 * STEPS):
        optimizer.zero_grad()
        loss_of(model, iteration).backward()
        own = clip_grad_norm_(model.parameters(), 1e-3)
        clip_grad_value_(model.parameters(), 1e-4)
        with optimizer.skip_synchronize():  # BytePS' way: after synchronize(), which clipping is
            optimizer.synchronize()
            optimizer.step()
        accumulate(plain, iteration)
        if iteration % STEPS == STEPS - 1:
            zeros_for_unused(plain)
            for parameter in plain.parameters():
                assert parameter.grad is not None
                parameter.grad.div_(STEPS)
            assert torch.equal(own, clip_grad_norm_(plain.parameters(), 1e-3))
            clip_grad_value_(plain.parameters(), 1e-4)
            other.step()
            other.zero_grad()
        else:
            assert own > 1e-3  # the norm is told, and nothing is clipped
    assert_equal(model, plain)


def test_what_was_kept_survives_gradients_that_are_dropped(attach: Attach, network: Any) -> None:
    """As a GAN drops the gradients that its other loss leaves behind."""
    model, plain = pair()
    optimizer = attach(sgd(model), network, accumulation=STEPS)
    other = sgd(plain)
    for iteration in range(2 * STEPS):
        loss_of(model, 100 + iteration).backward()
        optimizer.zero_grad()
        loss_of(model, iteration).backward()
        optimizer.step()
        optimizer.zero_grad()
        accumulate(plain, iteration)
        if iteration % STEPS == STEPS - 1:
            step_plain(plain, other)
    assert_equal(model, plain)


def test_parts_that_some_steps_do_not_use_count_with_what_they_have(
    attach: Attach, network: Any
) -> None:
    torch.manual_seed(1)
    layers = nn.ModuleList([nn.Linear(2, 2) for _ in range(4)])
    plain = nn.ModuleList([nn.Linear(2, 2) for _ in range(4)])
    plain.load_state_dict(layers.state_dict())
    optimizer = attach(torch.optim.Adam(layers.parameters()), network, accumulation=STEPS)
    other = torch.optim.Adam(plain.parameters())
    for iteration in range(2 * STEPS):
        used = iteration % len(layers)
        for modules in (layers, plain):
            (modules[used](torch.ones(1, 2)).sum() + modules[3](torch.ones(1, 2)).sum()).backward()
        optimizer.step()
        optimizer.zero_grad()
        if iteration % STEPS == STEPS - 1:
            step_plain(plain, other)
    assert_equal(layers, plain)


def test_what_would_be_wrong_is_refused(
    attach: Attach, network: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    model = Twisted()
    optimizer = attach(sgd(model), network, accumulation=STEPS)
    state = optimizer.state_dict()
    optimizer.load_state_dict(state)
    loss_of(model, 0).backward()
    scaler = GradScaler("cpu")
    with pytest.raises(RuntimeError, match="GradScaler cannot be used with a strategy that accum"):
        scaler.step(optimizer)
    with pytest.raises(RuntimeError, match="GradScaler cannot be used with a strategy that accum"):
        scaler.unscale_(optimizer)
    GradScaler("cpu", enabled=False).step(optimizer)
    with pytest.raises(RuntimeError, match=r"load_state_dict\(\) was called after 1 of 3 accumul"):
        optimizer.load_state_dict(state)
    assert capsys.readouterr().err == ""
    for _ in range(2):
        optimizer.state_dict()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(
        "gradients of 1 of 3 accumulated steps were not used yet: a state that is saved now is "
        "without them"
    )
    for _ in range(2):
        optimizer.zero_grad()
        loss_of(model, 0).backward()
        if optimizer._front.keeps:
            optimizer.step()
    optimizer.synchronize()
    with pytest.raises(RuntimeError, match="was added to after synchronize"):
        loss_of(model, 0).backward()


def test_ranks_that_may_have_changed_begin_anew(
    attach: Attach, network: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    model, plain = pair()
    optimizer = attach(sgd(model), network, accumulation=STEPS)
    loss_of(model, 50).backward()
    optimizer.step()
    optimizer.zero_grad()
    optimizer._front.agree_again()
    assert "1 of 3 accumulated steps were not used yet: they are dropped" in capsys.readouterr().err
    other = sgd(plain)
    for iteration in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, iteration).backward()
        optimizer.step()
        accumulate(plain, iteration)
    step_plain(plain, other)
    assert_equal(model, plain)


def test_another_optimizer_takes_over_without_what_was_kept(
    attach: Attach, network: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    model = Twisted()
    optimizer = attach(sgd(model), network, accumulation=STEPS)
    loss_of(model, 0).backward()
    optimizer.step()
    optimizer.state_dict()
    capsys.readouterr()
    attach(sgd(model), network)
    (line,) = capsys.readouterr().err.splitlines()
    said = "1 of 3 accumulated steps were not used yet: another optimizer takes over their param"
    assert said in line
    optimizer._front.drain()
    assert capsys.readouterr().err == ""


def test_clipping_of_optimizers_that_differ_is_refused(attach: Attach, network: Any) -> None:
    one, other = nn.Linear(2, 2), nn.Linear(2, 2)
    optimizers = [
        attach(sgd(one), network, accumulation=2),
        attach(sgd(other), network, named=[(f"other.{n}", p) for n, p in other.named_parameters()]),
    ]
    for model in (one, other):
        model(torch.ones(1, 2)).sum().backward()
    with pytest.raises(RuntimeError, match=r"clip_grad_norm_.. got gradients of several optimiz"):
        clip_grad_norm_([*one.parameters(), *other.parameters()], 0.1)
    for optimizer in optimizers:
        optimizer.step()
