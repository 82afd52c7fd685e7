"""The paced model: real autograd, real optimizers, lower bounds on time."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import torch
else:
    torch = pytest.importorskip("torch")

from byteprophet.observe.span_log import Span, SpanLog
from byteprophet.observe.windows import Windows
from byteprophet.paced.check import expected_parameters, parameters_sha256
from byteprophet.paced.gradient import LEARNING_RATE, Patterns, coefficient
from byteprophet.paced.model import PacedModel
from byteprophet.timeline.tables import Kind
from byteprophet.workload import Tensor, Workload

MS = 1_000_000
NAMES = ("b.weight", "a.0.weight", "a.0", "training", "a.1.bias", "z/y:x")


def workload(*bursts: int | None, each_ns: int = 0) -> Workload:
    return Workload(
        "w",
        1,
        tuple(
            Tensor(NAMES[i], 4 * (i + 300), each_ns, 2 * each_ns, burst)
            for i, burst in enumerate(bursts or (None,) * len(NAMES))
        ),
    )


def run(model: torch.nn.Module) -> None:
    model(torch.zeros(1)).sum().backward()


def gradient_of(values: torch.Tensor) -> torch.Tensor:
    assert values.grad is not None
    return values.grad


def first_gradient(model: PacedModel) -> torch.Tensor:
    return gradient_of(next(model.parameters()))


def digest(model: PacedModel) -> str:
    return parameters_sha256(
        (name, values.detach().numpy()) for name, values in model.named_tensors()
    )


def test_state_dict_is_in_forward_order_and_names_map() -> None:
    model = PacedModel(workload(), 0)
    assert list(model.state_dict()) == [
        "00000:b/weight.values",
        "00001:a/0/weight.values",
        "00002:a/0.values",
        "00003:training.values",
        "00004:a/1/bias.values",
        "00005:z/y:x.values",
    ]
    named = dict(model.named_tensors())
    assert tuple(named) == NAMES
    assert [p.numel() for p in named.values()] == [300 + i for i in range(len(NAMES))]
    for (_, by_module), (_, by_tensor) in zip(
        model.named_parameters(), model.named_tensors(), strict=True
    ):
        assert by_module is by_tensor


def test_initial_parameters_are_the_stated_ones() -> None:
    model = PacedModel(workload(), 3)
    assert digest(model) == parameters_sha256(expected_parameters(workload(), 1, 0))


def test_gradients_are_the_stated_ones_of_rank_and_iteration() -> None:
    model = PacedModel(workload(None, 1, 1, 1), rank=5)
    patterns = Patterns(1000)
    for iteration in range(3):
        model.zero_grad()
        run(model)
        for name, values in model.named_tensors():
            pattern = patterns.pattern(name, values.numel())
            assert torch.equal(gradient_of(values), pattern * coefficient(name, 5, iteration))


def test_evaluation_does_not_count() -> None:
    model = PacedModel(workload(), 0)
    with torch.no_grad():
        model(torch.zeros(1))
    run(model)
    pattern = Patterns(1000).pattern(NAMES[0], 300)
    assert torch.equal(first_gradient(model), pattern * coefficient(NAMES[0], 0, 0))


def test_gradients_accumulate() -> None:
    model = PacedModel(workload(), 0)
    run(model)
    run(model)
    pattern = Patterns(1000).pattern(NAMES[0], 300)
    scale = coefficient(NAMES[0], 0, 0) + coefficient(NAMES[0], 0, 1)
    assert torch.equal(first_gradient(model), pattern * scale)


def test_two_forward_passes_before_their_backward_passes() -> None:
    model = PacedModel(workload(), 0)
    first, second = model(torch.zeros(1)), model(torch.zeros(1))
    for output, iteration in ((second, 1), (first, 0)):
        model.zero_grad()
        output.sum().backward()
        pattern = Patterns(1000).pattern(NAMES[0], 300)
        expected = pattern * coefficient(NAMES[0], 0, iteration)
        assert torch.equal(first_gradient(model), expected)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_training_alone_gives_the_expected_parameters(set_to_none: bool) -> None:
    job = workload(None, 4, 4, None, 6, 6)
    model = PacedModel(job, 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    for _ in range(25):
        optimizer.zero_grad(set_to_none=set_to_none)
        run(model)
        optimizer.step()
    assert digest(model) == parameters_sha256(expected_parameters(job, 1, 25))


@pytest.mark.parametrize("bursts", [(None,) * 6, (1, 1, None, 2, 2, 2)])
def test_gradients_arrive_in_order_and_not_before_their_time(
    bursts: tuple[int | None, ...],
) -> None:
    job = workload(*bursts, each_ns=MS)
    model = PacedModel(job, 0)
    arrivals: list[tuple[str, int]] = []
    for name, values in model.named_tensors():
        values.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
            lambda _, name=name: arrivals.append((name, time.monotonic_ns()))
        )
    began_ns = time.monotonic_ns()
    run(model)
    ready = {t.name: ready_ns for t, ready_ns in zip(job.tensors, job.ready_ns(), strict=True)}
    assert sorted(ready[name] for name, _ in arrivals) == [ready[name] for name, _ in arrivals]
    assert {name for name, _ in arrivals} == set(ready)
    for name, arrived_ns in arrivals:
        assert arrived_ns - began_ns >= job.forward_ns + ready[name]


def test_an_iteration_is_never_shorter_than_stated() -> None:
    job = workload(each_ns=MS)
    model = PacedModel(job, 0)
    for _ in range(3):
        began_ns = time.monotonic_ns()
        run(model)
        assert time.monotonic_ns() - began_ns >= job.forward_ns + job.backward_ns


def test_takes_other_times_and_tells_its_spans() -> None:
    job, slower = workload(each_ns=MS), workload(each_ns=2 * MS)
    model, log = PacedModel(job, 0), SpanLog()
    log.start(Windows.parse("", ""), 0)
    model.record_spans(log)
    for iteration, times in enumerate((job, slower), 1):
        model.take_times_of(times)
        with torch.no_grad():
            model(torch.zeros(1))  # an evaluation: no layer of an iteration
        began_ns = time.monotonic_ns()
        run(model)
        ended_ns = time.monotonic_ns()
        layers = [s for row in log.take(1000) if (s := Span(*row)).kind != Kind.ITERATION]
        assert [(s.kind, s.name, s.end_ns - s.begin_ns, s.iteration) for s in layers] == [
            *((Kind.FORWARD, t.name, t.forward_ns, iteration) for t in times.tensors),
            *((Kind.BACKWARD, t.name, t.backward_ns, iteration) for t in times.tensors[::-1]),
        ]
        assert len({span.lane for span in layers}) == 1
        handed_over = [s.size_bytes for s in layers if s.kind == Kind.BACKWARD]
        assert handed_over == [t.size_bytes for t in times.tensors[::-1]]
        edges = [began_ns, *(ns for s in layers for ns in (s.begin_ns, s.end_ns)), ended_ns]
        assert edges == sorted(edges)


def test_a_copy_and_a_loaded_state_train_on() -> None:
    job = workload(None, 1, 1)
    original = PacedModel(job, 0)
    run(original)
    with torch.no_grad():
        for values in original.parameters():
            values.add_(1)
    copied, loaded = copy.deepcopy(original), PacedModel(job, 0)
    loaded.load_state_dict(original.state_dict())
    assert digest(copied) == digest(loaded) == digest(original)
    copied.zero_grad()
    run(copied)
    pattern = Patterns(1000).pattern(NAMES[0], 300)
    assert torch.equal(first_gradient(copied), pattern * coefficient(NAMES[0], 0, 1))


def test_forward_hooks_see_one_layer_per_tensor() -> None:
    model = PacedModel(workload(1, 1, 1), 0)
    seen: list[str] = []

    def hook(module: torch.nn.Module, _inputs: object) -> None:
        seen.extend(
            name for name, p in model.named_tensors() for q in module.parameters() if p is q
        )

    for layer in model.children():
        layer.register_forward_pre_hook(hook)
    run(model)
    assert seen == list(NAMES[:3])


@pytest.fixture
def gloo(tmp_path: object) -> Iterator[None]:
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1
    )
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("gloo")
def test_under_distributed_data_parallel() -> None:
    job = workload(None, 1, 1)
    model = PacedModel(job, 0)
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=LEARNING_RATE)
    for _ in range(4):
        optimizer.zero_grad()
        run(wrapped)
        optimizer.step()
    assert digest(model) == parameters_sha256(expected_parameters(job, 1, 4))


def test_layers_take_their_time_in_the_thread_while_somebody_measures_that() -> None:
    """Otherwise, only the whole pass does: the thread may run ahead of the device."""
    layer_ns = 300_000
    model = PacedModel(workload(each_ns=layer_ns), 0)
    model.keep_step_while(lambda: is_timed)
    ended_ns: list[int] = []
    for layer in model.children():
        layer.register_forward_hook(lambda *_: ended_ns.append(time.monotonic_ns()))
    for is_timed in (False, True, False):
        ended_ns.clear()
        begun_ns = time.monotonic_ns()
        model(torch.zeros(1))
        assert time.monotonic_ns() - begun_ns >= len(NAMES) * layer_ns
        if is_timed:
            assert all(
                end_ns - begun_ns >= count * layer_ns for count, end_ns in enumerate(ended_ns, 1)
            )
