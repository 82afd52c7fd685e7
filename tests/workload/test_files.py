"""Workload files: what is written is read back, and what is wrong is named."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from byteprophet.errors import UserError
from byteprophet.workload import Tensor, Workload, parse_toml, read_toml, to_toml

EXAMPLE = """\
name = "two-towers"
batch_size = 32

[[tensor]]
name = "embed.weight"
size_bytes = 4194304
forward_ns = 1500000
backward_ns = 3000000
burst = 3

[[tensor]]
name = "fc.weight"
size_bytes = 4096
forward_ns = 0
backward_ns = 10
"""

names = st.text(min_size=1).filter(lambda text: text.isprintable() and text.strip())
numbers = st.integers(0, 2**50)


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    tensors = []
    burst = 0
    for name in draw(st.lists(names, min_size=1, max_size=8, unique=True)):
        burst += draw(st.integers(0, 1))
        size_bytes = 4 * draw(st.integers(1, 2**48))
        grouped = burst if draw(st.booleans()) else None
        tensors.append(Tensor(name, size_bytes, draw(numbers), draw(numbers), grouped))
        burst += grouped is None  # a tensor on its own ends the burst
    return Workload(draw(names), draw(st.integers(1, 2**50)), tuple(tensors))


@given(workloads())
def test_round_trip(workload: Workload) -> None:
    assert parse_toml(to_toml(workload), "x") == workload


def test_the_format_is_as_documented(tmp_path: Path) -> None:
    workload = Workload(
        "two-towers",
        32,
        (
            Tensor("embed.weight", 4194304, 1500000, 3000000, burst=3),
            Tensor("fc.weight", 4096, 0, 10),
        ),
    )
    path = tmp_path / "workload.toml"
    path.write_text(EXAMPLE)
    assert read_toml(path) == workload
    assert to_toml(workload) == EXAMPLE


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("4096", "-5", "tensor 2 ('fc.weight'): size_bytes must be a positive multiple of 4, got"),
        ("forward_ns = 0\n", "", "tensor 2 ('fc.weight'): forward_ns is missing"),
        ('name = "fc.weight"\n', "", "tensor 2: name is missing"),
        ("burst = 3", "brust = 3", "tensor 1 ('embed.weight'): unknown field 'brust', known are"),
        ("batch_size = 32\n", "", "batch_size is missing"),
        ("32", '"32"', "batch_size must be an integer from 1 to 2^50, got '32'"),
        ("batch_size", "speed = 1\nbatch_size", "unknown field 'speed', known are name, batch"),
        (
            "fc.weight",
            "embed.weight",
            "tensor 2 ('embed.weight'): name is already that of tensor 1",
        ),
        ("[[tensor]]", "[tensor]", "is not TOML"),
        ("[[", "", "is not TOML"),
        ("32", "3" * 5000, "is not TOML: Exceeds the limit"),
    ],
)
def test_errors_name_file_tensor_and_field(old: str, new: str, message: str) -> None:
    with pytest.raises(UserError) as raised:
        parse_toml(EXAMPLE.replace(old, new), "w.toml")
    assert str(raised.value).startswith(f"w.toml: {message}")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("tensors", ["3", "[]", "[3]", "{}"])
def test_tensors_must_be_tables(tensors: str) -> None:
    with pytest.raises(UserError, match=r"^w.toml: (tensor must be tables|there must be at least)"):
        parse_toml(f'name = "w"\nbatch_size = 1\ntensor = {tensors}\n', "w.toml")


@pytest.mark.parametrize("text", ["", "\n# nothing\n"])
def test_an_empty_file(text: str) -> None:
    with pytest.raises(UserError, match=r"^w.toml: is empty$"):
        parse_toml(text, "w.toml")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Is a directory"):
        read_toml(tmp_path)
    with pytest.raises(UserError, match="No such file"):
        read_toml(tmp_path / "missing.toml")
    binary = tmp_path / "binary"
    binary.write_bytes(b'name = "\xff"')
    with pytest.raises(UserError, match=r"binary: is not UTF-8 text \(byte 8\)"):
        read_toml(binary)
