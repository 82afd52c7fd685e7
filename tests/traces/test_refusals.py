"""Traces that cannot be replayed are refused in one line that says why."""

from __future__ import annotations

from pathlib import Path

import pytest

from byteprophet.errors import UserError
from byteprophet.simulate.clusters.description import find_cluster
from byteprophet.traces.load import load_trace, load_traces
from byteprophet.traces.messages import message_of
from byteprophet.traces.result import replay_traces
from byteprophet.traces.retarget import Target, retarget

from .hand_made import annotation, call, kernel, operator, step, written
from .made_gpu import Job, write_profiles

CONTENTS = {
    '{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "a"': "is cut off or not JSON",
    '{"traceEvents": [5]}': "event 0: must be an object",
    '{"traceEvents": []}': "has no operations of a thread",
    '{"nodes": []}': "is not a file that can be read: a torch.profiler trace or a Chakra trace",
    "\0\1\2": "is not a file that can be read",
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


def test_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no traces"):
        load_traces([tmp_path])


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
