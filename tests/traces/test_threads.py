"""Waits between threads: who waits for whom, and who only seems to."""

from __future__ import annotations

from pathlib import Path

import pytest

from byteprophet.traces.load import load_traces
from byteprophet.traces.result import replay_traces

from .hand_made import annotation, loaded, operator, step, waits, written


def test_autograd_waits_for_the_training_thread_and_the_reverse(tmp_path: Path) -> None:
    trace = loaded(
        tmp_path,
        step(0, 5000),
        operator(1, 100, 1000, "aten::linear"),
        operator(2, 1080, 3000, "autograd::engine::evaluate_function: AddmmBackward0"),
        operator(1, 3050, 4900, "aten::add_"),
    )
    assert waits(trace) == [
        ("aten::linear 100-1000", "Python 1000-1080"),
        ("autograd::engine::evaluate_function: AddmmBackward0 1080-3000", "Python 3000-3050"),
    ]
    assert replay_traces([trace]).replayed_ns == 5_000_000
    assert replay_traces([trace], with_waits=False).replayed_ns == 3_000_000


def test_python_between_operators_is_not_a_wait(tmp_path: Path) -> None:
    """Another thread that stops long before the pause is over did not end it."""
    trace = loaded(
        tmp_path,
        step(0, 9000),
        operator(1, 0, 1000),
        operator(2, 900, 1100, "aten::add"),
        operator(1, 6000, 9000),
    )
    assert waits(trace) == []


def test_a_thread_in_a_function_of_torchscript_may_wait(tmp_path: Path) -> None:
    trace = loaded(
        tmp_path,
        step(0, 4000),
        operator(1, 0, 3900, "forked"),
        operator(1, 10, 500, "aten::relu"),
        operator(2, 100, 3800, "aten::mm"),
    )
    assert waits(trace) == []  # nothing tells that it was not the function itself that went on
    trace = loaded(
        tmp_path,
        step(0, 4000),
        operator(1, 0, 3980, "forked"),
        operator(1, 10, 500, "aten::relu"),
        operator(2, 100, 3800, "aten::mm"),
        operator(1, 3850, 3950, "aten::add"),
    )
    assert waits(trace) == [("aten::mm 100-3800", "forked 3800-3980")]


def test_an_operator_of_a_library_does_not_wait(tmp_path: Path) -> None:
    trace = loaded(
        tmp_path,
        step(0, 4000),
        operator(1, 0, 3980, "aten::embedding_backward"),
        operator(1, 10, 500, "aten::zeros"),
        operator(2, 100, 3800, "aten::mm"),
        operator(1, 3850, 3950, "aten::add"),
    )
    assert waits(trace) == []


def test_a_queue_is_seen_because_it_recurs(tmp_path: Path) -> None:
    """A thread fills a queue and goes on at once; the training thread takes what it made."""
    events = [step(0, 40_000)]
    for at in range(0, 40_000, 4000):
        events.append(operator(2, at, at + 3000, "aten::randn"))
        events.append(operator(2, at + 3010, at + 3900, "aten::sum"))
        events.append(operator(1, at + 3050, at + 3800, "aten::linear"))
    trace = loaded(tmp_path, *events)
    found = waits(trace)
    assert len(found) == 9  # what the first iteration waited for began before the trace
    assert found[0] == ("aten::randn 4000-7000", "Python 7000-7050")
    assert replay_traces([trace], with_waits=False).replayed_ns < 20_000_000


def test_a_thread_that_is_always_busy_explains_nothing(tmp_path: Path) -> None:
    """Something of it ends just before any pause is over."""
    events = [step(0, 40_000)]
    events += [operator(2, at, at + 190, "aten::add") for at in range(0, 40_000, 200)]
    events += [operator(1, at + 1050, at + 3800) for at in range(0, 40_000, 4000)]
    assert waits(loaded(tmp_path, *events)) == []


def test_gloo_begins_when_it_is_called(tmp_path: Path) -> None:
    sizes = {"Input Dims": [[1000]], "Input type": ["float"]}
    trace = loaded(
        tmp_path,
        step(0, 9000),
        operator(1, 100, 200, "c10d::allreduce_"),
        operator(1, 220, 2000),
        operator(1, 2010, 2100, "c10d::allreduce_"),
        annotation(3, 150, 2500, "gloo:all_reduce", **sizes),
        annotation(3, 2510, 4010, "gloo:all_reduce", **sizes),
        operator(1, 4000, 8900),
    )
    assert waits(trace) == [
        ("c10d::allreduce_ 100-150", "gloo:all_reduce 150-2500"),
        ("c10d::allreduce_ 2010-2100", "gloo:all_reduce 2510-4000"),
        # gloo notes the end after it has woken the thread that waits.
        ("gloo:all_reduce 2510-4000", "aten::mm 4000-8900"),
    ]
    sent = [task.message for task in trace.tasks if task.message is not None]
    assert [(message.kind, message.size_bytes) for message in sent] == [("all-reduce", 4000)] * 2


@pytest.mark.parametrize(("ends_us", "is_wait"), [(52_000, True), (70_000, False)])
def test_a_long_wait_may_end_before_its_collective_does(
    ends_us: float, is_wait: bool, tmp_path: Path
) -> None:
    """gloo's thread notes the end late. The collective began before the pause of 48 ms did."""
    sizes = {"Input Dims": [[1000]], "Input type": ["float"]}
    trace = loaded(
        tmp_path,
        step(0, 80_000),
        operator(1, 100, 200, "c10d::allreduce_"),
        annotation(3, 150, ends_us, "gloo:all_reduce", **sizes),
        operator(1, 220, 2000),
        operator(1, 50_000, 79_000),
    )
    found = [wait for wait in waits(trace) if wait[0].startswith("gloo:all_reduce")]
    assert bool(found) == is_wait


@pytest.mark.parametrize("workers", ["_SingleProcess", "_MultiProcessing"])
def test_a_wait_for_data_has_its_own_name(workers: str, tmp_path: Path) -> None:
    name = f"enumerate(DataLoader)#{workers}DataLoaderIter.__next__"
    trace = loaded(tmp_path, step(0, 4000), annotation(1, 100, 2100, name), operator(1, 2100, 4000))
    assert replay_traces([trace]).use_of_time() == {
        "compute": 1_900_000,
        "communication": 0,
        "copies": 0,
        "data loading": 2_000_000,
        "host": 100_000,
        "idle": 0,
    }


def test_use_of_time_is_that_of_the_steps_of_all_ranks(tmp_path: Path) -> None:
    """Rank 0 profiled one more, ten times as long."""
    for rank, first in enumerate((1, 2)):
        events = []
        for number, begin_us, end_us in ((1, 0, 10_000), (2, 10_000, 11_000))[first - 1 :]:
            events += [step(begin_us, end_us, number), operator(1, begin_us, end_us - 100)]
        info = {"rank": rank, "world_size": 2}
        written(tmp_path / f"{rank}.json", events, distributedInfo=info)
    result = replay_traces(load_traces([tmp_path]))
    assert [one.number for one in result.iterations] == [2]
    assert sum(result.use_of_time().values()) == result.replayed_ns == 1_000_000
