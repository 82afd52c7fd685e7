"""Spans of layers, on a clock that only layers move: which there are, in which order, how long."""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from byteprophet.observe.span_log import Span, SpanLog, process_spans
from byteprophet.observe.windows import Windows
from byteprophet.timeline.tables import Kind
from byteprophet.torch.front import updates
from byteprophet.torch.recording.layer_spans import LayerSpans, process_layers
from byteprophet.torch.tensors import module_calls

Attach = Callable[..., Any]


class _Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: Layer) -> Tensor:
        ctx.layer = layer
        layer.clock[0] += layer.time_ns
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        ctx.layer.clock[0] += 10 * ctx.layer.time_ns
        return gradients[0], None


class Layer(nn.Module):
    """Takes its time by moving the clock, tenfold in backward."""

    def __init__(self, clock: list[int], time_ns: int) -> None:
        super().__init__()
        self.clock, self.time_ns = clock, time_ns
        self.weight = nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = _Slow.apply(x * self.weight, self)  # type: ignore[no-untyped-call]
        return result


class Block(Layer):
    """A layer with a layer inside, called first."""

    def __init__(self, clock: list[int], time_ns: int, inner_ns: int) -> None:
        super().__init__(clock, time_ns)
        self.inner = Layer(clock, inner_ns)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.inner(x))


class Model(nn.Module):
    """Forward order: first, block.inner, block, tied (which has first's weight)."""

    def __init__(self, clock: list[int]) -> None:
        super().__init__()
        self.block = Block(clock, 3, 4)
        self.first = Layer(clock, 1)
        self.tied = Layer(clock, 2)
        self.tied.weight = self.first.weight
        self.free = nn.ReLU()
        self.again: str = "no"

    def forward(self, x: Tensor) -> Tensor:
        x = self.free(self.first(x))
        if self.again == "no":
            x = self.block(x)
        else:
            x = checkpoint(self.block, x, use_reentrant=self.again == "reentrant")
        return self.tied(x)


@pytest.fixture
def clock() -> list[int]:
    return [1000]


@pytest.fixture
def log(clock: list[int]) -> SpanLog:
    made = SpanLog(clock=lambda: clock[0])
    made.start(Windows.parse("", ""), 0)
    return made


@pytest.fixture
def model(clock: list[int]) -> Model:
    return Model(clock)


@pytest.fixture
def layers(log: SpanLog, model: Model) -> Iterator[LayerSpans]:
    made = LayerSpans(log, lambda: {id(p): name for name, p in model.named_parameters()})
    made.restart(0)
    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
            lambda of, name=name: made.gradient_ready(name, of.nbytes)
        )
    yield made
    log.stop()
    made.refresh()


def train(model: Model, layers: LayerSpans, iteration: int) -> None:
    """One iteration with time of the script's own around forward and backward."""
    clock = model.first.clock
    loss = model(torch.ones(2)).sum()
    clock[0] += 100
    layers.first_gradient(iteration)  # as the front has it
    loss.backward()
    with torch.no_grad():
        model(torch.ones(2))  # an evaluation
    clock[0] += 100


def taken(log: SpanLog) -> list[Span]:
    return [Span(*row) for row in log.take(1000)]


def brief(spans: list[Span], *kinds: Kind) -> list[tuple[str, int, int]]:
    """Name, duration and iteration of those of ``kinds``."""
    return [(s.name, s.end_ns - s.begin_ns, s.iteration) for s in spans if s.kind in kinds]


@pytest.mark.parametrize("again", ["no", "once more", "reentrant"])
def test_every_layer_once_in_order_and_within_its_iteration(
    again: str, model: Model, log: SpanLog, layers: LayerSpans
) -> None:
    model.again = again
    for iteration in (1, 2, 3):
        train(model, layers, iteration)
    spans = taken(log)
    assert brief(spans, Kind.FORWARD) == [
        row
        for n in (1, 2, 3)
        for row in (("first", 1, n), ("block.inner", 4, n), ("block", 4 + 3, n), ("tied", 2, n))
    ]
    # Backward: tied 20, what checkpointing runs again, block 30, inner 40, first 10.
    # Where nothing saved is missing any more, torch stops running again: before block's own time.
    again_ns = {"no": 0, "once more": 4, "reentrant": 4 + 3}[again]
    assert brief(spans, Kind.BACKWARD) == [
        row
        for n in (1, 2, 3)
        for row in (
            ("block.weight", 20 + again_ns + 30, n),
            ("block.inner.weight", 40, n),
            ("first.weight", 10, n),
        )
    ]
    whole = (1 + 4 + 3 + 2) * 12 + 2 * 100 + again_ns
    assert brief(spans, Kind.ITERATION) == [("iteration", whole, 1), ("iteration", whole, 2)]
    for iteration in (s for s in spans if s.kind == Kind.ITERATION):
        for span in (s for s in spans if s.iteration == iteration.iteration):
            assert iteration.begin_ns <= span.begin_ns <= span.end_ns <= iteration.end_ns
    assert {s.lane for s in spans} == {0}
    for one in spans:
        for other in spans:
            apart = one.end_ns <= other.begin_ns or other.end_ns <= one.begin_ns
            inside = one.begin_ns <= other.begin_ns and other.end_ns <= one.end_ns
            around = other.begin_ns <= one.begin_ns and one.end_ns <= other.end_ns
            assert apart or inside or around


