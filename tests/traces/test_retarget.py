"""How the times of communication change with links, clusters and process groups."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from byteprophet.errors import UserError
from byteprophet.simulate.clusters.description import Cluster, find_cluster
from byteprophet.timeline.sources import load_sources
from byteprophet.timeline.tables import Kind
from byteprophet.traces import link_times
from byteprophet.traces.load import load_traces
from byteprophet.traces.messages import Message
from byteprophet.traces.result import replay_traces
from byteprophet.traces.retarget import Target, not_modelled, not_sized, retarget
from byteprophet.traces.work import RankTrace, Use

from .hand_made import Event, annotation, call, kernel, loaded, operator, step, written

A100 = find_cluster("dgx-a100")
SIZED: dict[str, Any] = {"In msg nelems": 50 << 20, "dtype": "Float"}
PIPELINE: dict[str, Any] = {"Process Group Ranks": "[0, 8]", "Src Rank": 0, "Dst Rank": 1, **SIZED}
NO_RANKS = "does not state its number of ranks, which the model of all-reduce needs"


def test_a_network_that_is_oversubscribed_is_slower(tmp_path: Path) -> None:
    """Each node is below a leaf of its own, whose uplinks have an eighth of the adapters' rate."""
    network = replace(A100.network, nodes_per_leaf=1, uplink_share=0.125)
    target = Target(recorded_on=A100, cluster=replace(A100, network=network))
    traces = [_trace(tmp_path, "all_reduce", world_size=16, **SIZED)]
    assert 6 < _factor(traces, target) < 8


def test_a_message_between_nodes_follows_the_network(tmp_path: Path) -> None:
    traces = [_trace(tmp_path, "send", world_size=16, **PIPELINE)]
    target = Target(recorded_on=A100, cluster=_tenth())
    assert 9 < _factor(traces, target) < 10
    assert not_modelled(traces, target) == {}
    within_node = {**PIPELINE, "Process Group Ranks": "[0, 1]"}
    assert _factor([_trace(tmp_path, "send", world_size=16, **within_node)], target) == 1


@pytest.mark.parametrize("kind", ["broadcast", "send"])
def test_what_has_no_model_is_named(kind: str, tmp_path: Path) -> None:
    """A message has none where its ranks are not known. A scale of all links needs no model."""
    traces = [_trace(tmp_path, kind, world_size=16, **SIZED)]
    target = Target(recorded_on=A100, cluster=_tenth())
    assert not_modelled(traces, target) == {kind: 400_000}
    assert _factor(traces, target) == 1
    assert _factor(traces, Target(link_scale=0.1)) == 10
    assert not_modelled(traces, Target(link_scale=0.1)) == {}


def test_without_a_number_of_ranks(tmp_path: Path) -> None:
    """All transfers are so many times as long, whatever the number is."""
    traces = [_trace(tmp_path, "all_reduce", **SIZED)]
    assert _factor(traces, Target(link_scale=0.1)) == 10
    assert _factor(traces, Target(compute_scale=0.5)) == 1
    for target in (Target(recorded_on=A100, cluster=_tenth()), Target(data_parallel=8)):
        with pytest.raises(UserError, match=NO_RANKS):
            _factor(traces, target)


def test_a_description_is_of_all_groups_along_an_axis(tmp_path: Path) -> None:
    """Of a mesh of 2 by 2 ranks, whose groups have names of their own."""
    traces = _mesh(tmp_path, "mesh_tp", "mesh_dp")
    for one in traces:
        assert _factor([one], Target(data_parallel=16, group="mesh_dp"), "dp") == 15 / 8
    target = Target(data_parallel=16, group="mesh_dp")
    factors = retarget(traces, target)
    changed = [[factors(task, 800) for task in one.tasks if task.message] for one in traces]
    assert changed == [[800, 1500]] * 4
    with pytest.raises(UserError, match=r"is not in .* 4 mesh_dp, .*: use --group mesh_dp"):
        retarget(traces, replace(target, group="4"))
    with pytest.raises(UserError, match="has several process groups"):
        retarget(traces, replace(target, group=""))
    retarget(traces[:1], replace(target, group="4"))


def test_a_number_is_not_of_other_groups_of_its_size(tmp_path: Path) -> None:
    traces = _mesh(tmp_path, "", "")
    with pytest.raises(UserError, match="which may be data parallelism's too: give traces of one"):
        retarget(traces, Target(data_parallel=16, group="4"))


@pytest.mark.parametrize(
    "name", ["ncclDevKernel", "rcclGenericKernel<1>", "void rcclGenericKernel<1>()", "mscclKernel"]
)
def test_kernels_of_nccls_relatives_communicate(name: str, tmp_path: Path) -> None:
    events = [step(0, 100), operator(1, 0, 10), call(1, 2, 4, 1), kernel(7, 20, 60, 1, name)]
    trace = loaded(tmp_path, *events)
    assert [task.name for task in trace.tasks if task.use is Use.COLLECTIVE] == [name]
    [events_read] = load_sources([trace.path])
    kinds = [row["kind"] for row in events_read.rows if events_read.names[row["name"]] == name]
    assert kinds not in ([], [Kind.COMPUTE])


def test_collectives_that_do_not_match_are_counted_and_not_scaled(tmp_path: Path) -> None:
    """Their times are mostly waiting."""
    once = _trace(tmp_path, "all_reduce", world_size=2, **SIZED)
    twice = _trace(tmp_path, "all_reduce", "all_reduce", rank=1, world_size=2, **SIZED)
    assert replay_traces([once, once]).built.unmatched == 0
    assert replay_traces([once, twice]).built.unmatched == 3
    with pytest.raises(UserError, match="100% of the time of communication is of collectives that"):
        retarget([once, twice], Target(link_scale=0.5))
    retarget([once, twice], Target(compute_scale=0.5))


