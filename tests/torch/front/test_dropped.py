"""A new optimizer takes the names of one that is gone, but not while gradients of that one travel.

Other ranks may have all gradients by then. If this rank took other names, ranks would not agree.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from byteprophet.errors import TimedOut
from byteprophet.job.staleness import NO_DELAYS
from byteprophet.runtime_settings import RuntimeSettings
from byteprophet.torch.front import dropped, stopping
from byteprophet.torch.optimizer import Uncompressed, distribute
from byteprophet.torch.sync.fused_synchroniser import FusedSynchroniser
from byteprophet.torch.sync.synchroniser import Synchroniser

NAMES = {"weight", "bias"}
LATE = {"weight": 1, "bias": 1}


def optimizer_of(
    model: nn.Module,
    member: Synchroniser,
    staleness: Mapping[str, int] = NO_DELAYS,
    timeout_s: float = 30.0,
) -> Any:
    return distribute(
        torch.optim.SGD(model.parameters(), lr=0.1),
        None,
        Uncompressed,
        1,
        model=model,
        separable=None,
        synchroniser=member,
        settings=RuntimeSettings(timeout_s=timeout_s),
        staleness=staleness,
    )


def hold_gradients(network: Any) -> None:
    network.hold(lambda name: name.startswith("Gradient."))


def drop_with_delayed_averages(network: Any, member: Synchroniser) -> None:
    model = nn.Linear(2, 2)
    ours = optimizer_of(model, member, LATE)
    hold_gradients(network)
    model(torch.ones(2)).sum().backward()
    ours.step()


def drop_without_a_step(network: Any, member: Synchroniser) -> None:
    model = nn.Linear(2, 2)
    ours = optimizer_of(model, member)
    hold_gradients(network)
    model(torch.ones(2)).sum().backward()
    assert ours._front.gradients.unclaimed


def drop_with_outstanding_updates(network: Any, member: Synchroniser) -> None:
    model = nn.Linear(2, 2)
    ours = optimizer_of(model, member)
    for iteration in range(3):
        ours.zero_grad()
        if iteration == 2:
            ours.finish()
            hold_gradients(network)
        model(torch.ones(2)).sum().backward()
        ours.step()
    assert ours._front.updater.outstanding == 2


@pytest.mark.parametrize(
    "drop", [drop_with_delayed_averages, drop_without_a_step, drop_with_outstanding_updates]
)
def test_names_are_free_when_the_last_gradient_has_arrived(
    network: Any, drop: Callable[[Any, Synchroniser], None]
) -> None:
    member = network.rank()
    drop(network, member)
    gc.collect()
    threading.Timer(0.5, network.release).start()
    second = nn.Linear(2, 2)
    optimizer_of(second, member)
    assert member.names.keys() == NAMES
    second(torch.ones(2)).sum().backward()  # the network refuses a second gradient in flight


def test_parameters_are_taken_over_when_their_gradients_have_arrived(network: Any) -> None:
    """The optimizer still exists, and another one takes its parameters."""
    member, model = network.rank(), nn.Linear(2, 2)
    ours = optimizer_of(model, member)
    hold_gradients(network)
    model(torch.ones(2)).sum().backward()
    threading.Timer(0.5, network.release).start()
    optimizer_of(model, member)
    assert not ours._front.manages(model.parameters())
    assert torch.equal(model.weight.grad, torch.ones(2, 2))  # NaN as long as it travels
    model(torch.ones(2)).sum().backward()  # the network refuses a second gradient in flight


def test_the_end_of_the_job_waits_for_them(network: Any) -> None:
    drop_with_delayed_averages(network, network.rank())
    gc.collect()
    assert len(dropped._in_flight) == len(NAMES)
    threading.Timer(0.2, network.release).start()
    stopping.stop_all()
    assert not dropped._in_flight


def test_the_script_may_still_use_the_model(network: Any) -> None:
    """A network that exists keeps its names. So the second one gets others on every rank."""
    member = network.rank()
    first, second = nn.Linear(2, 2), nn.Linear(2, 2)
    optimizer_of(first, member)
    optimizer_of(second, member)
    assert member.names.keys() == {*NAMES, "weight@2", "bias@2"}


def test_the_error_says_what_is_waited_for(network: Any) -> None:
    member = network.rank()
    drop_with_delayed_averages(network, member)
    gc.collect()
    with pytest.raises(TimedOut, match=r"waited 0\.2 s for .* is gone.*of '(weight|bias)': anoth"):
        optimizer_of(nn.Linear(2, 2), member, timeout_s=0.2)
    network.release()
    assert dropped.wait(20.0) is None


class Halves(nn.Module):
    """Two layers, of which a loss may need only one."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, both: bool) -> Tensor:
        one: Tensor = self.one(torch.ones(2))
        if both:
            one = self.other(one)
        return one.sum()


def test_a_gradient_that_is_never_sent_is_not_waited_for(network: Any) -> None:
    member = network.rank()

    def train() -> None:
        model = Halves()
        ours = optimizer_of(model, FusedSynchroniser(member, 1 << 10, 30.0, ()))
        for _ in range(3):
            ours.zero_grad()
            model(True).backward()
            ours.step()
        ours.finish()
        ours.zero_grad()
        hold_gradients(network)
        model(False).backward()
        assert ours._front.synchroniser.holds_back("one.weight")

    train()
    gc.collect()
    optimizer_of(Halves(), FusedSynchroniser(member, 1 << 10, 30.0, ()))
    assert {name for name in member.names if "@" in name} == set()
