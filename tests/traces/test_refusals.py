"""Traces that cannot be replayed are refused in one line that says why."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from byteprophet.errors import UserError
from byteprophet.simulate.clusters.description import find_cluster
from byteprophet.timeline.kineto_sizes import tensor_bytes
from byteprophet.timeline.read_chakra import read_chakra
from byteprophet.timeline.sources import load_sources
from byteprophet.traces.load import load_trace, load_traces
from byteprophet.traces.messages import message_of
from byteprophet.traces.result import replay_traces
from byteprophet.traces.retarget import Target, retarget

from .hand_made import Event, annotation, call, kernel, operator, step, written
from .made_gpu import Job, write_profiles

CONTENTS = {
    '{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "a"': "is cut off or not JSON",
    '{"traceEvents": [5]}': "event 0: must be an object",
    '{"traceEvents": []}': "has no operations of a thread",
    '{"nodes": []}': "is not a file that can be read: a torch.profiler trace or a Chakra trace",
    "\0\1\2": "is not a file that can be read",
    '{"traceEvents": []}{}': "has more than one JSON value",
    "": "is empty",
}


@pytest.mark.parametrize("content", CONTENTS)
def test_files_that_are_no_traces(content: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(content)
    with pytest.raises(UserError, match=CONTENTS[content]) as raised:
        load_trace(path)
    assert "\n" not in str(raised.value)
    assert str(path) in str(raised.value)


def test_without_an_iteration(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no complete iteration: .* profiler\.step"):
        load_trace(written(tmp_path / "a.json", [operator(1, 0, 10)]))


def test_without_launches(tmp_path: Path) -> None:
    events = [step(0, 100), operator(1, 0, 10), kernel(7, 20, 30, 1), kernel(7, 30, 40, 2)]
    with pytest.raises(UserError, match="2 of 2 kernels and copies have no launch"):
        load_trace(written(tmp_path / "a.json", events))
    events.append(call(1, 5, 6, 1))
    assert load_trace(written(tmp_path / "a.json", events)).steps


def test_ranks_that_do_not_fit_together(tmp_path: Path) -> None:
    one = written(tmp_path / "a.json", [step(0, 100), operator(1, 0, 10)])
    other, events = tmp_path / "b.json", [step(0, 100, 9), operator(1, 0, 10)]
    with pytest.raises(UserError, match=r"b\.json: is of rank 0, as .*a\.json is"):
        load_traces([one, written(other, events, distributedInfo={"rank": 0})])
    with pytest.raises(UserError, match="have no ProfilerStep in common"):
        replay_traces(load_traces([one, written(other, events, distributedInfo={"rank": 1})]))
    with pytest.raises(UserError, match="rank 99999: must be"):
        load_trace(written(other, events, distributedInfo={"rank": 99999}))


def test_no_file_is_two_ranks(tmp_path: Path) -> None:
    """Neither where it is found twice, nor where two state the same rank."""
    events = [step(0, 100), operator(1, 0, 10)]
    one = written(tmp_path / "a.json", events)
    with pytest.raises(UserError, match=r"a\.json: is given twice"):
        load_traces([tmp_path, one])
    with pytest.raises(UserError, match=r"a\.json: is given twice"):
        load_sources([one, one])
    for name in ("a", "b"):
        written(tmp_path / f"{name}.json", events, distributedInfo={"rank": 3})
    for load in (load_traces, load_sources):
        with pytest.raises(UserError, match=r"b\.json: is of rank 3, as .*a\.json is"):
            load([one, tmp_path / "b.json"])


@pytest.mark.parametrize("load", [load_trace, read_chakra, lambda path: load_sources([path])])
def test_files_that_do_not_end(load: Callable[[Path], object], tmp_path: Path) -> None:
    pipe, blank = tmp_path / "pipe.json", tmp_path / "blank.json"
    os.mkfifo(pipe)
    with pytest.raises(UserError, match=r"pipe\.json: is not a regular file"):
        load(pipe)
    with blank.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(UserError, match=r"blank\.json: begins with more than 64 MiB of blanks"):
        load(blank)


def test_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no traces"):
        load_traces([tmp_path])


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ([step(0, 0)], "ProfilerStep#1: takes no time"),
        ([step(0, 100), step(50, 200, 2)], "ProfilerStep#2: begins before the previous one ended"),
        ([step(0, 100), operator(1, 60, 20)], "'aten::mm': takes -40.000 us"),
    ],
)
def test_times_that_cannot_be(events: list[Event], said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=said):
        load_trace(written(tmp_path / "a.json", [operator(1, 0, 10), *events]))


def test_ranks_of_jobs_of_different_sizes(tmp_path: Path) -> None:
    def rank(number: int, world_size: int) -> Path:
        info = {"rank": number, "world_size": world_size}
        events = [step(0, 100), operator(1, 0, 10)]
        return written(tmp_path / f"{number}.{world_size}.json", events, distributedInfo=info)

    assert len(load_traces([rank(0, 2), rank(1, 2)])) == 2
    with pytest.raises(UserError, match=r"1\.4\.json: is of 4 ranks, and .*0\.2\.json of 2"):
        load_traces([rank(0, 2), rank(1, 4)])
    with pytest.raises(UserError, match=r"is of rank 2, but .* states 2 ranks"):
        load_traces([rank(0, 2), rank(2, 2)])


def test_clocks_that_do_not_run_alike(tmp_path: Path) -> None:
    """How far they are apart does not matter."""

    def rank(number: int, scale: float, ahead_us: float = 0) -> Path:
        events: list[Event] = []
        for at in range(3):
            begin_us = ahead_us + scale * 1000 * at
            events += [
                step(begin_us, begin_us + scale * 900, at),
                operator(1, begin_us, begin_us + scale * 10),
                annotation(2, begin_us + scale * 500, begin_us + scale * 800, "gloo:all_reduce"),
            ]
        info = {"rank": number, "world_size": 2}
        return written(tmp_path / f"{number}.json", events, distributedInfo=info)

    result = replay_traces(load_traces([rank(0, 1), rank(1, 1, ahead_us=5e6)]))
    assert result.built.matched == 3
    assert result.error == pytest.approx(0, abs=0.001)
    traces = load_traces([rank(0, 1), rank(1, 1.3)])
    with pytest.raises(
        UserError, match=r"1\.json: 2\.6 ms pass .*, and 2\.0 ms there: give traces"
    ):
        replay_traces(traces)


def test_ranks_that_called_collectives_in_different_orders(tmp_path: Path) -> None:
    """Each one would wait for the other."""

    def reduces(rank: int, *groups: str) -> Path:
        events = [step(0, 900), operator(1, 0, 10)]
        for at, group in enumerate(groups):
            begin_us = 100 * at + 50
            about = {"Process Group Name": group}
            events.append(operator(1, begin_us, begin_us + 5, "c10d::allreduce_"))
            events.append(annotation(2, begin_us + 8, begin_us + 60, "gloo:all_reduce", **about))
        info = {"rank": rank, "world_size": 2}
        return written(tmp_path / f"{rank}.json", events, distributedInfo=info)

    paths = [reduces(0, "a", "b"), reduces(1, "b", "a")]
    with pytest.raises(UserError, match="cannot be replayed with the other ranks") as raised:
        replay_traces(load_traces(paths))
    assert "\n" not in str(raised.value)


def test_targets_that_a_trace_does_not_tell(tmp_path: Path) -> None:
    write_profiles(tmp_path, Job(steps=1))
    traces = load_traces([tmp_path])
    a100, h100 = find_cluster("dgx-a100"), find_cluster("dgx-h100")
    with pytest.raises(UserError, match="needs the one on which the trace was recorded"):
        retarget(traces, Target(cluster=a100))
    with pytest.raises(UserError, match="dgx-h100 has other GPUs than dgx-a100"):
        retarget(traces, Target(recorded_on=a100, cluster=h100))
    with pytest.raises(UserError, match="has no process group tp, only 0"):
        retarget(traces, Target(data_parallel=4, group="tp"))
    alone = written(tmp_path / "alone.json", [step(0, 100), operator(1, 0, 10)])
    with pytest.raises(UserError, match="has no collectives"):
        retarget(load_traces([alone]), Target(data_parallel=4))


def test_sizes_and_ranks_that_cannot_be_are_not_known() -> None:
    """Chakra's numbers have 64 bits."""
    said = {"In msg nelems": 2**61, "dtype": "Double"}
    assert message_of("allreduce", said).size_bytes == 0
    assert message_of("allreduce", {**said, "In msg nelems": 2**59}).size_bytes == 2**62
    assert tensor_bytes({"Input Dims": [[2**40, 2**40]], "Input type": ["double"]}) == [0]
    assert message_of("send", {"Src Rank": 2**70, "Dst Rank": 1}).peers is None
    assert message_of("send", {"Src Rank": True, "Dst Rank": 1}).peers is None
    assert message_of("send", {"Src Rank": 0, "Dst Rank": 1}).peers == (0, 1)


def test_messages_by_the_names_of_all_years() -> None:
    kinds = {
        "allreduce": "all-reduce",
        "_allgather_base": "all-gather",
        "ncclKernel_ReduceScatter_RING_LL_Sum_float": "reduce-scatter",
        "all_to_all": "all-to-all",
        "ncclDevKernel_SendRecv": "",
        "send 0->1": "send",
    }
    assert {name: message_of(name, {}).kind for name in kinds} == kinds
