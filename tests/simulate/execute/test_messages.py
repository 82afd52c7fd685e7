"""When messages between stages are received; gloo's reduce-scatter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from byteprophet.errors import UserError
from byteprophet.simulate.clusters.description import Cluster, find_cluster
from byteprophet.simulate.compile.schedules import Act, Action, receives_of
from byteprophet.simulate.compile.steps import CollectiveKind
from byteprophet.simulate.costs.blocks import Spent
from byteprophet.simulate.costs.collectives import CollectiveCosts, Group
from byteprophet.simulate.execute.result import Simulated
from byteprophet.simulate.execute.simulate import simulate_program
from byteprophet.simulate.operation.mesh import Mesh

from ..jobs import program

_MODEL = "gpt:layers=8,hidden=2048,heads=16"


def _one_gpu_nodes() -> Cluster:
    cluster = find_cluster("a100-4xhdr")
    return replace(cluster, node=replace(cluster.node, gpus=1))


def _ends_ns(
    result: Simulated, *, early: bool, posted: Sequence[dict[Action, int]] = ()
) -> list[list[float]]:
    """When each action of each stage ends, by going through the schedule.

    An action begins when the previous one has ended and its message has come. A message begins when
    its sender is done, after the earlier ones of its direction, and, unless ``early``, when its
    receiver is idle, or has done as many actions as ``posted`` says.
    """
    ranks = result.job.ranks
    message = result.costs.collectives.send(result.program.stages[1].received_bytes, 0, 1)
    takes_ns = message.latency_ns + message.size_bytes / result.costs.collectives.rate(message)
    ends: list[dict[tuple[Act, int], float]] = [{} for _ in ranks]
    sent: dict[tuple[int, Act], float] = {}
    left = [[done.action for done in record.done] for record in ranks]
    while any(left):
        for rank, record in enumerate(ranks):
            while left[rank]:
                _, act, number = left[rank][0]
                idle_ns = max(ends[rank].values(), default=0.0)
                source = rank - 1 if act is Act.FORWARD else rank + 1
                begin_ns = idle_ns
                if act is not Act.WEIGHT and 0 <= source < len(ranks):
                    if (act, number) not in ends[source]:
                        break
                    ready_ns = max(ends[source][act, number], sent.get((rank, act), 0.0))
                    asked_ns = 0.0 if early else idle_ns
                    if posted:
                        count = posted[rank][left[rank][0]]
                        asked_ns = max(0.0, *[0.0, *ends[rank].values()][: count + 1])
                    came_ns = max(ready_ns, asked_ns) + takes_ns
                    sent[rank, act] = came_ns
                    begin_ns = max(idle_ns, came_ns)
                done = record.done[len(record.done) - len(left[rank])]
                parts = record.computed.index(done.first), record.computed.index(done.last)
                spent = record.spent[parts[0] : parts[1] + 1]
                ends[rank][act, number] = begin_ns + sum(one.time_ns for one in spent)
                left[rank].pop(0)
    return [list(each.values()) for each in ends]


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_a_stage_may_receive_only_when_it_is_idle(schedule: str, overlap: bool) -> None:
    line = f"pp=4 schedule={schedule} micro_batches=6 overlap_p2p={int(overlap)}"
    result = simulate_program(program(_MODEL, line, 4), _one_gpu_nodes())
    for record, expected in zip(result.job.ranks, _ends_ns(result, early=overlap), strict=True):
        ended = [int(result.replayed.end_ns[done.last]) for done in record.done]
        assert ended == pytest.approx(expected, abs=100)


def test_a_stage_may_ask_for_messages_where_torch_does() -> None:
    """On two stages, messages there and back share no link in one direction."""
    cluster = _one_gpu_nodes()
    slow = replace(cluster.network, adapter_bits_per_s=cluster.network.adapter_bits_per_s // 100)
    ends = {}
    for posted in (False, True):
        line = f"pp=2 schedule=zb1p micro_batches=6 posted_receives={int(posted)}"
        compiled = program(_MODEL, line, 2)
        result = simulate_program(compiled, replace(cluster, network=slow))
        asked = receives_of(compiled.actions) if posted else ()
        for record, expected in zip(
            result.job.ranks, _ends_ns(result, early=True, posted=asked), strict=True
        ):
            ended = [int(result.replayed.end_ns[done.last]) for done in record.done]
            assert ended == pytest.approx(expected, rel=1e-5)
        ends[posted] = result.iteration_ns
    assert ends[True] > ends[False]


def test_only_some_schedules_ask_early() -> None:
    with pytest.raises(UserError, match="1f1b with posted_receives: only interleaved and zb1p"):
        program(_MODEL, "pp=2 micro_batches=2 posted_receives=1", 2)


@pytest.mark.parametrize(
    "line",
    [
        "schedule=1f1b overlap_p2p=0",
        "schedule=interleaved chunks=2 posted_receives=1",
        "schedule=zb1p posted_receives=1",
        "schedule=gpipe overlap_p2p=0",
    ],
)
def test_requests_may_wait_behind_messages(line: str) -> None:
    """No message begins while one that was on its way when it was asked for still is."""
    cluster = _one_gpu_nodes()
    slow = replace(cluster.network, adapter_bits_per_s=cluster.network.adapter_bits_per_s // 100)
    compiled = program(_MODEL, f"pp=2 micro_batches=6 {line}", 2)
    plain = simulate_program(compiled, replace(cluster, network=slow))
    slow = replace(slow, requests_in_line=True)
    result = simulate_program(compiled, replace(cluster, network=slow))
    start_ns, end_ns = result.replayed.start_ns, result.replayed.end_ns
    messages, behind = result.job.messages, 0
    for each in messages:
        asked_ns = end_ns[each.asked_after] if each.asked_after >= 0 else 0
        for other in messages:
            if other.source == each.target and start_ns[other.flow] < asked_ns:
                behind += asked_ns < end_ns[other.flow] <= start_ns[each.flow]
                assert start_ns[each.flow] >= end_ns[other.flow]
    assert not plain.job.messages
    if "gpipe" in line:  # all messages one way, then all back
        assert result.iteration_ns == plain.iteration_ns
    else:
        assert behind
        assert result.iteration_ns > plain.iteration_ns


def test_gradients_may_leave_for_the_stage_before_when_own_ones_are_reduced() -> None:
    """DistributedDataParallel's backward pass returns after its all-reduces."""
    network = replace(
        _one_gpu_nodes().network, adapter_bits_per_s=10_000_000_000, requests_in_line=True
    )
    cluster = replace(_one_gpu_nodes(), network=network)
    line = "pp=4 dp=2 micro_batches=6 reduce_in_backward="
    plain, waits = (
        simulate_program(program(f"{_MODEL},tied=0", f"{line}{value}", 8), cluster)
        for value in (0, 1)
    )
    start_ns, end_ns = waits.replayed.start_ns, waits.replayed.end_ns
    sent_after = {each.sent_after: each.flow for each in waits.job.messages}
    behind = 0
    for record in waits.job.ranks:
        last = record.done[-1].last
        reduces = [flow for flow, use in record.waits[last] if use is Spent.ALL_REDUCE]
        assert reduces
        assert not record.synchronised
        if last in sent_after:
            assert max(end_ns[reduces]) <= start_ns[sent_after[last]]
            behind += 1
    assert behind == 3
    assert waits.iteration_ns > plain.iteration_ns


