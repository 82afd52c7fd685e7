"""Damaged traces of every format are read, or refused in one line: nothing else ever happens."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from byteprophet.errors import UserError
from byteprophet.timeline.chakra_schema import NodeType, attribute, schema, write_message
from byteprophet.timeline.export_chakra import write_chakra
from byteprophet.timeline.perfetto import write_perfetto
from byteprophet.timeline.sources import load_sources
from byteprophet.timeline.summary import summary

from .damage import damaged_bytes, damaged_json, damaged_messages

MUTATIONS = 60  # per format; each was run with thousands once
_LONGEST_LINE = 800

LISTS = {"Input Dims": [[[1]]], "Input type": ["TensorList"]}
TENSORS = {"Input Dims": [[5]], "Input type": ["float"]}
OPERATIONS: list[tuple[str, str, Any, dict[str, Any]]] = [
    ("user_annotation", "ProfilerStep#4", 1, {}),
    ("cpu_op", "c10d::allreduce_", 1, LISTS),
    ("cpu_op", "record_param_comms", 1, {"In msg nelems": 5, "dtype": "Float"}),
    ("user_annotation", "nccl:all_reduce", 1, TENSORS),
    ("cuda_runtime", "cudaLaunchKernel", 1, {"correlation": 5}),
    ("kernel", "ncclKernel_AllReduce", "stream 7", {"correlation": 5}),
    ("Operator", "Optimizer.step#SGD.step", -3, {}),
    ("Memcpy", "Memcpy HtoD", 7, {"bytes": 64}),
]
KINETO_EVENTS: list[dict[str, Any]] = [
    {"ph": "X", "cat": cat, "name": name, "pid": 0, "tid": tid, "ts": ts, "dur": 9, "args": args}
    for ts, (cat, name, tid, args) in enumerate(OPERATIONS)
]
KINETO_EVENTS += [
    {"ph": phase, "cat": "cpu_op", "name": name, "pid": 0, "tid": 3, "ts": f"{ts}.25"}
    for ts, (phase, name) in enumerate([("B", "x"), ("B", "y"), ("E", "y"), ("E", "x")])
]
KINETO = {
    "schemaVersion": 1,
    "baseTimeNanoseconds": 17 * 10**17,
    "distributedInfo": {"rank": 1},
    "traceEvents": KINETO_EVENTS,
}
STAGES = [("Comm.t.PUSH", "65536"), ("Comm.t.PULL", "65537"), ("Comm.t", "total")] * 3
COMM = {
    "traceEvents": [
        {"ph": "X", "cat": "Comm", "pid": "Comm.t", "name": name, "tid": tid, "ts": 100, "dur": 5}
        for name, tid in STAGES
    ],
    "displayTimeUnit": "ms",
}
FEEDER = {
    "workload_graph": [
        {"Id": n, "Name": f"n{n}", "NodeType": 4 + n % 4, "data_deps": [n - 1][:n], "runtime": 5}
        for n in range(8)
    ]
}


def _messages(is_ours: bool) -> list[Any]:
    messages = [schema().metadata(version="0.0.4")]
    if is_ours:
        messages[0].attr.extend(
            [attribute("byteprophet.rank", 1), attribute("byteprophet.nodes", 9)]
        )
    for n in range(9):
        kind = (NodeType.COMP_NODE, NodeType.COMM_COLL_NODE, NodeType.METADATA_NODE)[n % 3]
        made = schema().node(
            id=n, name=f"n{n}", type=kind, data_deps=[n - 1][:n], duration_micros=n
        )
        said: dict[str, Any] = {"comm_size": 64, "tid": 3, "is_cpu_op": True}
        if is_ours:
            times = {"begin_ns": 10**6 + n, "duration_ns": 5, "lane": n % 2, "iteration": 1}
            said |= {"byteprophet.kind": "UPDATE"}
            said |= {f"byteprophet.{name}": value for name, value in times.items()}
        made.attr.extend(attribute(name, value) for name, value in said.items())
        messages.append(made)
    return messages


def _protobuf(is_ours: bool) -> bytes:
    stream = BytesIO()
    for message in _messages(is_ours):
        write_message(stream, message)
    return stream.getvalue()


def _jsonizer(random: Random) -> bytes:
    from google.protobuf import json_format

    values = [json_format.MessageToDict(message) for message in _messages(random.random() < 0.5)]
    texts = [json.dumps(value) for value in values]
    place = random.randrange(len(values))
    texts[place] = damaged_json(random, values[place])
    return "".join(texts).encode()


def _json(value: Any, encoding: str = "utf-8") -> Callable[[Random], bytes]:
    def damaged(random: Random) -> bytes:
        if random.random() < 0.6:
            return damaged_json(random, value).encode(encoding)
        return damaged_bytes(random, json.dumps(value).encode(encoding))

    return damaged


def _messages_or_bytes(content: bytes) -> Callable[[Random], bytes]:
    def damaged(random: Random) -> bytes:
        return (damaged_messages if random.random() < 0.6 else damaged_bytes)(random, content)

    return damaged


def _gzipped(random: Random) -> bytes:
    if random.random() < 0.5:
        return gzip.compress(damaged_json(random, KINETO).encode())
    return damaged_bytes(random, gzip.compress(json.dumps(KINETO).encode()))


FORMATS: dict[str, Callable[[Random], bytes]] = {
    "t.json": _json(KINETO),
    "list.json": _json(KINETO_EVENTS),
    "utf-16.json": _json(KINETO, "utf-16"),
    "t.json.gz": _gzipped,
    "comm.json": _json(COMM),
    "foreign.et": _messages_or_bytes(_protobuf(is_ours=False)),
    "ours.et": _messages_or_bytes(_protobuf(is_ours=True)),
    "jsonizer.json": _jsonizer,
    "feeder.json": _json(FEEDER),
}


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.timeout(60)
def test_damage_is_read_or_refused_in_one_line(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    read = 0
    for seed in range(MUTATIONS):
        path.write_bytes(FORMATS[name](Random(f"{name} {seed}")))
        try:
            (events,) = load_sources([path])
            read += 1
        except UserError as error:
            line = str(error)
            assert line.startswith(f"{path}: "), seed
            assert line.isprintable(), seed
            assert len(line) < _LONGEST_LINE, seed
            continue
        assert summary(events)["rows"] > 0, seed
        _write_and_read_back(tmp_path, events)
    assert 0 < read < MUTATIONS


def _write_and_read_back(directory: Path, events: Any) -> None:
    """Whatever was read can be exported, unless all its times are 0, which stands for unknown."""
    if np.any(events.rows["end_ns"]):
        write_perfetto(directory / "p.json", [events])
        json.loads((directory / "p.json").read_text())
    for written in write_chakra(directory / "c", [events]):
        (back,) = load_sources([written])
        assert len(back.rows) == len(events.rows)
