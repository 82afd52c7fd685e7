"""Chakra's traces: those that we write are read back exactly; those of others are replayed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from byteprophet.errors import UserError
from byteprophet.timeline.chakra_schema import NodeType, attribute, schema, write_message
from byteprophet.timeline.export_chakra import write_chakra
from byteprophet.timeline.read_chakra import read_chakra
from byteprophet.timeline.span_list import SpanList
from byteprophet.timeline.tables import Kind
from byteprophet.traces.load import load_trace, load_traces
from byteprophet.traces.result import replay_traces
from byteprophet.traces.retarget import Target, retarget
from byteprophet.traces.write_chakra import write_chakra_traces

from .hand_made import annotation, operator, step, written
from .made_gpu import Job, write_profiles


def test_what_was_written_is_replayed_to_the_nanosecond(tmp_path: Path) -> None:
    write_profiles(tmp_path / "recorded", Job())
    traces = load_traces([tmp_path / "recorded"])
    result = replay_traces(traces)
    paths = write_chakra_traces(tmp_path / "job", result)
    assert [path.name for path in paths] == ["job.0.et", "job.1.et"]
    read = load_traces(paths)
    again = replay_traces(read)
    assert [one.replayed_ns for one in again.iterations] == [
        one.replayed_ns for one in result.iterations
    ]
    assert [one.measured_ns for one in again.iterations] == [
        one.replayed_ns for one in result.iterations
    ]
    assert again.use_of_time() == result.use_of_time()
    # Groups, sizes and kinds are still known.
    target = Target(data_parallel=8)
    assert (
        replay_traces(read, retarget(read, target)).replayed_ns
        == replay_traces(traces, retarget(traces, target)).replayed_ns
    )


def test_timelines_read_it_too(tmp_path: Path) -> None:
    write_profiles(tmp_path / "recorded", Job(steps=1))
    result = replay_traces(load_traces([tmp_path / "recorded"]))
    events = read_chakra(write_chakra_traces(tmp_path / "job", result)[1])
    assert events.origin.rank == 1
    assert len(events.rows) == len(result.built.traces[1].tasks)


def _node(number: int, micros: int, *deps: int, kind: NodeType = NodeType.COMP_NODE) -> Any:
    return schema().node(
        id=number, name=f"node {number}", type=kind, duration_micros=micros, data_deps=deps
    )


def _written(path: Path, *nodes: Any) -> Path:
    with path.open("wb") as file:
        write_message(file, schema().metadata(version="0.0.4"))
        for node in nodes:
            write_message(file, node)
    return path


def test_a_trace_of_a_converter_has_no_times(tmp_path: Path) -> None:
    """Two chains that meet: the longer one counts. Nodes may stand in any order."""
    nodes = (_node(4, 7, 2, 3), _node(1, 10), _node(2, 100, 1), _node(3, 50, 1))
    result = replay_traces([load_trace(_written(tmp_path / "job.3.et", *nodes))])
    assert result.built.traces[0].rank == 3
    assert result.replayed_ns == 117_000
    assert result.error is None
    uses, _ = result.critical_path()
    assert sum(uses.values()) == 117_000


def test_nested_spans_of_a_timeline_count_once(tmp_path: Path) -> None:
    spans = SpanList(tmp_path)
    for name, begin_us, end_us in (
        ("forward", 0, 100), ("mm1", 0, 50), ("mm2", 50, 90), ("bmm", 60, 70), ("loss", 100, 150)
    ):  # fmt: skip
        times = (1_000_000 + begin_us * 1000, (end_us - begin_us) * 1000)
        spans.add(Kind.COMPUTE, name, *times, track=0)
    (path,) = write_chakra(tmp_path / "job", [spans.events(0)], lambda _, times_ns: times_ns)
    result = replay_traces([load_trace(path)])
    assert result.iterations[0].measured_ns == 150_000
    assert result.replayed_ns == 150_000


def test_collectives_of_ranks_meet(tmp_path: Path) -> None:
    for rank, before_us in enumerate((10, 200)):
        reduce = _node(2, 300 + 50 * rank, 1, kind=NodeType.COMM_COLL_NODE)
        reduce.attr.append(attribute("comm_size", 1 << 20))
        reduce.attr.append(attribute("comm_type", 0))
        _written(tmp_path / f"job.{rank}.et", _node(1, before_us), reduce)
    result = replay_traces(load_traces([tmp_path]))
    assert result.built.matched == 1
    assert result.replayed_ns == 500_000  # the later one's begin, the shorter one's time


def test_messages_that_name_no_ranks_do_not_become_collectives(tmp_path: Path) -> None:
    """A send ends before the other rank receives it. Together, they would take longer."""
    for rank, (kind, begin_us) in enumerate((("send", 10), ("recv", 700))):
        events = [step(0, 1000), operator(1, 0, 5)]
        events.append(annotation(1, begin_us, begin_us + 50, f"gloo:{kind}"))
        info = {"rank": rank, "world_size": 2}
        written(tmp_path / f"{rank}.json", events, distributedInfo=info)
    result = replay_traces(load_traces([tmp_path]))
    again = replay_traces(load_traces(write_chakra_traces(tmp_path / "job", result)))
    assert again.iterations[0].replayed_ns == result.iterations[0].replayed_ns == 1_000_000
    assert again.use_of_time() == result.use_of_time()
    kinds = [task.message.kind for one in again.built.traces for task in one.tasks if task.message]
    assert kinds == ["send", "receive"]
    assert again.built.matched == 0


REFUSED = {
    "waits for itself": ((_node(1, 5, 2), _node(2, 5, 1)), "depend on one another in a ring"),
    "needs what is missing": ((_node(1, 5, 9),), "depends on node 9, which is missing"),
    "one id twice": ((_node(1, 5), _node(1, 5)), "two nodes have one id"),
    "nothing takes time": ((_node(1, 0),), "no nodes that take time"),
    "a time of years": ((_node(1, 2**51),), "node 1: its times are too large"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case: str, tmp_path: Path) -> None:
    nodes, said = REFUSED[case]
    with pytest.raises(UserError, match=said):
        load_trace(_written(tmp_path / "job.0.et", *nodes))


def test_what_is_too_long_with_nobody_else_says_nothing_of_others(tmp_path: Path) -> None:
    """Twice 36 years. What began by the wall clock, 50 years after 1970, is not too late."""
    nodes = (_node(1, 2**50), _node(2, 2**50, 1))
    trace = load_trace(_written(tmp_path / "job.0.et", *nodes))
    with pytest.raises(UserError, match=r"job\.0\.et: cannot be replayed: .*longer than 2\^60 ns"):
        replay_traces([trace])
    late = _node(1, 100)
    late.start_time_micros = 50 * 365 * 86400 * 10**6
    assert load_trace(_written(tmp_path / "job.1.et", late)).has_times


def test_a_file_that_was_cut_off(tmp_path: Path) -> None:
    write_profiles(tmp_path / "recorded", Job(steps=1))
    result = replay_traces(load_traces([tmp_path / "recorded"]))
    path = write_chakra_traces(tmp_path / "job", result)[0]
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(UserError, match="is cut off"):
        load_trace(path)
