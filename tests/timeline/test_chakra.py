"""Chakra's execution traces: ours come back as they were, others' mean what they say."""

from __future__ import annotations

import gzip
import json
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from byteprophet.errors import UserError
from byteprophet.timeline.chakra_schema import (
    NodeType,
    attribute,
    attributes,
    parse_messages,
    schema,
    write_message,
)
from byteprophet.timeline.events import Events
from byteprophet.timeline.export_chakra import write_chakra
from byteprophet.timeline.lanes import nested_lanes
from byteprophet.timeline.perfetto import write_perfetto
from byteprophet.timeline.read_chakra import read_chakra
from byteprophet.timeline.sources import load_sources
from byteprophet.timeline.summary import summary
from byteprophet.timeline.tables import (
    SERVED,
    SERVED_TABLE,
    SPAN,
    SPANS,
    TRANSFER,
    TRANSFERS,
    Kind,
    Rows,
)

from .made_up import NAMES, SECOND, origin, rows_of, spans, timelines
from .perfetto_rules import read_trace

NOW = 1000 * SECOND
US = 1000


def same_clock(_: Any, times_ns: Any) -> Any:
    return times_ns


def told(events: Events, lanes: bool = True) -> list[tuple[Any, ...]]:
    """All spans as plain values, lanes numbered without gaps."""
    rows = events.rows
    _, lane = np.unique(rows["lane"], return_inverse=True)
    columns = [rows[n].tolist() for n in ("begin_ns", "end_ns", "size_bytes", "iteration", "kind")]
    names = [events.names[name] for name in rows["name"].tolist()]
    return sorted(zip(*columns, names, lane.tolist() if lanes else [0] * len(rows), strict=True))


def with_true_lanes(rows: Rows) -> Rows:
    """Such that lanes keep what they promise."""
    rows = rows.copy()
    rows["lane"] = 3 * nested_lanes(rows["begin_ns"], rows["end_ns"]) + 1
    return rows


@given(rows=spans())
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_spans_come_back(rows: Rows, tmp_path: Path) -> None:
    before = Events(SPANS, origin("worker-3"), with_true_lanes(rows), dict(enumerate(NAMES)))
    if not len(rows):
        with pytest.raises(UserError, match="nothing was recorded of a worker"):
            write_chakra(tmp_path / "t", [before], same_clock)
        return
    (path,) = write_chakra(tmp_path / "t", [before], same_clock)
    assert path == tmp_path / "t.3.et"
    back = read_chakra(path)
    assert (back.origin.role, back.origin.rank) == ("worker-3", 3)
    assert told(back) == told(before)


@given(tables=timelines())
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_dependencies_can_be_met(tables: list[Events], tmp_path: Path) -> None:
    """Nodes wait for earlier ones only, which have ended, or for the one that contains them."""
    tables = [
        Events(t.table, t.origin, with_true_lanes(t.rows), t.names) if t.table is SPANS else t
        for t in tables
    ]
    try:
        paths = write_chakra(tmp_path / "t", tables, same_clock)
    except UserError as error:
        assert "nothing was recorded" in str(error)  # noqa: PT017 (may happen, need not)
        return
    for path in paths:
        _, *nodes = parse_messages(path, path.read_bytes())
        assert [node.id for node in nodes] == list(range(len(nodes)))
        ends = []
        for node in nodes:
            said = attributes(node)
            begin_ns = said["byteprophet.begin_ns"]
            ends.append(begin_ns + said["byteprophet.duration_ns"])
            assert all(0 <= needed < node.id for needed in [*node.data_deps, *node.ctrl_deps])
            before = {*node.data_deps} - {*node.ctrl_deps}
            assert all(ends[needed] <= begin_ns for needed in before)
            assert all(ends[parent] >= ends[-1] for parent in node.ctrl_deps)
            assert node.start_time_micros == begin_ns // US


def job() -> list[Events]:
    """A layer's backward pass, its parameter's way, its update and the next forward pass."""

    def span(kind: Kind, name: int, begin_us: int, end_us: int, **more: int) -> dict[str, int]:
        times = {"begin_ns": NOW + begin_us * US, "end_ns": NOW + end_us * US}
        return {"kind": kind, "name": name, **times, "iteration": 1, **more}

    names = {0: "step", 1: "conv1", 2: "mm", 3: "conv1.weight", 4: "nccl:reduce_scatter"}
    recorded = [
        span(Kind.ITERATION, 0, 0, 90, lane=7),
        span(Kind.BACKWARD, 1, 0, 10),
        span(Kind.COMPUTE, 2, 2, 5),
        span(Kind.COMPUTE, 2, 5, 9),
        span(Kind.WAIT, 0, 10, 50),
        span(Kind.UPDATE, 3, 50, 60, lane=1),
        span(Kind.FORWARD, 1, 61, 70, iteration=2),
        span(Kind.COLLECTIVE, 4, 62, 65, lane=2, size_bytes=80),
    ]
    sent = {"key": 5 << 16, "size_bytes": 4096, "iteration": 1, "server": 1}
    times = {"sent_ns": NOW + 12 * US, "acked_ns": NOW + 20 * US, "pulled_ns": NOW + 45 * US}
    worker = origin("worker-1")
    return [
        Events(SPANS, worker, rows_of(SPAN, recorded), names),
        Events(TRANSFERS, worker, rows_of(TRANSFER, [{**sent, **times}]), {5: "conv1.weight"}),
        Events(SERVED_TABLE, origin("server-0"), rows_of(SERVED, [{"arrived_ns": 5}]), {}),
        Events(SPANS, origin("server-1"), rows_of(SPAN, recorded), names),
    ]


