"""Files of events: what is written is read back, of a killed writer, too; or there is one line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from byteprophet.errors import UserError
from byteprophet.timeline.events import (
    Events,
    EventWriter,
    Origin,
    events_path,
    new_path,
    save_events,
)
from byteprophet.timeline.read_events import load_events, load_rank, load_run
from byteprophet.timeline.tables import (
    MESSAGE,
    MESSAGES,
    SERVED,
    SERVED_TABLE,
    SPAN,
    SPANS,
    TRANSFER,
    TRANSFERS,
    Kind,
    Rows,
    TableKind,
    tensor_of,
)

TENSORS = {3: "layer3.weight", 4: "layer4.bias"}
ORIGIN = Origin("worker-1", 1, "a machine", 10**15, 17 * 10**17)


def transfers(count: int = 10) -> Rows:
    rows = np.zeros(count, TRANSFER)
    rows["key"] = (np.arange(count) % 3 + 3) << 16 | np.arange(count)
    rows["size_bytes"] = 2**49 + np.arange(count)
    for shift, name in enumerate(("ready_ns", "sent_ns", "acked_ns", "pulled_ns")):
        rows[name] = 10**15 + np.arange(count) * 100 + shift
    rows["server"] = np.arange(count) % 2
    rows["iteration"] = np.arange(count) // 3
    rows["priority"] = -1 - np.arange(count)
    return rows


def spans(count: int = 10) -> Rows:
    rows = np.zeros(count, SPAN)
    rows["begin_ns"] = np.arange(count) * 10 + 5
    rows["end_ns"] = rows["begin_ns"] + 3
    rows["iteration"] = np.arange(count) // 4
    rows["name"] = np.arange(count) % 2
    rows["lane"] = np.arange(count) % 3
    rows["kind"] = Kind.COLLECTIVE
    return rows


def served(count: int = 10) -> Rows:
    rows = np.zeros(count, SERVED)
    for shift, name in enumerate(SERVED.names or ()):
        rows[name] = np.arange(count) + shift
    return rows


def messages(count: int = 10) -> Rows:
    rows = np.zeros(count, MESSAGE)
    for shift, name in enumerate(MESSAGES.columns):
        rows[name] = np.arange(count) % 4 + shift
    rows["kind"] = np.where(np.arange(count) % 2, Kind.SEND, Kind.RECEIVE)
    rows["what"] = np.arange(count) % 4
    return rows


def some() -> Events:
    return Events(TRANSFERS, ORIGIN, transfers(), TENSORS)


def test_layout_is_the_native_one() -> None:
    assert (MESSAGE.itemsize, SERVED.itemsize) == (48, 64)
    assert MESSAGE.fields is not None
    assert [MESSAGE.fields[name][1] for name in ("key", "request", "what")] == [16, 32, 40]
    assert TRANSFER.itemsize == 64
    assert TRANSFER.fields is not None
    assert [TRANSFER.fields[name][1] for name in ("key", "pulled_ns", "server", "priority")] == [
        0,
        40,
        48,
        56,
    ]


@pytest.mark.parametrize("count", [0, 1, 10])
@pytest.mark.parametrize(
    ("table", "make", "names"),
    [
        (TRANSFERS, transfers, TENSORS),
        (SERVED_TABLE, served, {}),
        (MESSAGES, messages, {}),
        (SPANS, spans, {0: "layer0", 1: "layer1"}),
    ],
)
def test_written_and_read(
    count: int,
    table: TableKind,
    make: Callable[[int], Rows],
    names: dict[int, str],
    tmp_path: Path,
) -> None:
    path = events_path(tmp_path, table, "worker-1")
    rows = make(count)
    save_events(path, Events(table, ORIGIN, rows, names, lost=count))
    back = load_events(path)
    assert back.origin == ORIGIN
    assert np.array_equal(back.rows, rows)
    assert (back.lost, back.whole) == (count, True)
    known = set(tensor_of(rows).tolist() if table is TRANSFERS else range(min(count, 2)))
    assert back.names == {index: name for index, name in names.items() if index in known}


def test_names_get_one_index_over_all_batches(tmp_path: Path) -> None:
    writer = EventWriter(tmp_path / "x", SPANS, ORIGIN)
    writer.write(spans(3), {0: "forward.a", 1: "forward.b"})
    writer.write(spans(3), {0: "forward.b", 1: "forward.c"}, lost=2)
    writer.write(spans(1), {0: "forward.a"}, lost=3)
    writer.close()
    back = load_events(tmp_path / "x")
    texts = [back.names[index] for index in back.rows["name"].tolist()]
    assert [text[-1] for text in texts] == ["a", "b", "a", "b", "c", "b", "a"]
    assert back.lost == 5


def read_if_it_says_what_it_is(path: Path) -> Events | None:
    try:
        return load_events(path)
    except UserError as error:
        if "\n" in str(error) or f"{path}: is not a file of events: " not in str(error):
            raise
        return None


def test_a_file_can_be_cut_off_anywhere(tmp_path: Path) -> None:
    """What was handed over before stays; nothing is invented."""
    path = tmp_path / "whole"
    writer = EventWriter(path, TRANSFERS, ORIGIN)
    ends = [path.stat().st_size]
    for part in range(4):
        writer.write(transfers(40)[10 * part : 10 * part + 10], TENSORS)
        ends.append(path.stat().st_size)
    writer.close()
    content = path.read_bytes()
    for length in range(0, len(content), 7):
        (tmp_path / "cut").write_bytes(content[:length])
        back = read_if_it_says_what_it_is(tmp_path / "cut")
        if back is None:
            assert length < ends[0]
            continue
        batches = sum(end <= length for end in ends[1:])
        assert not back.whole
        assert np.array_equal(back.rows, transfers(40)[: 10 * batches])


def test_a_killed_process_leaves_what_it_wrote(tmp_path: Path) -> None:
    code = f"""
