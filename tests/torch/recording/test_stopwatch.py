"""Forward times, on a clock that only layers move: what is counted, and for which tensor."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from byteprophet.profile.estimate import Forward
from byteprophet.torch.recording.stopwatch import Stopwatch
from byteprophet.torch.tensors import module_calls

Attach = Callable[..., Any]
SECOND = 10**9  # much longer than the real waits of the tests' network


class Layer(nn.Module):
    """Takes its time, by moving the clock; has a parameter if it is ``learned``."""

    def __init__(self, clock: list[int], time_ns: int, learned: bool = True) -> None:
        super().__init__()
        self.clock, self.time_ns = clock, time_ns
        self.weight = nn.Parameter(torch.ones(2)) if learned else None

    def forward(self, x: Tensor) -> Tensor:
        self.clock[0] += self.time_ns
        return x if self.weight is None else x * self.weight


class Block(nn.Module):
    """A container with an inner layer, which takes time of its own after that layer."""

    def __init__(self, inner: Layer) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        x = self.inner(x)
        self.inner.clock[0] += 5 * SECOND
        return x


class Model(nn.Module):
    """Forward order: first, inner, last; one layer without parameters after the first."""

    def __init__(self, clock: list[int]) -> None:
        super().__init__()
        self.last = Layer(clock, 4 * SECOND)
        self.first = Layer(clock, 1 * SECOND)
        self.free = Layer(clock, 2 * SECOND, learned=False)
        self.block = Block(Layer(clock, 3 * SECOND))
        self.again = False

    def forward(self, x: Tensor) -> Tensor:
        x = self.free(self.first(x))
        x = checkpoint(self.block, x, use_reentrant=False) if self.again else self.block(x)
        return self.last(x)


def run(
    model: nn.Module, optimizer: Any, stopwatch: Stopwatch, numbers: Iterator[int]
) -> Forward | None:
    """Run one iteration; return the measured forward pass."""
    optimizer.zero_grad()
    loss = model(torch.ones(7, 2)).sum()
    stopwatch.begin_iteration(next(numbers))  # like the front: at the first gradient
    loss.backward()
    with torch.no_grad():
        model(torch.ones(7, 2))  # an evaluation
    optimizer.step()
    return next(iter(stopwatch.drain()), None)


@pytest.fixture
def clock() -> list[int]:
    return [0]


@pytest.fixture
def stopwatch(clock: list[int]) -> Iterator[Stopwatch]:
    made = Stopwatch(lambda: clock[0])
    yield made
    for serial in [*made._enabled]:
        made.set_enabled(False, serial)
    made.begin_iteration(0)


def seconds(forward: Forward | None) -> list[int]:
    assert forward is not None
    return [round(forward.times_ns.get(position, 0) / SECOND) for position in range(3)]


@pytest.mark.parametrize("again", [False, True])
def test_times_go_to_the_tensor_needed_last(
    again: bool, attach: Attach, network: Any, clock: list[int], stopwatch: Stopwatch
) -> None:
    model = Model(clock)
    model.again = again
    optimizer = attach(torch.optim.SGD(model.parameters(), lr=0.1), network, model=model)
    numbers = iter(range(1, 100))
    stopwatch.set_enabled(True)
    assert run(model, optimizer, stopwatch, numbers) is None  # from the next iteration on
    run(model, optimizer, stopwatch, numbers)
    for _ in range(3):
        forward = run(model, optimizer, stopwatch, numbers)
        assert seconds(forward) == [1 + 2, 3 + 5, 4]
        assert forward is not None
        assert forward.batch_size == 7
    assert forward.iteration == 5


def test_each_front_has_its_own_times(
    attach: Attach, make_network: Callable[[], Any], clock: list[int], stopwatch: Stopwatch
) -> None:
    model = Model(clock)
    halves = ([model.first, model.block], [model.last])
    optimizers = [
        attach(
            torch.optim.SGD([p for each in half for p in each.parameters()], lr=0.1),
            make_network(),
            model=model,
        )
        for half in halves
    ]
    serials = [optimizer._front.serial for optimizer in optimizers]
    for serial in serials:
        stopwatch.set_enabled(True, serial)
    for number in range(1, 5):
        optimizers[1].zero_grad()
        run(model, optimizers[0], stopwatch, iter([number]))
        optimizers[1].step()
    first, second = (stopwatch.drain(serial)[-1] for serial in serials)
    assert seconds(first) == [1 + 2, 3 + 5 + 4, 0]
    assert seconds(second) == [1 + 2 + 3 + 5 + 4, 0, 0]
    stopwatch.set_enabled(False, serials[0])
    run(model, optimizers[0], stopwatch, iter([5]))
    assert stopwatch.runs
    assert (first.ended_ns, first.iteration) == (second.ended_ns, second.iteration)


def test_ended_is_when_the_outermost_module_returned(
    attach: Attach, network: Any, clock: list[int], stopwatch: Stopwatch
) -> None:
    model = Model(clock)
    optimizer = attach(torch.optim.SGD(model.parameters(), lr=0.1), network, model=model)
    stopwatch.set_enabled(True)
    stopwatch.begin_iteration(1)
    loss = model(torch.ones(7, 2)).sum()
    ended_ns = clock[0]
    clock[0] += 50 * SECOND  # the script's own
    stopwatch.begin_iteration(2)
    loss.backward()
    optimizer.step()
    (forward,) = stopwatch.drain()
    assert forward.ended_ns == ended_ns
    assert sum(forward.times_ns.values()) < 16 * SECOND


def test_no_hooks_are_left(
    attach: Attach, network: Any, clock: list[int], stopwatch: Stopwatch
) -> None:
    before = len(module_calls._after)
    stopwatch.set_enabled(True)
    assert len(module_calls._after) == before
    stopwatch.begin_iteration(1)
    stopwatch.begin_iteration(2)
    assert len(module_calls._after) == before + 1
    stopwatch.set_enabled(False)
    stopwatch.begin_iteration(3)
    assert len(module_calls._after) == before


def test_a_forward_that_failed_is_forgotten(
    attach: Attach, network: Any, clock: list[int], stopwatch: Stopwatch
) -> None:
    class Fails(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise ZeroDivisionError

    model = Model(clock)
    optimizer = attach(torch.optim.SGD(model.parameters(), lr=0.1), network, model=model)
    numbers = iter(range(1, 100))
    stopwatch.set_enabled(True)
    run(model, optimizer, stopwatch, numbers)
    free, model.free = model.free, Fails()  # type: ignore[assignment]
    with pytest.raises(ZeroDivisionError):
        model(torch.ones(7, 2))
    model.free = free
    run(model, optimizer, stopwatch, numbers)
    run(model, optimizer, stopwatch, numbers)
    assert seconds(run(model, optimizer, stopwatch, numbers)) == [3, 8, 4]


def test_waits_for_updates_are_left_out(attach: Attach, network: Any, clock: list[int]) -> None:
    """On the real clock: the forward pass is held up for longer than the limit tested below."""
    held_s = 1.0
    model, stopwatch = Model(clock), Stopwatch()
    optimizer = attach(torch.optim.SGD(model.parameters(), lr=0.1), network, model=model)
    numbers = iter(range(1, 100))
    stopwatch.set_enabled(True)
    try:
        for _ in range(3):
            run(model, optimizer, stopwatch, numbers)
        optimizer.finish()  # nothing of the iterations before is held
        network.hold(lambda name: "last" in name)
        optimizer.zero_grad()
        model(torch.ones(7, 2)).sum().backward()
        optimizer.step()
        stopwatch.begin_iteration(next(numbers))
        stopwatch.drain()
        threading.Timer(held_s, network.release).start()
        begun_s = time.monotonic()
        model(torch.ones(7, 2))
        assert time.monotonic() - begun_s > 0.9 * held_s
        stopwatch.begin_iteration(next(numbers))
        (forward,) = stopwatch.drain()
        assert sum(forward.times_ns.values()) < 0.5 * held_s * SECOND
    finally:
        network.release()
        stopwatch.set_enabled(False)
        stopwatch.begin_iteration(0)
