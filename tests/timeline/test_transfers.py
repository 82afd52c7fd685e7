"""Files of transfers: what is written is read back, and what is wrong is one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from byteprophet.errors import UserError
from byteprophet.timeline.transfers import TRANSFER, Recording, Transfers, load, save, tensor_of

NAMES = {3: "layer3.weight", 4: "layer4.bias"}


def some(count: int = 10) -> Transfers:
    transfers = np.zeros(count, TRANSFER)
    transfers["key"] = (np.arange(count) % 3 + 3) << 16 | np.arange(count)
    transfers["size_bytes"] = 2**62 + np.arange(count)
    for shift, name in enumerate(("ready_ns", "sent_ns", "acked_ns", "pulled_ns")):
        transfers[name] = 10**15 + np.arange(count) * 100 + shift
    transfers["server"] = np.arange(count) % 2
    transfers["iteration"] = np.arange(count) // 3
    transfers["priority"] = -1 - np.arange(count)
    return transfers


def test_layout_is_the_plug_ins() -> None:
    assert TRANSFER.itemsize == 64
    assert TRANSFER.fields is not None
    assert [TRANSFER.fields[name][1] for name in ("key", "pulled_ns", "server", "priority")] == [
        0,
        40,
        48,
        56,
    ]


@pytest.mark.parametrize("count", [0, 1, 10])
def test_written_and_read(count: int, tmp_path: Path) -> None:
    path = tmp_path / "events" / "transfers-1.parquet"
    save(path, Recording(1, some(count), NAMES))
    back = load(path)
    assert back.rank == 1
    assert np.array_equal(back.transfers, some(count))
    known = {int(number) for number in tensor_of(some(count))}
    assert back.names == {number: name for number, name in NAMES.items() if number in known}
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def changed(path: Path, change: Any) -> None:
    pq.write_table(change(pq.read_table(path)), path)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda t: t.drop_columns(["sent_ns"]), "column sent_ns is missing"),
        (lambda t: t.drop_columns(["tensor"]), "column tensor is missing"),
        (lambda t: t.replace_schema_metadata({}), "metadata"),
        (lambda t: t.replace_schema_metadata({"byteprophet": "{}"}), "metadata"),
        (
            lambda t: t.replace_schema_metadata({"byteprophet": '{"schema": 2, "rank": 0}'}),
            "schema 2",
        ),
        (
            lambda t: t.replace_schema_metadata({"byteprophet": '{"schema": 1, "rank": -1}'}),
            "rank -1",
        ),
        (
            lambda t: t.set_column(1, "size_bytes", pa.array([1.5] * len(t))),
            "column size_bytes: is double",
        ),
        (
            lambda t: t.set_column(2, "ready_ns", pa.array([None] * len(t), pa.int64())),
            "column ready_ns: has empty values",
        ),
        (
            lambda t: t.set_column(3, "sent_ns", pa.array([7] * len(t), pa.int64())),
            "row 0: sent_ns 7 is before ready_ns",
        ),
    ],
)
def test_what_is_wrong_is_named(change: Any, named: str, tmp_path: Path) -> None:
    path = tmp_path / "transfers-0.parquet"
    save(path, Recording(0, some(), NAMES))
    changed(path, change)
    with pytest.raises(UserError, match=named) as caught:
        load(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"PAR1", b"rubbish" * 100])
def test_rubbish_is_one_line(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "transfers-0.parquet"
    path.write_bytes(content)
    with pytest.raises(UserError, match="is not a file of transfers") as caught:
        load(path)
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match="there is no such file"):
        load(tmp_path / "nothing.parquet")
