"""Delayed averages in one process, against plain code that delays gradients by hand.

The network finishes transfers late and out of order: of two gradients of one parameter, the later
one may arrive first.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR

from byteprophet.errors import UserError
from byteprophet.runtime_settings import RuntimeSettings
from byteprophet.torch.front.delays import DELAYED
from byteprophet.torch.optimizer import Uncompressed, distribute
from byteprophet.torch.sync.alone import Alone

from .test_front import Attach, MakeNetwork, assert_equal, loss_of, pair, zeros_for_unused

DELAYS = {"embed.weight": 2, "scale": 1, "twice.weight": 1, "unused.bias": 1, "norm.weight": 2}
ITERATIONS = 8


def optimizer_of(model: nn.Module, kind: str = "AdamW", **options: Any) -> Any:
    """Two groups with learning rates of their own."""
    parameters = [*model.parameters()]
    groups = [{"params": parameters[::2]}, {"params": parameters[1::2], "lr": 0.03}]
    return getattr(torch.optim, kind)(groups, lr=0.01, **options)


def by_hand(
    model: nn.Module,
    delays: Mapping[str, int],
    *,
    kind: str = "AdamW",
    norm: float | None = None,
    summed: int = 1,
    iterations: int = ITERATIONS,
) -> None:
    """Plain training: each gradient, of ``summed`` batches, waits as many steps as it is to."""
    optimizer = optimizer_of(model, kind)
    schedule = StepLR(optimizer, 3, 0.5)
    waiting: dict[str, deque[torch.Tensor]] = {name: deque() for name, _ in named(model)}
    for iteration in range(iterations):
        optimizer.zero_grad()
        for part in range(summed):
            loss_of(model, iteration * summed + part).backward()
        zeros_for_unused(model)
        for name, parameter in named(model):
            assert parameter.grad is not None
            waiting[name].append(parameter.grad)
            ready = len(waiting[name]) > delays.get(name, 0)
            parameter.grad = waiting[name].popleft() if ready else None
        if norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), norm)
        optimizer.step()
        schedule.step()


def named(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return [*model.named_parameters()]


Do = Callable[[nn.Module, Any, int], None]


def plain_step(model: nn.Module, optimizer: Any, iteration: int) -> None:
    optimizer.zero_grad(set_to_none=iteration % 2 == 0)
    loss_of(model, iteration).backward()
    optimizer.step()


def clipped_step(model: nn.Module, optimizer: Any, iteration: int) -> None:
    model.zero_grad()
    loss_of(model, iteration).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()


def synchronized_step(model: nn.Module, optimizer: Any, iteration: int) -> None:
    optimizer.zero_grad()
    loss_of(model, iteration).backward()
    optimizer.synchronize()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    with optimizer.skip_synchronize():
        optimizer.step()


def summed_step(model: nn.Module, optimizer: Any, iteration: int) -> None:
    optimizer.zero_grad()
    for part in range(2):
        loss_of(model, 2 * iteration + part).backward()
    optimizer.step()


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize(
    ("step", "plain", "options"),
    [
        (plain_step, {}, {}),
        (plain_step, {"kind": "SGD"}, {}),
        (clipped_step, {"norm": 0.1}, {}),
        (synchronized_step, {"norm": 0.1}, {}),
        (summed_step, {"summed": 2}, {"passes": 2}),
    ],
    ids=["adamw", "sgd", "clipped", "synchronized", "summed"],
)
def test_equals_gradients_delayed_by_hand(
    make_network: MakeNetwork,
    attach: Attach,
    step: Do,
    plain: dict[str, Any],
    options: dict[str, Any],
    overlap: bool,
) -> None:
    model, plain_model = pair()
    network = make_network(seed=3, late_s=0.002)
    ours = attach(
        optimizer_of(model, plain.get("kind", "AdamW")),
        network,
        named=model.named_parameters(),
        overlap=overlap,
        staleness=DELAYS,
        **options,
    )
    schedule = StepLR(ours, 3, 0.5)
    for iteration in range(ITERATIONS):
        step(model, ours, iteration)
        schedule.step()
    ours.finish()
    by_hand(plain_model, DELAYS, **plain)
    assert_equal(model, plain_model)


def test_step_hooks_see_what_the_step_uses(network: Any, attach: Attach) -> None:
    model, plain_model = pair()
    ours = attach(
        optimizer_of(model), network, named=model.named_parameters(), staleness={"scale": 1}
    )
    scale = dict(named(model))["scale"]
    seen: list[Any] = []
    ours.register_step_pre_hook(lambda *_: seen.append(copy.deepcopy(scale.grad)))
    schedule = StepLR(ours, 3, 0.5)
    computed = []
    for iteration in range(4):
        ours.zero_grad()
        (gradient,) = torch.autograd.grad(loss_of(model, iteration), [scale])
        computed.append(gradient)
        loss_of(model, iteration).backward()
        ours.step()
        schedule.step()
    assert seen[0] is None
    for one, other in zip(seen[1:], computed[:-1], strict=True):
        assert torch.equal(one, other)
    by_hand(plain_model, {"scale": 1}, iterations=4)
    assert_equal(model, plain_model)


def test_a_step_does_not_wait_for_a_delayed_average(network: Any, attach: Attach) -> None:
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    ours = attach(
        torch.optim.SGD(model.parameters(), lr=0.1),
        network,
        named=model.named_parameters(),
        staleness={"0.weight": 1},
    )

    def iterate() -> None:
        ours.zero_grad()
        model(torch.ones(1, 4)).square().sum().backward()
        ours.step()

    for _ in range(3):
        iterate()
    ours._front.gradients.delays.wait()  # nothing is held back of what the next update needs
    network.hold(lambda name: name.endswith("0.weight"))
    iterate()  # its gradient of 0.weight is held back
    ours.finish()  # and its update does not need it
    model(torch.ones(1, 4)).square().sum().backward()
    ours.step()
    slots = ours._front.gradients.slots
    assert not slots[id(model[0].weight)].updated.is_set()
    network.release()
    ours.finish()


@pytest.mark.parametrize("until", [1, 4])
def test_a_saved_state_goes_on_as_if_nothing_had_happened(
    make_network: MakeNetwork, attach: Attach, until: int
) -> None:
    def trained(model: nn.Module, first: int, last: int, saved: Any = None) -> Any:
        ours = attach(
            optimizer_of(model, "SGD", momentum=0.9),
            make_network(seed=first, late_s=0.002),
            named=model.named_parameters(),
            staleness=DELAYS,
        )
        if saved is not None:
            model.load_state_dict(saved["model"])
            ours.load_state_dict(saved["optimizer"])
        for iteration in range(first, last):
            plain_step(model, ours, iteration)
        return copy.deepcopy({"model": model.state_dict(), "optimizer": ours.state_dict()})

    once, again = pair()
    whole = trained(once, 0, ITERATIONS)
    saved = trained(again, 0, until)
    counts = {name: len(each) for name, each in saved["optimizer"][DELAYED].items()}
    assert counts == {name: min(until, delay) for name, delay in DELAYS.items()}
    _, fresh = pair()
    resumed = trained(fresh, until, ITERATIONS, saved)
    torch.testing.assert_close(resumed, whole, rtol=0, atol=0)


def small(attach: Attach, network: Any, delay: int = 1) -> tuple[Any, Any]:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    ours = attach(
        torch.optim.SGD(model.parameters(), lr=0.1),
        network,
        named=model.named_parameters(),
        staleness={"0.weight": delay},
    )
    return model, ours


def backward(model: Any) -> None:
    model(torch.ones(1, 3)).sum().backward()


@pytest.mark.parametrize("done", [0, 1, 3])
def test_what_cannot_be_right_is_refused(network: Any, attach: Attach, done: int) -> None:
    def freeze(model: Any) -> None:
        model[0].weight.requires_grad_(False)
        model[0].weight.grad = None

    def replace(model: Any) -> None:
        model[0].weight.grad = torch.ones(3, 3)

    for after_backward, said in (
        (lambda model, ours: ours.zero_grad(), "had its gradient cleared before step"),
        (lambda model, ours: model.zero_grad(), "had its gradient cleared before step"),
        (lambda model, ours: backward(model), "more than 1 time|had a backward pass after"),
        (lambda model, ours: (replace(model), ours.step()), "had its gradient replaced after"),
        (lambda model, ours: (freeze(model), ours.step()), "is frozen while averages of it"),
        (lambda model, ours: (ours.synchronize(), backward(model)), "had a backward pass after"),
        (lambda model, ours: ours.state_dict(), r"state_dict\(\) between backward\(\) and step"),
        (lambda model, ours: ours.load_state_dict({}), r"load_state_dict\(\) between backward"),
    ):
        model, ours = small(attach, network)
        for _ in range(done):
            backward(model)
            ours.step()
            ours.zero_grad()
        backward(model)
        with pytest.raises(RuntimeError, match=said) as refused:
            after_backward(model, ours)
        assert str(refused.value).startswith("byteprophet: ")
        assert "\n" not in str(refused.value)
        model[0].weight.requires_grad_()
        ours._front.gradients.wait_unclaimed()


def test_an_average_that_is_cleared_is_refused(network: Any, attach: Attach) -> None:
    """An error is that of the newest gradient, and the average is that of an earlier one."""
    model, ours = small(attach, network)
    forgotten: list[str] = []
    ours._front.synchroniser.compression = SimpleNamespace(forget=forgotten.append)
    backward(model)
    ours.step()
    ours.zero_grad()
    backward(model)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    model[0].weight.grad = model[1].weight.grad = None
    ours.synchronize()
    assert forgotten == ["1.weight"]
    with pytest.raises(RuntimeError, match=r"'0\.weight' had its average cleared before"):
        ours.step()


def test_a_loss_scaler_is_refused(network: Any, attach: Attach) -> None:
    model, ours = small(attach, network)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(model(torch.ones(1, 3)).sum()).backward()
    with pytest.raises(RuntimeError, match="cannot be used with a strategy that delays averages"):
        scaler.unscale_(ours)
    with pytest.raises(RuntimeError, match="cannot be used with a strategy that delays averages"):
        scaler.step(ours)


def test_a_state_with_other_delays_is_refused(make_network: MakeNetwork, attach: Attach) -> None:
    model, ours = small(attach, make_network(), delay=2)
    for _ in range(3):
        backward(model)
        ours.step()
        ours.zero_grad()
    saved = ours.state_dict()
    assert len(saved[DELAYED]["0.weight"]) == 2
    _, shorter = small(attach, make_network(), delay=1)
    before = shorter.state_dict()
    with pytest.raises(ValueError, match=r"2 delayed average\(s\) of '0.weight', which has a stal"):
        shorter.load_state_dict(saved)
    for wrong, said in (
        ([], "must be a table of averages by parameter"),
        ({"x": []}, "delayed averages of 'x', which is not here"),
        ({"0.weight": [torch.ones(2)]}, "a delayed average of '0.weight' has another shape"),
    ):
        with pytest.raises(ValueError, match=said):
            shorter.load_state_dict({**saved, DELAYED: wrong})
    assert shorter.state_dict() == before
    del saved[DELAYED]
    shorter.load_state_dict(saved)
    assert DELAYED not in shorter.state_dict()


def test_a_copy_says_that_it_is_without_delayed_averages(
    network: Any, attach: Attach, capsys: pytest.CaptureFixture[str]
) -> None:
    model, ours = small(attach, network)
    copy.deepcopy(ours)
    assert "delayed averages" not in capsys.readouterr().err
    backward(model)
    ours.step()
    copied = copy.deepcopy(ours)
    assert type(copied) is torch.optim.SGD
    said = "delayed averages of 1 parameter(s) were not used yet: a copy of the optimizer is"
    assert said in capsys.readouterr().err


def alone(model: nn.Module, **options: Any) -> Any:
    return distribute(
        torch.optim.SGD(model.parameters(), lr=0.1),
        model.named_parameters(),
        Uncompressed,
        1,
        model=model,
        separable=None,
        synchroniser=Alone(),
        settings=RuntimeSettings(overlap=False),
        **options,
    )


def test_parameters_that_cannot_be_delayed_are_named() -> None:
    model = nn.Sequential(nn.Embedding(4, 3, sparse=True), nn.Linear(3, 2))
    with pytest.raises(UserError, match=r"this optimizer has no parameter '2\.weight'"):
        alone(model, staleness={"2.weight": 1})
    with pytest.raises(ValueError, match=r"gradients of parameter '0\.weight' are sparse, and th"):
        alone(model, staleness={"0.weight": 1}, sparse={model[0].weight})


def test_a_job_of_one_rank_delays_too() -> None:
    model, plain_model = pair()
    ours = alone(model, staleness=DELAYS)
    plain = torch.optim.SGD(plain_model.parameters(), lr=0.1)
    first = [parameter.detach().clone() for parameter in model.parameters()]
    plain_step(model, ours, 0)
    for (name, parameter), before in zip(named(model), first, strict=True):
        if name in DELAYS:
            assert torch.equal(parameter, before), name
    loss_of(plain_model, 0).backward()
    plain.step()
    for (name, one), other in zip(named(model), plain_model.parameters(), strict=True):
        assert torch.equal(one, other) == (name not in DELAYS or name == "unused.bias"), name