def test_what_waits_for_what(tmp_path: Path) -> None:
    (path,) = write_chakra(tmp_path / "run", job(), same_clock)
    metadata, *nodes = parse_messages(path, path.read_bytes())
    assert metadata.version == "0.0.4"
    names = [f"{attributes(node)['byteprophet.kind'].lower()} {node.name}" for node in nodes]
    told_deps = {
        names[node.id]: (
            NodeType(node.type).name,
            [names[needed] for needed in node.ctrl_deps],
            sorted(names[needed] for needed in node.data_deps),
            node.duration_micros,
        )
        for node in reversed(nodes)  # the first of the two called mm stays
    }
    assert told_deps == {
        "iteration step": ("METADATA_NODE", [], [], 90),
        "backward conv1": ("COMP_NODE", [], [], 3),
        "compute mm": ("COMP_NODE", ["backward conv1"], ["backward conv1"], 3),
        "wait step": ("METADATA_NODE", [], [], 40),
        "send conv1.weight [0]": ("COMM_SEND_NODE", [], ["compute mm"], 8),
        "receive conv1.weight [0]": ("COMM_RECV_NODE", [], ["send conv1.weight [0]"], 25),
        "update conv1.weight": ("COMP_NODE", [], ["receive conv1.weight [0]"], 10),
        "forward conv1": (
            "COMP_NODE", [], ["compute mm", "update conv1.weight"], 9,
        ),
        "collective nccl:reduce_scatter": ("COMM_COLL_NODE", [], [], 3),
    }  # fmt: skip
    assert [list(node.data_deps) for node in nodes if node.name == "mm"] == [[1], [2]]
    assert [list(node.data_deps) for node in nodes if node.type == NodeType.COMM_SEND_NODE] == [[3]]
    said = {name: attributes(node) for name, node in zip(names, nodes, strict=True)}
    send, receive = said["send conv1.weight [0]"], said["receive conv1.weight [0]"]
    assert (send["comm_src"], send["comm_dst"], send["comm_size"]) == (1, 3, 4096)
    assert (receive["comm_src"], receive["comm_dst"], receive["comm_size"]) == (3, 1, 4096)
    collective = said["collective nccl:reduce_scatter"]
    assert (collective["comm_type"], collective["comm_size"]) == (7, 80)
    back = read_chakra(path)
    spans_back = [span for span in told(back, lanes=False) if "[0]" not in span[5]]
    assert spans_back == told(job()[0], lanes=False)
    ways = [span for span in told(back, lanes=False) if "[0]" in span[5]]
    assert [(s[0] - NOW, s[1] - NOW, Kind(s[4])) for s in ways] == [
        (12 * US, 20 * US, Kind.SEND),
        (20 * US, 45 * US, Kind.RECEIVE),
    ]


def test_times_along_a_lane_add_up(tmp_path: Path) -> None:
    """However deep spans are nested: what follows a span waits for all that it contains."""
    times_us = {"a": (0, 10), "c": (2, 6), "d": (3, 4), "e": (7, 9), "b": (10, 15)}
    rows = [
        {"kind": Kind.COMPUTE, "name": at, "begin_ns": NOW + begin * US, "end_ns": NOW + end * US}
        for at, (begin, end) in enumerate(times_us.values())
    ]
    spans = Events(SPANS, origin("worker-0"), rows_of(SPAN, rows), dict(enumerate(times_us)))
    (path,) = write_chakra(tmp_path / "run", [spans], same_clock)
    _, *nodes = parse_messages(path, path.read_bytes())
    ends_us: list[int] = []
    for node in nodes:
        begin_us = max((ends_us[needed] for needed in node.data_deps), default=0)
        ends_us.append(begin_us + node.duration_micros)
    assert [node.name for node in nodes] == ["a", "c", "d", "e", "b"]
    assert [node.duration_micros for node in nodes] == [4, 3, 1, 2, 5]
    assert ends_us == [4, 7, 8, 10, 15]


