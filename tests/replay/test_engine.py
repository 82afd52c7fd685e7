"""The replay of graphs: the same as the slow reference, and what must hold of any replay."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from itertools import pairwise
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from byteprophet.errors import UserError
from byteprophet.graph import Graph, GraphBuilder, SerialDevice
from byteprophet.replay import Replayed, part, replay

from ..thorough import examples
from .graphs import add_random, graphs, seeds
from .reference import Reference

MS = 1_000_000
OF_OPERATIONS = ("duration_ns", "size_bytes", "device", "latency_ns", "priority", "release_ns")


def columns(result: Replayed) -> dict[str, list[int] | int]:
    return {
        name: value.tolist() if isinstance(value, np.ndarray) else value
        for name, value in vars(result).items()
        if name != "graph"
    }


def entered(result: Replayed) -> list[int]:
    """When each operation came to its device."""
    times = result.ready_ns.tolist()
    for operation, sent in zip(result.graph.gated.operation, result.sent_ns, strict=True):
        times[operation] = int(sent)
    return times


@settings(max_examples=examples(300, 1500))
@given(graph=graphs())
def test_same_as_the_slow_reference(graph: Graph) -> None:
    result = replay(graph)
    slow = Reference(graph).run()
    assert result.ready_ns.tolist() == [operation.ready for operation in slow.operations]
    assert result.start_ns.tolist() == [operation.start for operation in slow.operations]
    assert result.end_ns.tolist() == [operation.end for operation in slow.operations]
    assert result.sent_ns.tolist() == slow.sent
    assert result.link_busy_ns.tolist() == slow.link_busy
    assert result.peak_bytes.tolist() == [max(0, peak) for peak in slow.peaks()]
    assert result.makespan_ns == max(operation.end for operation in slow.operations)


def test_what_a_link_saved_passes_at_once() -> None:
    """A byte per microsecond, and up to 1000 bytes at once."""
    builder = GraphBuilder()
    link = builder.link("link", 8_000_000, burst_bytes=1000)
    over = builder.connection("over", (link,))
    beside = builder.connection("beside", (link,))

    def flow(size_bytes: int, release_us: int, device: int = over) -> int:
        release_ns = release_us * 1000
        return builder.add("", size_bytes=size_bytes, device=device, release_ns=release_ns)

    flow(1500, 0)  # 1000 of them at once
    flow(100, 500)  # nothing saved
    flow(300, 1000)  # 400 us of rest: there at once
    flow(300, 1000)  # 100 are left
    flow(5000, 10_000)  # no more than 1000
    flow(100, 12_000, beside)  # a link in use saves nothing: 100 take 200 us
    result = replay(builder.freeze())
    assert (result.end_ns // 1000).tolist() == [500, 600, 1000, 1200, 14_100, 12_200]


def test_a_burst_passes_other_links_at_their_rates() -> None:
    """The other one carries ten bytes per microsecond, and saves nothing."""
    builder = GraphBuilder()
    saves = builder.link("saves", 8_000_000, burst_bytes=1000)
    other = builder.link("other", 80_000_000)
    over = builder.connection("over", (saves, other))
    builder.add("", size_bytes=1500, device=over)  # 100 us for 1000 of them, then 500 us
    builder.add("", size_bytes=100, device=over)  # saved in the first 100 us
    builder.add("", size_bytes=50, device=over)  # ten were saved in the last 10 us, 40 were not
    result = replay(builder.freeze())
    assert (result.end_ns // 1000).tolist() == [600, 610, 651]


@settings(max_examples=examples(100, 300))
@given(graph=graphs())
def test_nothing_happens_before_its_causes(graph: Graph) -> None:
    result = replay(graph)
    before, after = graph.edges()
    heard = result.end_ns + graph.latency_ns
    assert (result.ready_ns[after] >= heard[before]).all()
    assert (result.ready_ns >= graph.release_ns).all()
    assert (np.array(entered(result)) >= result.ready_ns).all()
    assert (result.start_ns >= entered(result)).all()
    assert (result.end_ns - result.start_ns >= graph.duration_ns).all()
    # And not later than its last cause.
    last = graph.release_ns.copy()
    np.maximum.at(last, after, heard[before])
    assert (result.ready_ns == last).all()


@settings(max_examples=examples(100, 300))
@given(graph=graphs())
def test_no_device_is_idle_while_an_operation_waits(graph: Graph) -> None:
    result = replay(graph)
    came = entered(result)
    for number, device in enumerate(graph.devices):
        units = device.units if isinstance(device, SerialDevice) else 1
        own = np.flatnonzero(graph.device == number)
        start, end = result.start_ns[own], result.end_ns[own]
        assert result.device_busy_ns[number] == (end - start).sum()
        assert result.device_bytes[number] == graph.size_bytes[own].sum()
        changes = sorted({*start.tolist(), *end.tolist()})
        busy = {time: int(((start <= time) & (time < end)).sum()) for time in changes}
        assert all(count <= units for count in busy.values())
        for operation in own:
            if result.start_ns[operation] == came[operation]:
                continue
            assert all(
                count == units
                for time, count in busy.items()
                if came[operation] <= time < result.start_ns[operation]
            )
            assert any(result.end_ns[own] == result.start_ns[operation])
    for operation in np.flatnonzero(graph.device < 0):
        assert result.start_ns[operation] == came[operation]
        assert result.end_ns[operation] == came[operation] + graph.duration_ns[operation]


@settings(max_examples=examples(100, 300))
@given(graph=graphs())
def test_the_critical_path_is_one_of_waiting(graph: Graph) -> None:
    result = replay(graph)
    path = result.critical_path().tolist()
    assert result.end_ns[path[-1]] == result.makespan_ns
    came = entered(result)
    acked_by = dict(zip(graph.gated.operation.tolist(), graph.gated.acked_by, strict=True))
    gate_of = dict(zip(graph.gated.operation.tolist(), graph.gated.gate, strict=True))
    heard = result.end_ns + graph.latency_ns
    edges = set(zip(*(ends.tolist() for ends in graph.edges()), strict=True))
    for one, next_one in pairwise(path):
        by_dependency = (one, next_one) in edges and heard[one] == result.ready_ns[next_one]
        by_device = (
            graph.device[one] == graph.device[next_one] >= 0
            and result.end_ns[one] == result.start_ns[next_one] > came[next_one]
        )
        by_acknowledgement = came[next_one] > result.ready_ns[next_one] and any(
            acker == one and heard[one] == came[next_one] and gate_of[behind] == gate_of[next_one]
            for behind, acker in acked_by.items()
            if next_one in gate_of
        )
        assert by_dependency or by_device or by_acknowledgement
        if result.start_ns[next_one] > came[next_one]:
            assert by_device
        elif came[next_one] > result.ready_ns[next_one] and any(
            heard[acker] == came[next_one] and gate_of[behind] == gate_of[next_one]
            for behind, acker in acked_by.items()
        ):
            assert by_acknowledgement
    # Nothing before the first had to be waited for, but a policy that waited by itself.
    first = path[0]
    assert first in gate_of or result.start_ns[first] == graph.release_ns[first]


@settings(max_examples=100)
@given(graph=graphs())
def test_the_same_bits_twice(graph: Graph) -> None:
    assert columns(replay(graph)) == columns(replay(graph))


@settings(max_examples=examples(100, 300))
@given(graph=graphs(), seed=seeds)
def test_only_the_order_on_devices_and_at_gates_matters(graph: Graph, seed: int) -> None:
    """Other numbers for the same operations, in the same order wherever order counts."""
    groups = defaultdict(list)
    gated = {*graph.gated.operation.tolist(), *graph.marks.operation.tolist()}
    behind = {int(graph.device[operation]) for operation in gated}
    for operation, device in enumerate(graph.device.tolist()):
        if operation in gated or (device >= 0 and device in behind):
            groups["gates"].append(operation)
        elif device >= 0:
            groups[f"device {device}"].append(operation)
    place = list(range(len(graph)))
    Random(seed).shuffle(place)
    for members in groups.values():
        for operation, number in zip(members, sorted(place[m] for m in members), strict=True):
            place[operation] = number
    result, other = replay(graph), replay(renumbered(graph, np.array(place)))
    for name in ("ready_ns", "start_ns", "end_ns"):
        assert getattr(other, name)[place].tolist() == getattr(result, name).tolist()
    for name in ("sent_ns", "device_busy_ns", "link_busy_ns", "peak_bytes"):
        assert getattr(other, name).tolist() == getattr(result, name).tolist()


def renumbered(graph: Graph, place: np.ndarray) -> Graph:
    """Operation i as operation ``place[i]``."""
    builder = GraphBuilder()
    for operation in np.argsort(place):
        builder.add(graph.labels.describe(operation))
    for before, after in zip(*graph.edges(), strict=True):
        builder.depend(int(place[before]), int(place[after]))
    edges = builder.freeze()
    order = np.argsort(place)
    new = place.astype(np.int32)
    gated, memory = graph.gated, graph.memory
    return dataclasses.replace(
        graph,
        **{name: getattr(graph, name)[order] for name in OF_OPERATIONS},
        first_successor=edges.first_successor,
        successor=edges.successor,
        gated=dataclasses.replace(
            gated, operation=new[gated.operation], acked_by=new[gated.acked_by]
        ),
        marks=dataclasses.replace(graph.marks, operation=new[graph.marks.operation]),
        memory=dataclasses.replace(
            memory, **{name: column[order] for name, column in vars(memory).items()}
        ),
        labels=edges.labels,
    )


@st.composite
def two_graphs(draw: st.DrawFn) -> tuple[Graph, list[int]]:
    """A graph of two that have nothing in common, and the operations of one."""
    builder = GraphBuilder()
    random = Random(draw(seeds))
    both = [add_random(random, builder, draw(st.integers(1, 8))) for _ in range(2)]
    return builder.freeze(), both[draw(st.integers(0, 1))]


@settings(max_examples=examples(100, 300))
@given(drawn=two_graphs())
def test_a_part_that_shares_nothing_comes_out_as_in_the_whole(
    drawn: tuple[Graph, list[int]],
) -> None:
    graph, own = drawn
    of_part, of_whole = replay(part(graph, own)), replay(graph)
    assert len(of_part.graph) == len(own)
    for name in ("ready_ns", "start_ns", "end_ns"):
        assert getattr(of_part, name).tolist() == getattr(of_whole, name)[own].tolist()


@settings(max_examples=examples(100, 300))
@given(graph=graphs(), data=st.data())
def test_a_part_is_what_its_operations_need(graph: Graph, data: st.DataObject) -> None:
    wanted = data.draw(st.lists(st.integers(0, len(graph) - 1), max_size=3))
    chosen = part(graph, wanted)
    # Again and again whatever something chosen needs.
    needed = set(wanted)
    before, after = (ends.tolist() for ends in graph.edges())
    while True:
        more = {b for b, a in zip(before, after, strict=True) if a in needed}
        gates = set()
        for row, operation in enumerate(graph.gated.operation.tolist()):
            if operation in needed:
                more.add(int(graph.gated.acked_by[row]))
                gates.add(int(graph.gated.gate[row]))
        for operation, gate in zip(graph.marks.operation, graph.marks.gate, strict=True):
            if gate in gates:
                more.add(int(operation))
        if more <= needed:
            break
        needed |= more
    names = [graph.labels.describe(operation) for operation in sorted(needed)]
    assert [chosen.labels.describe(operation) for operation in range(len(chosen))] == names
    replay(chosen)


def test_ready_first_is_served_first() -> None:
    builder = GraphBuilder()
    device = builder.serial("gpu")
    builder.add("late", 5 * MS, device=device, release_ns=50 * MS)
    builder.add("early", 50 * MS, device=device, release_ns=4 * MS)
    result = replay(builder.freeze())
    assert result.makespan_ns == 59 * MS  # in the order of the graph it would be 105
    assert result.critical_path().tolist() == [1, 0]
    assert result.device_busy_ns.tolist() == [55 * MS]


def test_an_empty_graph() -> None:
    result = replay(GraphBuilder().freeze())
    assert result.makespan_ns == 0
    assert result.critical_path().tolist() == []
    assert len(part(result.graph, [])) == 0


def test_a_cycle_is_refused_by_name() -> None:
    builder = GraphBuilder()
    builder.add("a", after=[builder.add("b")])
    builder.depend(1, 0)
    with pytest.raises(UserError, match=r"operation (0|1) depends on itself \(.* is '[ab]'\)"):
        replay(builder.freeze())


def test_what_a_policy_keeps_is_refused_by_name() -> None:
    builder = GraphBuilder()
    gate = builder.gate("worker", "p3", {"outstanding_messages": 1})
    first = builder.add("first", 1, size_bytes=1)
    second = builder.add("second", 1, size_bytes=1)
    both = builder.add("both", after=[first, second])
    for operation in (first, second):
        builder.guard(operation, gate, key=operation, server=0, priority=-1, acked_by=both)
    with pytest.raises(UserError, match=r"never sends operation 1: .* \(operation 1 is 'second'\)"):
        replay(builder.freeze())


def test_unknown_policies_and_settings_are_refused() -> None:
    for policy, chosen in (("nonesuch", {}), ("p3", {"nonesuch": 1})):
        builder = GraphBuilder()
        builder.gate("worker", policy, chosen)
        builder.add("a")
        with pytest.raises(UserError, match="nonesuch"):
            replay(builder.freeze())


def test_arrays_of_other_types_are_refused() -> None:
    builder = GraphBuilder()
    builder.add("a", 5)
    graph = builder.freeze()
    for column in (graph.duration_ns.astype(np.float64), np.zeros((1, 1), dtype=np.int64)):
        with pytest.raises(UserError, match="duration_ns must be a one-dimensional"):
            replay(dataclasses.replace(graph, duration_ns=column))
    with pytest.raises(UserError, match="device must have one entry"):
        replay(dataclasses.replace(graph, device=np.zeros(0, dtype=np.int32)))


def test_times_and_devices_are_checked() -> None:
    builder = GraphBuilder()
    builder.add("a")
    builder.add("too short", -1)
    with pytest.raises(UserError, match=r"operation 1 has a duration_ns .* is 'too short'"):
        replay(builder.freeze())
    with pytest.raises(UserError, match="there is no operation 7"):
        part(GraphBuilder().freeze(), [7])