def test_delayed_gradients_are_not_reduced_in_the_backward_pass() -> None:
    with pytest.raises(UserError, match="zb1p with reduce_in_backward"):
        program(_MODEL, "pp=2 dp=2 schedule=zb1p micro_batches=2 reduce_in_backward=1", 4)


def test_reduce_scatter_may_be_an_all_reduce() -> None:
    cluster = find_cluster("dgx-a100")
    gloo = replace(cluster, network=replace(cluster.network, all_reduce_only=True))
    plain, made_of = (CollectiveCosts(each, Mesh(dp=16)) for each in (cluster, gloo))
    group, size = Group(1, 8), 1 << 26
    kinds = CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_REDUCE
    scatter, reduce = (made_of.transfer(kind, group, size) for kind in kinds)
    assert scatter == reduce
    half = plain.transfer(kinds[0], group, size)
    assert half.size_bytes == pytest.approx(scatter.size_bytes / 2)


def test_several_all_reduces_may_be_under_way_at_once() -> None:
    """Two threads hide the latency of one bucket behind the bytes of another, and no more."""
    cluster = _one_gpu_nodes()
    compiled = program(_MODEL, "dp=4", 4)
    found = {}
    for at_once in (1, 2):
        network = replace(cluster.network, step_ns=2_000_000, collectives_at_once=at_once)
        result = simulate_program(compiled, replace(cluster, network=network))
        (record,) = result.job.ranks
        flows = [flow for flow, _ in record.synchronised]
        starts, ends = result.replayed.start_ns[flows], result.replayed.end_ns[flows]
        under_way = [int(((starts <= at) & (ends > at)).sum()) for at in starts]
        assert max(under_way) == at_once
        found[at_once] = result.iteration_ns
    latency_ns = result.costs.collectives.transfer(
        CollectiveKind.ALL_REDUCE, Group(1, 4), 1
    ).latency_ns
    assert 0 < found[1] - found[2] < len(flows) * latency_ns
