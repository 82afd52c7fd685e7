"""Records: nothing that was written is lost, and a torn line does no harm."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from byteprophet.bench.grid_store import FILE, Record, Store, read_records
from byteprophet.errors import UserError


def record(number: int) -> Record:
    return {
        "phase": "base",
        "cell": "c",
        "variant": "prophet",
        "round": number,
        "fingerprint": "f",
        "code": "0",
    }


def test_what_is_added_is_read_back(tmp_path: Path) -> None:
    directory = tmp_path / "new" / "results"
    assert read_records(directory) == []
    for number in (1, 2):
        store = Store(directory)
        store.add(record(number))
        store.close()
    assert read_records(directory) == [record(1), record(2)]


@pytest.mark.parametrize("torn", [b'{"schema": 1, "pha', b'{"schema": 1}', b"\xff"])
def test_a_torn_line_is_left_out_and_cut_off(torn: bytes, tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.add(record(1))
    store.close()
    with (tmp_path / FILE).open("ab") as file:
        file.write(torn)
    assert read_records(tmp_path) == [record(1)]
    store = Store(tmp_path)
    store.add(record(2))
    store.close()
    assert read_records(tmp_path) == [record(1), record(2)]


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("x", "line 2 is not JSON"),
        ("[]", "line 2: schema"),
        ('{"schema": 9}', "line 2: schema"),
        ('{"schema": 1, "phase": "base"}', "line 2: cell is missing"),
    ],
)
def test_a_broken_line_is_named(line: str, named: str, tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.add(record(1))
    store.close()
    with (tmp_path / FILE).open("a") as file:
        file.write(line + "\n")
    with pytest.raises(UserError, match=named):
        read_records(tmp_path)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("round", "1"),
        ("phase", ["base"]),
        ("iteration_ns", []),
        ("iteration_ns", [0]),
        ("iteration_ns", [1, "2"]),
        ("bound_ns", 0),
        ("machine_cpu_fraction", "much"),
        ("settings", {"window_max_bytes": "1"}),
        ("machine", []),
        ("run", "../elsewhere"),
    ],
)
def test_a_value_of_another_kind_is_named(field: str, value: object, tmp_path: Path) -> None:
    line = json.dumps({"schema": 1, **record(1), field: value})
    (tmp_path / FILE).write_text(line + "\n")
    with pytest.raises(UserError, match=rf"line 1: {field}.*; remove the line"):
        read_records(tmp_path)


def test_one_run_writes_at_a_time(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with pytest.raises(UserError, match="another run"):
        Store(tmp_path)
    store.close()
    Store(tmp_path).close()