def test_messages_that_name_no_ranks_include_waiting_and_are_not_scaled(tmp_path: Path) -> None:
    """gloo's are so: a receive begins when it is called, long before the other rank sends."""
    traces = [
        _trace(tmp_path, kind, rank=rank, world_size=2)
        for rank, kind in enumerate(("send", "recv"))
    ]
    assert replay_traces(traces).built.unmatched == 2
    assert replay_traces(traces[:1]).built.unmatched == 0
    with pytest.raises(UserError, match="messages that do not name both ranks"):
        retarget(traces, Target(link_scale=0.5))


def test_a_group_of_which_one_rank_was_recorded_has_nothing_to_match(tmp_path: Path) -> None:
    mesh = _mesh(tmp_path, "mesh_tp", "mesh_dp")
    built = replay_traces([mesh[0], mesh[1]]).built
    assert (built.matched, built.unmatched) == (1, 0)


def test_ranks_without_process_groups(tmp_path: Path) -> None:
    """All are taken as one group, which is counted, unless they say that it has fewer."""
    of_two = {**SIZED, "Group size": 2}
    unknown = [_trace(tmp_path, "all_reduce", rank=rank, **SIZED) for rank in range(4)]
    pairs = [_trace(tmp_path, "all_reduce", rank=rank, **of_two) for rank in range(4)]
    for traces, expected in (
        (unknown, (1, 0, 1)),
        (unknown[:2], (1, 0, 0)),
        (pairs, (0, 4, 0)),
        (pairs[:2], (1, 0, 0)),
    ):
        built = replay_traces(traces).built
        assert (built.matched, built.unmatched, built.matching.ungrouped) == expected


def test_latency_needs_sizes(tmp_path: Path) -> None:
    traces = [_trace(tmp_path, "all_reduce", world_size=16)]
    slow = replace(A100, network=replace(A100.network, step_ns=1_000_000))
    with pytest.raises(UserError, match="does not state the sizes of 100% of its communication"):
        retarget(traces, Target(recorded_on=A100, cluster=slow))
    target = Target(recorded_on=A100, cluster=_tenth())
    assert _factor(traces, target) > 5
    assert not_sized(traces, target) == 400_000
    assert not_sized(traces, Target(link_scale=0.5)) == 0
    unsized = {**PIPELINE, "In msg nelems": 0}
    assert not_sized([_trace(tmp_path, "send", world_size=16, **unsized)], target) == 400_000


def _tenth() -> Cluster:
    """The cluster with adapters of a tenth of the rate."""
    rate_bps = A100.network.adapter_bits_per_s // 10
    return replace(A100, network=replace(A100.network, adapter_bits_per_s=rate_bps))


def _trace(
    folder: Path, *kinds: str, rank: int = 0, world_size: int = 0, **about: object
) -> RankTrace:
    """A step with collectives of 400 us, one after the other."""
    return _written(folder, rank, world_size, [(kind, about) for kind in kinds])


def _mesh(folder: Path, *descriptions: str) -> list[RankTrace]:
    """Four ranks, each with an all-reduce of tensor and one of data parallelism."""
    traces = []
    for rank in range(4):
        column, row = rank % 2, rank // 2
        groups = [(2 + row, [2 * row, 2 * row + 1]), (4 + column, [column, column + 2])]
        calls: list[tuple[str, dict[str, object]]] = []
        for (name, members), description in zip(groups, descriptions, strict=True):
            about = {"Process Group Name": str(name), "Process Group Description": description}
            about |= {"Process Group Ranks": str(members)}
            calls.append(("all_reduce", {**about, **SIZED, "Group size": 2}))
        traces.append(_written(folder, rank, 4, calls))
    return traces


def _written(
    folder: Path, rank: int, world_size: int, calls: list[tuple[str, dict[str, object]]]
) -> RankTrace:
    events: list[Event] = [step(0, 2000), operator(1, 0, 1990)]
    for at, (kind, about) in enumerate(calls):
        begin_us = 100 + 500 * at
        events.append(annotation(2, begin_us, begin_us + 400, f"gloo:{kind}", **about))
    info = {"rank": rank} | ({"world_size": world_size} if world_size else {})
    path = written(folder / f"{rank}.json", events, distributedInfo=info)
    return load_traces([path])[0]


def _factor(traces: list[RankTrace], target: Target, group: str = "") -> float:
    """By how much the time of the first rank's only communication, or of its group, changes."""
    durations = retarget(traces, target)
    [task] = [
        task for task in traces[0].tasks if task.message is not None and group in task.message.group
    ]
    return durations(task, 1_000_000) / 1_000_000


@pytest.mark.parametrize(
    ("text", "ranks", "found"),
    [
        ("[0, 8, 16]", 3, (0, 8, 16)),
        ("[0, 8, 16, ...]", 6, tuple(range(0, 48, 8))),
        ("[3, 4, 5, ...]", 40, tuple(range(3, 43))),
        ("[0, 1, 8, ...]", 40, ()),
        ("[0, 8, ...]", 0, ()),
        ("[0, ...]", 4, ()),
        ("[0, 8", 4, ()),
    ],
)
def test_lists_that_pytorch_shortens_go_on_as_they_begin(
    text: str, ranks: int, found: tuple[int, ...]
) -> None:
    assert link_times.members(Message("all-reduce", ranks=ranks, members=text)) == found
