"""The distributed optimizer against a plain one: the same parameters, bit for bit.

With one rank the average is the gradient itself, so the reference is the same loop without us. The
network keeps rubbish in a tensor while it travels and finishes late and out of order.
"""

from __future__ import annotations

import gc
import inspect
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from byteprophet.errors import UserError
from byteprophet.torch.front.cores import Cores
from byteprophet.torch.front.optimizer_class import plain_again
from byteprophet.torch.front.updates import Updater
from byteprophet.torch.tensors import module_calls, pending

Attach = Callable[..., Any]
MakeNetwork = Callable[..., Any]


class Twisted(nn.Module):
    """Tied weights, a layer used twice, a non-leaf's parameter, functional use, an unused layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.twice = nn.Linear(8, 8)
        self.scale = nn.Parameter(torch.full((8,), 0.5))
        self.norm = nn.LayerNorm(8)
        self.decode = nn.Linear(8, 11, bias=False)
        self.decode.weight = self.embed.weight
        self.unused = nn.Linear(3, 2)
        self.functional = nn.Linear(8, 8)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        x = x + self.attention(x, x, x, need_weights=False)[0]
        x = self.twice(torch.tanh(self.twice(x))) * self.scale
        x = functional.linear(self.norm(x), self.functional.weight, self.functional.bias)
        return self.decode(x)


def loss_of(model: nn.Module, iteration: int, size: int = 4) -> Tensor:
    generator = torch.Generator().manual_seed(iteration)
    tokens = torch.randint(0, 11, (size, 5), generator=generator)
    return functional.cross_entropy(model(tokens).flatten(0, 1), tokens.roll(1, 1).flatten())


def zeros_for_unused(model: nn.Module) -> None:
    """What the distributed job does for parameters without gradient."""
    for parameter in model.parameters():
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)


def pair(make: Callable[[], nn.Module] = Twisted) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(5)
    model = make()
    torch.manual_seed(5)
    return model, make()


def assert_equal(model: nn.Module, plain: nn.Module) -> None:
    for (name, one), other in zip(model.named_parameters(), plain.parameters(), strict=True):
        assert torch.equal(one, other), name


def sgd(model: nn.Module, **options: Any) -> torch.optim.SGD:
    return torch.optim.SGD(
        model.parameters(), **{"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-2, **options}
    )


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize(
    ("optimizer", "options"),
    [("SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-2}), ("AdamW", {}), ("Adam", {})],
)
def test_equals_plain_training(
    make_network: MakeNetwork,
    attach: Attach,
    optimizer: str,
    options: dict[str, Any],
    named: bool,
    overlap: bool,
) -> None:
    network = make_network(seed=1, late_s=0.002)
    model, plain_model = pair()
    make = getattr(torch.optim, optimizer)
    ours = attach(
        make(model.parameters(), **options),
        network,
        named=model.named_parameters() if named else None,
        overlap=overlap,
    )
    plain = make(plain_model.parameters(), **options)
    for iteration in range(6):
        for this, step in ((model, ours), (plain_model, plain)):
            step.zero_grad(set_to_none=iteration % 2 == 0)
            loss_of(this, iteration).backward()
            zeros_for_unused(plain_model)
            step.step()
    ours.finish()
    assert_equal(model, plain_model)
    assert isinstance(ours, make)


@pytest.mark.parametrize("late_s", [0.0, 0.002])
def test_updates_in_the_training_thread_equal_plain_training(
    monkeypatch: pytest.MonkeyPatch, make_network: MakeNetwork, attach: Attach, late_s: float
) -> None:
    monkeypatch.setattr(Cores, "are_scarce", lambda *_: True)
    at_once = 0

    def counted(updater: Updater, *arguments: Any) -> Any:
        nonlocal at_once
        used = apply_arrived(updater, *arguments)
        at_once += len(used)
        return used

    apply_arrived = Updater.apply_arrived
    monkeypatch.setattr(Updater, "apply_arrived", counted)
    network = make_network(seed=1, late_s=late_s)
    model, plain_model = pair()
    ours, plain = attach(sgd(model), network, named=model.named_parameters()), sgd(plain_model)
    for iteration in range(6):
        for this, step in ((model, ours), (plain_model, plain)):
            step.zero_grad(set_to_none=iteration % 2 == 0)
            loss_of(this, iteration).backward()
            zeros_for_unused(plain_model)
            if this is model:
                time.sleep(0.02)  # some gradients have arrived, others perhaps not
            step.step()
    ours.finish()
    assert_equal(model, plain_model)
    assert at_once > 0


def test_priorities_follow_the_forward_order(network: Any, attach: Attach) -> None:
    model = nn.Sequential(*[nn.Linear(4, 4, bias=False) for _ in range(12)])
    ours = attach(sgd(model), network, named=model.named_parameters())
    for _ in range(2):
        model(torch.ones(1, 4)).sum().backward()
        ours.step()
    ours.finish()
    second = [s for s in network.submitted if s[1].startswith("Gradient")][12:]
    assert {name: priority for _, name, priority in second} == {
        f"Gradient.{layer}.weight": -1 - layer for layer in range(12)
    }


def test_step_returns_at_once_and_a_forward_waits_for_its_own_layer(
    network: Any, attach: Attach
) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    ours = attach(sgd(model), network, named=model.named_parameters())
    model(torch.ones(1, 2)).sum().backward()
    ours.step()  # the first one agrees on the order
    network.hold(lambda name: name.startswith("Gradient.1"))
    ours.zero_grad()
    model(torch.ones(1, 2)).sum().backward()
    ours.step()
    model[0](torch.ones(1, 2))  # its gradient is there
    reached = threading.Event()
    finished = threading.Event()

    def second_layer() -> None:
        reached.set()
        model[1](torch.ones(1, 2))
        finished.set()

    thread = threading.Thread(target=second_layer)
    thread.start()
    assert reached.wait(10)
    assert not finished.wait(0.2)
    network.release()
    assert finished.wait(10)
    thread.join()


def test_inference_waits_for_the_parameters_of_the_module_and_below(
    network: Any, attach: Attach
) -> None:
    """Some are read by a fused kernel: ``out_proj`` is never called."""
    attention, last, teacher = nn.MultiheadAttention(2, 1), nn.Linear(2, 2), nn.Linear(2, 2)
    model = nn.ModuleList([attention, last]).eval()  # eval() waits for all updates, so before any
    teacher.eval()
    ours = attach(sgd(model), network, named=model.named_parameters(), timeout_s=10.0)
    x = torch.ones(3, 2)
    for held in (False, True):  # the first step agrees on the order
        if held:
            network.hold(lambda name: name == "Gradient.0.out_proj.bias")
        ours.zero_grad()
        last(attention(x, x, x)[0]).sum().backward()
        ours.step()
    finished = threading.Event()

    def infer() -> None:
        with torch.no_grad(), pending.values():  # a kernel reads values without a wait
            attention(x, x, x)
        finished.set()

    with torch.no_grad():
        teacher(x)
        last(x)
    thread = threading.Thread(target=infer)
    thread.start()
    assert not finished.wait(0.2)
    network.release()
    assert finished.wait(10)
    thread.join()
    ours.finish()


def settle(model: nn.Module, ours: Any) -> None:
    """One iteration, after which the order is agreed."""
    loss_of(model, 0).backward()
    ours.step()
    ours.zero_grad()


@pytest.mark.parametrize("how", ["zero_", "data", "checked", "assigned", "never"])
def test_gradients_touched_by_hand_after_step(
    make_network: MakeNetwork, attach: Attach, how: str
) -> None:
    network = make_network(seed=6, late_s=0.002)
    model, plain_model = pair()
    ours, plain = attach(sgd(model), network), sgd(plain_model)
    norms: dict[int, list[float]] = {id(model): [], id(plain_model): []}
    for iteration in range(5):
        for this, optimizer in ((model, ours), (plain_model, plain)):
            loss_of(this, iteration).backward()
            zeros_for_unused(plain_model)
            optimizer.step()
            for number, parameter in enumerate(this.parameters()):
                if number % 3 == 0:
                    norms[id(this)].append(float(parameter.grad.norm()))
                if how == "zero_":
                    parameter.grad.zero_()
                elif how == "data":
                    parameter.grad.data.zero_()
                elif how == "checked" and parameter.grad is not None:
                    parameter.grad.mul_(0.5)
                elif how == "assigned":
                    parameter.grad = torch.full_like(parameter, 1e-3)
    ours.finish()
    assert_equal(model, plain_model)
    assert norms[id(model)] == norms[id(plain_model)]


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("through_model", [True, False])
def test_zero_grad_while_gradients_travel(
    network: Any, attach: Attach, set_to_none: bool, through_model: bool
) -> None:
    model, plain_model = pair()
    parameters = list(model.parameters())  # asking for them later would wait
    ours, plain = attach(sgd(model), network), sgd(plain_model)
    settle(model, ours)
    loss_of(plain_model, 0).backward()
    zeros_for_unused(plain_model)
    plain.step()
    plain.zero_grad()
    for iteration in range(1, 4):
        loss_of(model, iteration).backward()
        network.hold(lambda name: True)
        ours.step()
        (model if through_model else ours).zero_grad(set_to_none)
        for parameter in parameters:
            if set_to_none:
                assert parameter.grad is None
            else:
                assert parameter.grad is not None
                assert not parameter.grad.any()
        network.release()
        loss_of(plain_model, iteration).backward()
        zeros_for_unused(plain_model)
        plain.step()
        plain.zero_grad(set_to_none)
    ours.finish()
    assert_equal(model, plain_model)


def test_values_at_step_count(network: Any, attach: Attach) -> None:
    model, plain_model = pair()
    ours, plain = attach(sgd(model), network), sgd(plain_model)
    schedules = [
        torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
        for optimizer in (ours, plain)
    ]
    for iteration in range(5):
        loss = loss_of(model, iteration)
        network.hold(lambda name, held=iteration > 0: held and name.startswith("Gradient"))
        loss.backward()
        ours.step()
        schedules[0].step()
        ours.param_groups[0]["momentum"] = 0.1 * iteration
        ours.zero_grad()
        network.release()
        loss_of(plain_model, iteration).backward()
        zeros_for_unused(plain_model)
        plain.step()
        schedules[1].step()
        plain.param_groups[0]["momentum"] = 0.1 * iteration
        plain.zero_grad()
    ours.finish()
    assert_equal(model, plain_model)


def test_scheduler_made_before_goes_on_working(network: Any, attach: Attach) -> None:
    model, _ = pair()
    optimizer = sgd(model)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    ours = attach(optimizer, network)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loss_of(model, 0).backward()
        ours.step()
        schedule.step()
    assert ours.param_groups[0]["lr"] == 0.05
    assert any(name.startswith("Gradient") for _, name, _ in network.submitted)


def test_scheduler_goes_on_working_when_the_optimizer_is_plain_again(
    network: Any, attach: Attach
) -> None:
    model, _ = pair()
    optimizer = sgd(model)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    front = attach(optimizer, network)._front
    front.release([*model.parameters()])
    plain_again(optimizer)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loss_of(model, 0).backward()
        optimizer.step()
        schedule.step()
    assert (type(optimizer), optimizer.param_groups[0]["lr"]) == (torch.optim.SGD, 0.05)


@pytest.mark.parametrize("passes", [2, 3])
def test_accumulation(make_network: MakeNetwork, attach: Attach, passes: int) -> None:
    network = make_network(seed=2, late_s=0.001)
    model, plain_model = pair()
    ours, plain = attach(sgd(model), network, passes=passes), sgd(plain_model)
    for iteration in range(4):
        for this, optimizer in ((model, ours), (plain_model, plain)):
            optimizer.zero_grad()
            for part in range(passes):
                loss_of(this, 10 * iteration + part).backward()
            zeros_for_unused(plain_model)
            optimizer.step()
    ours.finish()
    assert_equal(model, plain_model)
    gradients = [s for s in network.submitted if s[1] == "Gradient.push_pull.noname.0"]
    assert len(gradients) == 4


def test_too_many_backward_passes_are_an_error(network: Any, attach: Attach) -> None:
    model, _ = pair()
    ours = attach(sgd(model), network)
    loss_of(model, 0).backward()
    assert ours is not None
    with pytest.raises(RuntimeError, match="raise backward_passes_per_step"):
        loss_of(model, 1).backward()


@pytest.mark.parametrize("explicit", [True, False])
def test_clipping_sees_averages(make_network: MakeNetwork, attach: Attach, explicit: bool) -> None:
    network = make_network(seed=3, late_s=0.001)
    model, plain_model = pair()
    ours, plain = attach(sgd(model), network), sgd(plain_model)
    for iteration in range(4):
        ours.zero_grad()
        loss_of(model, iteration).backward()
        if explicit:
            ours.synchronize()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            with ours.skip_synchronize():
                ours.step()
        else:
            norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            ours.step()
        plain.zero_grad()
        loss_of(plain_model, iteration).backward()
        zeros_for_unused(plain_model)
        assert torch.equal(norm, nn.utils.clip_grad_norm_(plain_model.parameters(), 0.1))
        plain.step()
    ours.finish()
    assert_equal(model, plain_model)
    assert sum(name == "Gradient.push_pull.noname.0" for _, name, _ in network.submitted) == 4


@pytest.mark.parametrize("explicit", [True, False])
def test_removed_and_replaced_gradients(
    make_network: MakeNetwork, attach: Attach, explicit: bool
) -> None:
    """What the script put there before step() counts; without a gradient there is no update."""
    network = make_network(seed=4, late_s=0.002)
    model, plain_model = pair()
    ours, plain = attach(sgd(model), network), sgd(plain_model)
    for iteration in range(4):
        for this, optimizer in ((model, ours), (plain_model, plain)):
            optimizer.zero_grad()
            loss_of(this, iteration).backward()
            zeros_for_unused(plain_model)
            this.embed.weight.grad = None
            this.twice.weight.grad = torch.full_like(this.twice.weight, 1e-3)
            if explicit and this is model:
                ours.synchronize()
            optimizer.step()
    ours.finish()
    assert_equal(model, plain_model)


def test_dropped_gradients_leave_no_trace(network: Any, attach: Attach) -> None:
    model, plain_model = pair()
    ours, plain = attach(sgd(model), network), sgd(plain_model)
    for iteration in range(4):
        ours.zero_grad()
        loss_of(model, 100 + iteration).backward()
        ours.zero_grad()  # say, the loss was not finite
        loss_of(model, iteration).backward()
        ours.step()
        plain.zero_grad()
        loss_of(plain_model, iteration).backward()
        zeros_for_unused(plain_model)
        plain.step()
    ours.finish()
    assert_equal(model, plain_model)


def test_closure(network: Any, attach: Attach) -> None:
    model, plain_model = pair()
    ours, plain = attach(sgd(model), network), sgd(plain_model)

    def run(this: nn.Module, optimizer: Any, iteration: int) -> Tensor:
        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = loss_of(this, iteration)
            loss.backward()
            zeros_for_unused(plain_model)
            return loss

        result: Tensor = optimizer.step(closure)
        return result

    for iteration in range(4):
        one, other = run(model, ours, iteration), run(plain_model, plain, iteration)
        assert torch.equal(one, other)
    ours.finish()
    assert_equal(model, plain_model)


def test_step_hooks_see_finished_gradients_and_parameters(network: Any, attach: Attach) -> None:
    model, plain_model = pair()
    ours, plain = attach(sgd(model), network), sgd(plain_model)
    seen: dict[int, list[Tensor]] = {id(ours): [], id(plain): []}
    for optimizer in (ours, plain):
        optimizer.register_step_pre_hook(
            lambda o, *_: seen[id(o)].extend(p.grad.clone() for p in o.param_groups[0]["params"])
        )
        optimizer.register_step_post_hook(
            lambda o, *_: seen[id(o)].extend(p.clone() for p in o.param_groups[0]["params"])
        )
    for iteration in range(3):
        for this, optimizer in ((model, ours), (plain_model, plain)):
            optimizer.zero_grad()
            loss_of(this, iteration).backward()
            if optimizer is plain:
                zeros_for_unused(plain_model)
            optimizer.step()
    assert len(seen[id(ours)]) == len(seen[id(plain)])
    for one, other in zip(seen[id(ours)], seen[id(plain)], strict=True):
        assert torch.equal(one, other)


def test_coupled_optimizers_are_updated_as_a_whole(network: Any, attach: Attach) -> None:
    class Normalised(torch.optim.SGD):
        """Divides by the norm of all gradients together."""

        @torch.no_grad()
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            gradients = [p.grad for p in self.param_groups[0]["params"]]
            norm = torch.stack([g.norm() for g in gradients]).norm()
            for gradient in gradients:
                gradient.div_(norm)
            super().step()

    model, plain_model = pair()
    ours = attach(Normalised(model.parameters(), lr=0.1), network)
    plain = Normalised(plain_model.parameters(), lr=0.1)
    for iteration in range(4):
        for this, optimizer in ((model, ours), (plain_model, plain)):
            optimizer.zero_grad()
            loss_of(this, iteration).backward()
            zeros_for_unused(plain_model)
            optimizer.step()
    assert_equal(model, plain_model)


def test_parameter_groups_added_and_frozen_in_mid_training(
    make_network: MakeNetwork, attach: Attach
) -> None:
    network = make_network(seed=4, late_s=0.001)
    models = pair(lambda: nn.Sequential(*[nn.Linear(4, 4) for _ in range(4)]))
    jobs = []
    for model in models:
        model[0].requires_grad_(False)
        optimizer = torch.optim.SGD(model[2:].parameters(), lr=0.1, momentum=0.9)
        if model is models[0]:
            optimizer = attach(optimizer, network, named=model.named_parameters())
        jobs.append((model, optimizer))
    for iteration in range(8):
        for model, optimizer in jobs:
            if iteration == 3:
                optimizer.add_param_group({"params": model[:2].parameters(), "lr": 0.01})
            if iteration == 5:
                model[0].requires_grad_(True)
            if iteration == 6:
                model[3].requires_grad_(False)
            optimizer.zero_grad()
            generator = torch.Generator().manual_seed(iteration)
            model(torch.randn(3, 4, generator=generator)).square().sum().backward()
            optimizer.step()
    jobs[0][1].finish()
    assert_equal(*models)
    sent = {name for _, name, _ in network.submitted if name.startswith("Gradient")}
    assert sent == {f"Gradient.{name}" for name, _ in models[0].named_parameters()}


def test_a_job_of_two_ranks(make_network: MakeNetwork, attach: Attach) -> None:
    network = make_network(2, seed=5, late_s=0.001)
    models, plain_models = [pair()[0] for _ in range(2)], [pair()[0] for _ in range(2)]
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            ours = attach(sgd(models[rank]), network, rank, named=models[rank].named_parameters())
            for iteration in range(5):
                ours.zero_grad()
                loss_of(models[rank], 10 * iteration + rank).backward()
                ours.step()
            ours.finish()
        except BaseException as error:
            errors.append(error)
            raise

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors
    optimizers = [sgd(model) for model in plain_models]
    for iteration in range(5):
        for rank in range(2):
            optimizers[rank].zero_grad()
            loss_of(plain_models[rank], 10 * iteration + rank).backward()
            zeros_for_unused(plain_models[rank])
        for one, other in zip(*(model.parameters() for model in plain_models), strict=True):
            average = (one.grad + other.grad) / 2
            one.grad, other.grad = average.clone(), average.clone()
        for optimizer in optimizers:
            optimizer.step()
    for model in models:
        assert_equal(model, plain_models[0])


def test_compression(network: Any, attach: Attach) -> None:
    class Half:
        @staticmethod
        def compress(tensor: Tensor) -> tuple[Tensor, torch.dtype]:
            return tensor.half(), tensor.dtype

        @staticmethod
        def decompress(tensor: Tensor, dtype: torch.dtype) -> Tensor:
            return tensor.to(dtype)

    model, plain_model = pair()
    ours, plain = attach(sgd(model), network, compression=Half), sgd(plain_model)
    for iteration in range(4):
        for this, optimizer in ((model, ours), (plain_model, plain)):
            optimizer.zero_grad()
            loss_of(this, iteration).backward()
            if optimizer is plain:
                zeros_for_unused(plain_model)
                for parameter in plain_model.parameters():
                    assert parameter.grad is not None
                    parameter.grad = parameter.grad.half().float()
            optimizer.step()
    ours.finish()
    assert_equal(model, plain_model)


def test_empty_and_strided_parameters(network: Any, attach: Attach) -> None:
    models = pair(lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4, 0)))
    jobs = []
    for model in models:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
        jobs.append((model, attach(optimizer, network) if model is models[0] else optimizer))
    for iteration in range(3):
        for model, optimizer in jobs:
            optimizer.zero_grad()
            generator = torch.Generator().manual_seed(iteration)
            image = torch.randn(2, 3, 3, 3, generator=generator)
            hidden = model[1](model[0](image.contiguous(memory_format=torch.channels_last)))
            (hidden.square().sum() + model[2](hidden).sum()).backward()
            optimizer.step()
    jobs[0][1].finish()
    assert_equal(*models)


def test_timeout_names_the_parameter(network: Any, attach: Attach) -> None:
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    ours = attach(sgd(model), network, named=model.named_parameters(), timeout_s=0.3)
    model(torch.ones(1, 2)).sum().backward()
    ours.step()
    network.hold(lambda name: name == "Gradient.1.weight")
    ours.zero_grad()
    model(torch.ones(1, 2)).sum().backward()
    ours.step()
    with pytest.raises(RuntimeError, match=r"update of parameter '1\.weight': the transfer of its"):
        model(torch.ones(1, 2))
    network.release()


def test_a_failed_transfer_is_raised_where_it_is_waited_for(network: Any, attach: Attach) -> None:
    model = nn.Sequential(nn.Linear(2, 2, bias=False))
    ours = attach(sgd(model), network, named=model.named_parameters())
    model(torch.ones(1, 2)).sum().backward()
    ours.step()
    network.failures["Gradient.0.weight"] = OSError("the server is gone")
    model(torch.ones(1, 2)).sum().backward()
    ours.step()
    with pytest.raises(RuntimeError, match=r"'0\.weight' could not be exchanged.*server is gone"):
        model(torch.ones(1, 2))


def test_a_gradient_of_a_forward_that_ran_before_step_is_an_error(
    network: Any, attach: Attach
) -> None:
    layer = nn.Linear(2, 2, bias=False)
    ours = attach(sgd(layer), network)
    layer(torch.ones(1, 2)).sum().backward()
    ours.step()
    network.hold(lambda name: True)
    layer(torch.ones(1, 2)).sum().backward()
    stale = layer(torch.ones(1, 2))
    ours.step()
    ours.zero_grad()
    with pytest.raises(RuntimeError, match=r"from a forward that ran before step\(\) changed it"):
        stale.sum().backward()
    network.release()


def test_refused(network: Any, attach: Attach) -> None:
    layer = nn.Linear(2, 2)
    with pytest.raises(ValueError, match="LBFGS evaluates its closure several times"):
        attach(torch.optim.LBFGS(layer.parameters()), network)
    with pytest.raises(ValueError, match="must be at least 1"):
        attach(sgd(layer), network, passes=0)
    with pytest.raises(ValueError, match="twice: a"):
        attach(sgd(layer), network, named=[("a", layer.weight), ("a", layer.bias)])
    ours = attach(sgd(layer), network)
    with pytest.raises(ValueError, match="distributed already"):
        attach(ours, network)
    embedding = nn.Embedding(4, 2, sparse=True)
    ours = attach(sgd(embedding, momentum=0.0, weight_decay=0.0), network)
    with pytest.raises(RuntimeError, match="is sparse"):
        embedding(torch.tensor([1])).sum().backward()


def test_parameters_put_into_a_group_by_hand_are_an_error(network: Any, attach: Attach) -> None:
    layer = nn.Linear(2, 2)
    ours = attach(torch.optim.SGD([layer.weight], lr=0.1), network)
    ours.param_groups[0]["params"].append(layer.bias)
    layer(torch.ones(1, 2)).sum().backward()
    with pytest.raises(RuntimeError, match="without add_param_group"):
        ours.step()


def test_an_optimizer_dropped_before_its_updates_are_done(network: Any, attach: Attach) -> None:
    models = pair()

    def train(model: nn.Module, optimizer: Any) -> None:
        for iteration in range(3):
            optimizer.zero_grad()
            loss_of(model, iteration).backward()
            zeros_for_unused(models[1])
            if iteration == 2:
                network.hold(lambda name: True)
                threading.Timer(0.3, network.release).start()
            optimizer.step()

    train(models[0], attach(sgd(models[0]), network))
    train(models[1], sgd(models[1]))
    gc.collect()
    assert torch.equal(loss_of(models[0], 9), loss_of(models[1], 9))
    models[0].state_dict()
    assert_equal(*models)


def test_a_dropped_optimizer_leaves_nothing_behind(network: Any, attach: Attach) -> None:
    model, _ = pair()
    ours = attach(sgd(model), network)
    settle(model, ours)
    settle(model, ours)
    ours.finish()
    front = weakref.ref(ours._front)
    thread = ours._front.updater._thread
    listeners = len(module_calls._first)
    del ours
    gc.collect()
    thread.join(10)
    assert not thread.is_alive()
    assert front() is None
    assert len(module_calls._first) == listeners - 1
    loss_of(model, 0).backward()  # nobody is there to send anything


def test_one_iteration_mark_per_iteration(network: Any, attach: Attach) -> None:
    model, _ = pair()
    ours = attach(sgd(model), network)
    for iteration in range(3):
        ours.zero_grad()
        loss_of(model, iteration).backward()
        ours.step()
    ours.finish()
    assert network.iterations == 3


def test_reading_a_gradient_within_backward_before_others_are_sent_is_refused(
    network: Any, attach: Attach
) -> None:
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 1, bias=False))
    ours = attach(sgd(model), network, named=model.named_parameters())
    ours._front.synchroniser.holds_back = lambda _: True  # as if they shared a bucket
    hook = model[0].weight.register_hook(lambda _: model[1].weight.grad.sum())
    says = r"gradient of '1.weight' is in flight and was read within backward\(\)"
    with pytest.raises(RuntimeError, match=says):
        model(torch.ones(1, 2)).sum().backward()
    hook.remove()
    assert model[1].weight.grad is not None
    assert model[1].weight.grad.sum().isfinite()  # after backward, it is the average


def test_a_removed_group_is_named(network: Any, attach: Attach) -> None:
    model, _ = pair()
    groups = [{"params": model.embed.parameters()}, {"params": model.twice.parameters()}]
    ours = attach(torch.optim.SGD(groups, lr=0.1), network, named=model.named_parameters())
    settle(model, ours)
    del ours.param_groups[1]
    loss_of(model, 1).backward()
    with pytest.raises(RuntimeError, match=r"'twice.bias' was removed .* requires_grad_\(False\)"):
        ours.step()


def test_gradients_of_another_type_are_named(make_network: MakeNetwork, attach: Attach) -> None:
    layer = nn.Linear(2, 1)
    layer.weight.grad_dtype = torch.float64
    ours = attach(
        torch.optim.SGD(layer.parameters(), lr=0.1),
        make_network(size=2),
        named=layer.named_parameters(),
    )
    says = "parameter 'weight' is of torch.float32, and its gradient of torch.float64"
    with pytest.raises(UserError, match=says):
        layer(torch.ones(1, 2)).sum().backward()
    del ours


class Sharpness(torch.optim.SGD):
    """Evaluates its closure twice (SAM), clears gradients by itself, and takes another argument."""

    def step(self, closure: Any = None, scale: float = 1.0) -> Any:  # type: ignore[override]
        losses = [] if closure is None else [closure(), self._climb(closure)]
        with torch.no_grad():
            for parameter in self.param_groups[0]["params"]:
                parameter.grad.mul_(scale)
        super().step()
        return losses, scale

    def zero_grad(self) -> None:  # type: ignore[override]
        super().zero_grad()

    def state_dict(self, extra: int = 0) -> dict[str, Any]:
        return {**super().state_dict(), "extra": extra}

    @torch.no_grad()
    def _climb(self, closure: Any) -> Tensor:
        parameters = self.param_groups[0]["params"]
        before = [parameter.clone() for parameter in parameters]
        for parameter in parameters:
            parameter.add_(parameter.grad, alpha=0.05)
        with torch.enable_grad():
            loss: Tensor = closure()
        for parameter, old in zip(parameters, before, strict=True):
            parameter.copy_(old)
        return loss


@pytest.mark.parametrize("separable", [None, True])
def test_a_class_evaluates_its_closure_as_often_as_it_likes(
    make_network: MakeNetwork, attach: Attach, separable: bool | None
) -> None:
    model, plain_model = pair()
    network = make_network(seed=1, late_s=0.002)
    ours = attach(Sharpness(model.parameters(), lr=0.1, momentum=0.9), network, separable=separable)
    plain = Sharpness(plain_model.parameters(), lr=0.1, momentum=0.9)
    evaluations = 0

    def run(this: nn.Module, optimizer: Any, iteration: int) -> Any:
        def closure() -> Tensor:
            nonlocal evaluations
            evaluations += 1
            optimizer.zero_grad()
            loss = loss_of(this, iteration)
            loss.backward()
            zeros_for_unused(plain_model)
            return loss

        if iteration == 3:
            closure()
            return optimizer.step(None, scale=0.5)
        return optimizer.step(closure, scale=0.5)

    for iteration in range(6):
        found, expected = run(model, ours, iteration), run(plain_model, plain, iteration)
        assert found == expected, iteration
    assert evaluations == 2 * 11
    assert network.iterations == 6
    assert_equal(model, plain_model)
    assert ours.state_dict(extra=7)["extra"] == 7
    ours.load_state_dict(ours.state_dict())


@pytest.mark.parametrize("default", [True, False])
def test_a_class_has_a_default_of_its_own_for_set_to_none(
    network: Any, attach: Attach, default: bool
) -> None:
    class Mine(torch.optim.SGD):
        def zero_grad(self, set_to_none: bool = default) -> None:
            super().zero_grad(set_to_none)

    model = nn.Linear(2, 2)
    ours = attach(Mine(model.parameters(), lr=0.1), network)
    model(torch.ones(1, 2)).sum().backward()
    ours.step()
    ours.zero_grad()
    assert (model.weight.grad is None) == default
    assert list(inspect.signature(ours.zero_grad).parameters) == ["set_to_none"]


def test_a_closure_that_cannot_be_exchanged_is_refused(network: Any, attach: Attach) -> None:
    ours = attach(Sharpness(nn.Linear(2, 2).parameters(), lr=0.1), network, accumulation=2)
    with pytest.raises(RuntimeError, match="and the strategy accumulates steps: compute"):
        ours.step(lambda: torch.zeros(()))