def test_cut_off_anywhere(tmp_path: Path) -> None:
    (path,) = write_chakra(tmp_path / "run", job(), same_clock)
    content = path.read_bytes()
    cut = tmp_path / "cut.1.et"
    for length in range(len(content)):
        cut.write_bytes(content[:length])
        with pytest.raises(UserError) as caught:
            read_chakra(cut)
        assert str(caught.value).startswith(f"{cut}: is ")
        assert "\n" not in str(caught.value)


def foreign(*nodes: Any, version: str = "0.0.4") -> list[Any]:
    """As Chakra's own tools write them: the metadata, and nodes."""
    return [schema().metadata(version=version), *nodes]


def node(number: int, kind: NodeType, micros: int, *needed: int, **more: Any) -> Any:
    made = schema().node(
        id=number, name=f"n{number}", type=kind, data_deps=needed, duration_micros=micros
    )
    if "start" in more:
        made.start_time_micros = more.pop("start")
    made.attr.extend(attribute(name, value) for name, value in more.items())
    return made


def save(path: Path, messages: list[Any]) -> Path:
    stream = BytesIO()
    for message in messages:
        write_message(stream, message)
    path.write_bytes(stream.getvalue())
    return path


CONVERTED = foreign(
    node(5, NodeType.METADATA_NODE, 0),
    node(1, NodeType.COMP_NODE, 10, 5, is_cpu_op=True, tid=3),
    node(2, NodeType.COMP_NODE, 20, 1, is_cpu_op=False, tid=3, stream=7),
    node(3, NodeType.COMM_COLL_NODE, 7, 1, comm_type=0, comm_size=64, stream=20),
    node(9, NodeType.MEM_LOAD_NODE, 5, 3, 2),
)


def test_without_start_times_nodes_begin_when_they_can(tmp_path: Path) -> None:
    events = read_chakra(save(tmp_path / "resnet.12.et", CONVERTED))
    assert events.origin.rank == 12
    assert told(events, lanes=False) == [
        (1, 10_001, 0, 0, Kind.COMPUTE, "n1", 0),
        (10_001, 17_001, 64, 0, Kind.COLLECTIVE, "n3", 0),
        (10_001, 30_001, 0, 0, Kind.COMPUTE, "n2", 0),
        (30_001, 35_001, 0, 0, Kind.COMPUTE, "n9", 0),
    ]
    assert len(np.unique(events.rows["lane"])) == 4


def test_the_first_node_without_a_start_time_is_shown(tmp_path: Path) -> None:
    events = read_chakra(save(tmp_path / "t.0.et", CONVERTED))
    shown = summary(events)
    assert shown["end_ns"] - shown["begin_ns"] == 35_000
    written = write_perfetto(tmp_path / "t.json", [events])
    slices = [one for one in read_trace(written.path)["traceEvents"] if one["ph"] == "X"]
    assert min((one["ts"], one["name"]) for one in slices) == (0, "n1")


def test_with_start_times_they_count(tmp_path: Path) -> None:
    nodes = foreign(
        node(1, NodeType.COMM_SEND_NODE, 10, start=100), node(2, NodeType.COMM_RECV_NODE, 0, 1)
    )
    assert told(read_chakra(save(tmp_path / "t.et", nodes), rank=2), lanes=False) == [
        (1, 1, 0, 0, Kind.RECEIVE, "n2", 0),
        (100_001, 110_001, 0, 0, Kind.SEND, "n1", 0),
    ]


def test_what_the_jsonizer_prints(tmp_path: Path) -> None:
    from google.protobuf import json_format

    for messages in (CONVERTED, list(_ours(tmp_path))):
        binary = save(tmp_path / "t.1.et", messages)
        text = tmp_path / "t.1.json"
        text.write_text("".join(json_format.MessageToJson(message) for message in messages))
        assert told(read_chakra(text)) == told(read_chakra(binary))
        assert read_chakra(text).origin.rank == 1
    text.write_text(text.read_text()[:-2])
    with pytest.raises(UserError, match=r"t\.1\.json: is cut off or not JSON"):
        read_chakra(text)


def test_chakra_is_known_by_its_content(tmp_path: Path) -> None:
    """Gzipped or not, whatever it is called, protobuf or JSON."""
    from google.protobuf import json_format

    binary = save(tmp_path / "t.1.et", CONVERTED)
    text = "".join(json_format.MessageToJson(message) for message in CONVERTED).encode()
    expected = told(read_chakra(binary))
    for content in (binary.read_bytes(), text):
        for name in ("t.1.et", "t.1.et.gz", "t.bin", "t.1.json", "t"):
            for packed in (content, gzip.compress(content)):
                path = tmp_path / name
                path.write_bytes(packed)
                (events,) = load_sources([path])
                assert told(events) == told(read_chakra(path)) == expected
                assert events.origin.rank == (1 if ".1." in name else 0)