import sys
import numpy as np
from pathlib import Path
from byteprophet.timeline.events import EventWriter, Origin
from byteprophet.timeline.tables import SPAN, SPANS
writer = EventWriter(Path({str(tmp_path / "spans")!r}), SPANS, Origin("worker-0", 0))
for number in range(5):
    writer.write(np.ones(100, SPAN), {{1: "layer"}})
print("written", flush=True)
sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "written\n"
        os.kill(process.pid, signal.SIGKILL)
    back = load_events(tmp_path / "spans")
    assert len(back.rows) == 500
    assert not back.whole


def test_lives_of_a_rank_are_read_as_one(tmp_path: Path) -> None:
    for life in range(3):
        part = replace(some(), rows=transfers(30)[10 * life : 10 * life + 10], lost=life)
        save_events(new_path(tmp_path, TRANSFERS, "worker-1"), part)
    other = Origin("worker-0", 0)
    save_events(new_path(tmp_path, TRANSFERS, "worker-0"), replace(some(), origin=other))
    both = load_rank(tmp_path, TRANSFERS, 1)
    assert np.array_equal(both.rows, transfers(30))
    assert (both.lost, both.whole, both.names) == (3, True, TENSORS)
    assert [events.origin.rank for events in load_run(tmp_path)] == [0, 1]
    with pytest.raises(UserError, match="has no transfers of rank 2: run the job with --record"):
        load_rank(tmp_path, TRANSFERS, 2)
    with pytest.raises(UserError, match="has no recorded events"):
        load_run(tmp_path / "events")


