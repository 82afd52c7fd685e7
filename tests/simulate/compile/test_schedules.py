"""Our schedules equal those of torch.distributed.pipelining."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, schedules
from torch.testing._internal.distributed.fake_pg import FakeStore

from byteprophet.simulate.compile.schedules import Act, Action, actions_of, receives_of
from byteprophet.simulate.tree.one_line import parse_strategy

_ACTS = {"F": Act.FORWARD, "B": Act.BACKWARD, "I": Act.BACKWARD, "W": Act.WEIGHT}


@contextlib.contextmanager
def _stages(ranks: int, chunks: int) -> Iterator[list[Any]]:
    """The stages of rank 0 of a process group whose other ranks do not exist."""
    dist.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
    try:
        device = torch.device("cpu")
        yield [
            PipelineStage(torch.nn.Linear(1, 1), at * ranks, ranks * chunks, device)
            for at in range(chunks)
        ]
    finally:
        dist.destroy_process_group()


def _torch_lists(name: str, ranks: int, chunks: int, count: int) -> list[list[tuple[int, ...]]]:
    kinds = {
        "gpipe": schedules.ScheduleGPipe,
        "1f1b": schedules.Schedule1F1B,
        "interleaved": schedules.ScheduleInterleaved1F1B,
        "zb1p": schedules.ScheduleInterleavedZeroBubble,
    }
    with _stages(ranks, chunks) as stages:
        if name in ("gpipe", "1f1b"):
            order = kinds[name](stages[0], count)._get_pipeline_order()
        else:
            order = kinds[name](stages, count).pipeline_order
    letters = {
        kind: letter
        for letter, kind in (
            ("F", schedules.FORWARD),
            ("B", schedules.FULL_BACKWARD),
            ("I", schedules.BACKWARD_INPUT),
            ("W", schedules.BACKWARD_WEIGHT),
        )
    }
    lists = [
        [
            (action.stage_index, _ACTS[letters[action.computation_type]], action.microbatch_index)
            for action in order[rank]
            if action is not None and action.computation_type in letters
        ]
        for rank in range(ranks)
    ]
    if name == "1f1b":
        # torch lists the last rank's forward passes as 1, 2, ... count, but runs 0, 1, ...
        lists[-1] = [
            (stage, act, at - (act is Act.FORWARD and lists[-1][0][2] == 1))
            for stage, act, at in lists[-1]
        ]
    return lists


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "interleaved", "zb1p"])
@pytest.mark.parametrize(("ranks", "count"), [(2, 2), (2, 6), (4, 4), (4, 12), (3, 9), (8, 16)])
def test_lists_are_those_of_torch(name: str, ranks: int, count: int) -> None:
    chunks = 3 if name == "interleaved" else 1
    text = f"pp={ranks} micro_batches={count} schedule={name} chunks={chunks}"
    strategy = parse_strategy(text, ranks)
    ours = [[tuple(action) for action in actions_of(strategy, rank)] for rank in range(ranks)]
    assert ours == _torch_lists(name, ranks, chunks, count)


def _torch_receives(name: str, ranks: int, chunks: int, count: int) -> list[dict[Action, int]]:
    """For each receive of torch's runtime: how many actions of its rank come before it."""
    kinds = {
        "interleaved": schedules.ScheduleInterleaved1F1B,
        "zb1p": schedules.ScheduleInterleavedZeroBubble,
    }
    with _stages(ranks, chunks) as stages:
        order = kinds[name](stages, count).pipeline_order_with_comms
    found: list[dict[Action, int]] = []
    for rank in range(ranks):
        computed, asked = 0, {}
        for action in order[rank]:
            computed += action.computation_type in (
                schedules.FORWARD,
                schedules.FULL_BACKWARD,
                schedules.BACKWARD_INPUT,
                schedules.BACKWARD_WEIGHT,
            )
            acts = {schedules.RECV_F: Act.FORWARD, schedules.RECV_B: Act.BACKWARD}
            if action.computation_type in acts:
                act = acts[action.computation_type]
                asked[Action(action.stage_index, act, action.microbatch_index)] = computed
        found.append(asked)
    return found


@pytest.mark.parametrize(("name", "chunks"), [("interleaved", 2), ("interleaved", 4), ("zb1p", 1)])
@pytest.mark.parametrize(("ranks", "count"), [(2, 2), (2, 6), (4, 4), (4, 12), (3, 9), (8, 16)])
def test_receives_are_where_torch_posts_them(
    name: str, chunks: int, ranks: int, count: int
) -> None:
    text = f"pp={ranks} micro_batches={count} schedule={name} chunks={chunks}"
    strategy = parse_strategy(text, ranks)
    lists = [actions_of(strategy, rank) for rank in range(ranks)]
    assert receives_of(lists) == _torch_receives(name, ranks, chunks, count)