def test_metadata_of_earlier_versions(tmp_path: Path) -> None:
    attributes_only = schema().old_metadata(
        attr=[attribute("schema", "1.0.2"), attribute("pid", 7)]
    )
    path = save(tmp_path / "old.et", [attributes_only, *CONVERTED[1:]])
    assert told(read_chakra(path)) == told(read_chakra(save(tmp_path / "new.et", CONVERTED)))
    empty = save(tmp_path / "empty.et", [schema().metadata(), *CONVERTED[1:]])
    assert told(read_chakra(empty)) == told(read_chakra(path))
    with pytest.raises(UserError, match="begins with a node, as in Chakra's first versions"):
        read_chakra(save(tmp_path / "none.et", CONVERTED[1:]))


def test_sizes_in_any_type_of_integers(tmp_path: Path) -> None:
    made = []
    for kind in ("int32", "uint32", "uint64", "sint32", "sint64", "fixed32", "fixed64", "sfixed64"):
        one = node(len(made), NodeType.COMM_COLL_NODE, 1)
        one.attr.add(name="comm_size", **{f"{kind}_val": 2**20 + len(made)})
        made.append(one)
    rows = read_chakra(save(tmp_path / "t.et", foreign(*made))).rows
    assert sorted(rows["size_bytes"].tolist()) == [2**20 + number for number in range(8)]


def test_what_the_feeder_of_astra_sim_reads(tmp_path: Path) -> None:
    graph = [
        {"Id": 3, "Name": "half \ud83d", "NodeType": 4, "runtime": 5, "data_deps": [], "x": [1]},
        {"Id": 4, "Name": "b", "NodeType": 7, "runtime": 2, "data_deps": [3], "comm_size": 64},
        {"Id": 5, "Name": "c", "NodeType": 6, "data_deps": [4], "ctrl_deps": [3]},
    ]
    path = tmp_path / "t.2.json"
    path.write_text(json.dumps({"workload_graph": graph}))
    (events,) = load_sources([path])
    assert events.origin.rank == 2
    assert told(events, lanes=False) == [
        (1, 5001, 0, 0, Kind.COMPUTE, "half \\ud83d", 0),
        (5001, 7001, 64, 0, Kind.COLLECTIVE, "b", 0),
        (7001, 7001, 0, 0, Kind.RECEIVE, "c", 0),
    ]
    graph[1]["runtime"] = "soon"
    path.write_text(json.dumps({"workload_graph": graph}))
    with pytest.raises(UserError, match=r"not a Chakra trace: message 1: .*durationMicros") as it:
        load_sources([path])
    assert "\n" not in str(it.value)


def _ours(directory: Path) -> Any:
    (path,) = write_chakra(directory / "ours", job(), same_clock)
    return parse_messages(path, path.read_bytes())


@pytest.mark.parametrize(
    ("nodes", "named"),
    [
        ([], "has no nodes that take time"),
        ([node(1, NodeType.METADATA_NODE, 3)], "has no nodes that take time"),
        ([node(1, NodeType.INVALID_NODE, 3)], "node 1: type 0: is not known"),
        ([node(1, 77, 3)], "node 1: type 77: is not known"),  # type: ignore[arg-type]
        ([node(1, NodeType.COMP_NODE, 3)] * 2, "two nodes have one id"),
        ([node(1, NodeType.COMP_NODE, 3, 4)], "depends on node 4, which is missing"),
        (
            [node(1, NodeType.COMP_NODE, 3, 2), node(2, NodeType.COMP_NODE, 3, 1)],
            "depend on one another in a ring",
        ),
        ([node(1, NodeType.COMP_NODE, 2**63)], "cannot begin at 0 ns and take"),
        ([node(1, NodeType.COMM_SEND_NODE, 1, comm_size="x")], "comm_size 'x': must be an integer"),
        ([node(1, NodeType.COMM_SEND_NODE, 1, comm_size=-1)], "cannot have -1 bytes"),
        (
            [node(1, NodeType.COMP_NODE, 1, **{"byteprophet.kind": "REST"})],
            "byteprophet.kind 'REST': is not known",
        ),
    ],
)
def test_what_is_wrong_is_named(nodes: list[Any], named: str, tmp_path: Path) -> None:
    path = save(tmp_path / "t.et", foreign(*nodes))
    with pytest.raises(UserError) as caught:
        read_chakra(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"hello world", b"\xff" * 40, bytes(range(256)), b"\x00\x00"])
def test_rubbish_is_one_line(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "t.et"
    path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        read_chakra(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_json_that_is_something_else(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"version": "1"}) + json.dumps({"type": ["x"]}))
    with pytest.raises(UserError, match=r"t\.json: is not a Chakra trace: message 1") as caught:
        read_chakra(path)
    assert "\n" not in str(caught.value)