def with_header(columns: Any, /, **changes: Any) -> Any:
    header = json.loads(columns.schema.metadata[b"byteprophet"])
    return columns.replace_schema_metadata({"byteprophet": json.dumps({**header, **changes})})


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda t: t.drop_columns(["sent_ns"]), "column sent_ns is missing"),
        (lambda t: t.drop_columns(["tensor"]), "column tensor is missing"),
        (lambda t: t.replace_schema_metadata({}), "metadata"),
        (lambda t: t.replace_schema_metadata({"byteprophet": "{}"}), "metadata"),
        (lambda t: t.replace_schema_metadata({"byteprophet": "[]"}), "metadata"),
        (lambda t: with_header(t, schema=1), "schema 1: this version reads 2 and 3"),
        (lambda t: with_header(t, table="sums"), "table 'sums': must be one of transfers, served"),
        (lambda t: with_header(t, rank=-1), "rank -1"),
        (lambda t: with_header(t, machine=7), "machine 7: must be of str"),
        (lambda t: with_header(t, more=7), "metadata"),
        (
            lambda t: t.set_column(1, "size_bytes", pa.array([1.5] * len(t))),
            "column size_bytes: is double",
        ),
        (
            lambda t: with_header(t, schema=2).set_column(
                2, "ready_ns", pa.array([None] * len(t), pa.int64())
            ),
            "column ready_ns: has empty values",
        ),
        (
            lambda t: with_header(t, schema=2).set_column(
                3, "sent_ns", pa.array([7] * len(t), pa.int64())
            ),
            "row 0: sent_ns 7 is before ready_ns",
        ),
        (
            lambda t: t.set_column(3, "sent_ns", pa.array([2 * 10**15] * len(t), pa.int64())),
            "is damaged: batch 0 is not as it was written",
        ),
    ],
)
def test_what_is_wrong_is_named(change: Any, named: str, tmp_path: Path) -> None:
    path = tmp_path / "transfers-worker-1.arrows"
    save_events(path, some())
    changed = change(pa.ipc.open_stream(path.read_bytes()).read_all())
    with pa.ipc.new_stream(str(path), changed.schema) as stream:
        stream.write_table(changed)
    with pytest.raises(UserError, match=named) as caught:
        load_events(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_files_of_schema_2_are_read(tmp_path: Path) -> None:
    """They have neither rounds nor checksums."""
    path = tmp_path / "transfers-worker-1.arrows"
    save_events(path, some())
    older = pa.ipc.open_stream(path.read_bytes()).read_all().drop_columns(["round"])
    older = with_header(older, schema=2)
    with pa.ipc.new_stream(str(path), older.schema) as stream:
        stream.write_table(older)
    back = load_events(path)
    assert np.array_equal(back.rows, transfers())
    assert (back.names, back.whole) == (TENSORS, True)


def test_a_flipped_bit_is_found(tmp_path: Path) -> None:
    """Also where what is read could be true: nothing else than was written is read."""
    path = tmp_path / "spans-worker-1.arrows"
    save_events(path, Events(SPANS, ORIGIN, spans(), {0: "layer0", 1: "layer1"}))
    content = path.read_bytes()
    random = np.random.default_rng(7)
    said = []
    for place in random.choice(8 * len(content), 400, replace=False).tolist():
        flipped = bytearray(content)
        flipped[place // 8] ^= 1 << place % 8
        path.write_bytes(flipped)
        try:
            back = load_events(path)
        except UserError as error:
            said.append(str(error))
            continue
        if back.whole:  # padding, or what the header says
            assert np.array_equal(back.rows, spans())
    assert len(said) > 100
    assert all(line.startswith(str(path)) and "\n" not in line for line in said)


@pytest.mark.parametrize(
    ("column", "value", "named"),
    [
        ("pulled_ns", 2**62, f"row 3: pulled_ns {2**62}: is not a valid time"),
        ("ready_ns", -(2**63), f"row 3: ready_ns -{2**63}: is not a valid time"),
        ("size_bytes", 2**63, f"column size_bytes: {2**63}: must be below {2**50}"),
        ("key", 2**63, f"column key: {2**63}: must be below {2**47}"),
    ],
)
def test_numbers_that_nothing_has_are_named(
    column: str, value: int, named: str, tmp_path: Path
) -> None:
    rows = transfers()
    rows[column][3] = value
    save_events(tmp_path / "x", Events(TRANSFERS, ORIGIN, rows, TENSORS))
    with pytest.raises(UserError, match=named):
        load_events(tmp_path / "x")


@pytest.mark.parametrize("lost", ["-1", "many", "9" * 5000])
def test_a_wrong_number_of_lost_rows_is_named(lost: str, tmp_path: Path) -> None:
    path = tmp_path / "x"
    save_events(path, some())
    table = pa.ipc.open_stream(path.read_bytes()).read_all()
    with pa.ipc.new_stream(str(path), table.schema) as stream:
        stream.write_batch(table.to_batches()[0], custom_metadata={"lost": lost})
    with pytest.raises(UserError, match="is damaged: a number of lost rows is"):
        load_events(path)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "transfers-worker-0.arrows"
    os.mkfifo(path)
    with pytest.raises(UserError, match="is not a regular file"):
        load_events(path)


def test_a_kind_that_is_none_is_named(tmp_path: Path) -> None:
    rows = spans()
    rows["kind"][3] = 9
    save_events(tmp_path / "x", Events(SPANS, ORIGIN, rows, {}))
    with pytest.raises(UserError, match="x: column kind: 9: must be below 9"):
        load_events(tmp_path / "x")


@pytest.mark.parametrize("content", [b"", b"PAR1", b"rubbish" * 100, b"\xff\xff\xff\xff" * 9])
def test_rubbish_is_one_line(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "transfers-worker-0.arrows"
    path.write_bytes(content)
    with pytest.raises(UserError, match="is not a file of events") as caught:
        load_events(path)
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match="there is no such file"):
        load_events(tmp_path / "nothing.arrows")