def test_a_window_is_kept_and_hooks_are_there_for_it_only(
    model: Model, log: SpanLog, layers: LayerSpans
) -> None:
    log.start(Windows.parse("3:5", ""), 0)
    layers.restart(0)
    before = len(module_calls._after)
    there = []
    for iteration in range(1, 9):
        train(model, layers, iteration)
        there.append(len(module_calls._after) - before)
    spans = taken(log)
    assert there == [0, 1, 1, 1, 0, 0, 0, 0]
    assert {s.iteration for s in spans} == {3, 4}
    assert [n for _, _, n in brief(spans, Kind.ITERATION)] == [3, 4]
    assert len(brief(spans, Kind.FORWARD)) == 2 * 4
    assert len(brief(spans, Kind.BACKWARD)) == 2 * 3


def test_a_forward_that_failed_leaves_nothing_open(
    model: Model, log: SpanLog, layers: LayerSpans
) -> None:
    train(model, layers, 1)
    tied, model.tied = model.tied, nn.Linear(3, 3)  # does not fit
    with pytest.raises(RuntimeError):
        model(torch.ones(2))
    model.tied = tied
    log.take(1000)
    train(model, layers, 2)
    names = [name for name, _, _ in brief(taken(log), Kind.FORWARD)]
    assert names == ["first", "block.inner", "block", "tied"]


def test_parts_without_gradients_belong_to_the_forward(
    model: Model, log: SpanLog, layers: LayerSpans
) -> None:
    class Frozen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.backbone, self.head = model.first, model.block

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                x = self.backbone(x)
            return self.head(x)  # type: ignore[no-any-return]

    Frozen()(torch.ones(2))
    assert [name for name, _, _ in brief(taken(log), Kind.FORWARD)] == [
        "first",
        "block.inner",
        "block",
    ]


def release_when_waited_for(network: Any) -> None:
    """Release what is held once the main thread waits for an update."""
    main = threading.main_thread().ident
    assert main is not None

    def release() -> None:
        def waits() -> bool:
            stack = traceback.walk_stack(sys._current_frames()[main])
            return any(frame.f_code is updates.Updater._wait.__code__ for frame, _ in stack)

        while not waits():
            time.sleep(0.001)
        network.release()

    threading.Thread(target=release, daemon=True).start()


def test_waits_and_updates_of_the_front(attach: Attach, network: Any) -> None:
    """On the real clock: a layer begins when its parameters are there, whoever hooked first."""
    process_spans.start(Windows.parse("", ""), 0)
    process_layers.restart(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    optimizer = attach(torch.optim.SGD(model.parameters(), lr=0.1), network, model=model)
    try:
        for iteration in range(1, 5):
            optimizer.zero_grad()
            loss = model(torch.ones(1, 4)).sum()
            if iteration > 1:  # the order is agreed, so step() does not wait
                network.hold(lambda name: "0.weight" in name)
            loss.backward()
            optimizer.step()
            if iteration > 1:
                release_when_waited_for(network)
        optimizer.finish()
        spans = taken(process_spans)
    finally:
        network.release()
        process_spans.stop()
        process_layers.refresh()
    overlapped = [s for s in spans if s.iteration in (3, 4)]
    forwards = [s for s in overlapped if s.kind == Kind.FORWARD]
    assert [(s.name, s.iteration) for s in forwards] == [("0", 3), ("1", 3), ("0", 4), ("1", 4)]
    waits = [s for s in overlapped if s.kind == Kind.WAIT and s.name == "0.weight"]
    assert {s.iteration for s in waits} == {3, 4}
    for wait in waits:
        (layer,) = (s for s in forwards if (s.name, s.iteration) == ("0", wait.iteration))
        if wait.begin_ns < layer.end_ns:  # not the last, which finish() waited for
            assert wait.end_ns <= layer.begin_ns
            (update,) = (
                s
                for s in spans
                if (s.kind, s.name) == (Kind.UPDATE, "0.weight")
                and s.iteration == wait.iteration - 1
            )
            assert wait.begin_ns <= update.begin_ns <= update.end_ns <= wait.end_ns
            assert update.lane != wait.lane == layer.lane
    updated = [(s.name, s.iteration) for s in spans if s.kind == Kind.UPDATE and s.iteration >= 3]
    names = [name for name, _ in model.named_parameters()]
    assert sorted(updated) == sorted((name, n) for n in (3, 4) for name in names)
