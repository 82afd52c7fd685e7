"""Graphs in arrays: the same as operation by operation, and refused where numbers do not fit."""

from __future__ import annotations

import tracemalloc
from dataclasses import fields, is_dataclass
from itertools import pairwise
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from byteprophet.errors import UserError
from byteprophet.graph import Graph, GraphBuilder, Kind, Label
from byteprophet.replay import replay

GATED = ("operation", "gate", "key", "server", "priority", "acked_by")
# What an operation may have, and how it is written down where nothing is said.
COLUMNS = {
    "duration_ns": 0,
    "size_bytes": 0,
    "device": -1,
    "latency_ns": 0,
    "priority": 0,
    "release_ns": 0,
    "pool": -1,
    "allocated_bytes": 0,
    "freed_bytes": 0,
}
NAMES = ("a", "b", "c")


def columns_of(graph: object, prefix: str = "") -> dict[str, Any]:
    """All arrays and tables, and the arrays' types."""
    found: dict[str, Any] = {}
    for field in fields(graph):  # type: ignore[arg-type]
        value = getattr(graph, field.name)
        if is_dataclass(value):
            found |= columns_of(value, f"{prefix}{field.name}.")
        elif isinstance(value, np.ndarray):
            found[prefix + field.name] = (value.dtype.name, value.tolist())
        else:
            found[prefix + field.name] = value
    return found


def tables(builder: GraphBuilder) -> None:
    link = builder.link("link", 10**9)
    builder.serial("computes")
    builder.connection("over", (link,))
    builder.gate("gate", "p3")
    builder.pool("memory")


def one_row(random: Random, names: dict[str, int]) -> dict[str, int]:
    """Some columns of an operation, with values of either sign where there may be any."""
    given = [name for name in names if random.random() < 0.4]
    return {name: random.choice((names[name], random.randint(0, 2**30))) for name in given}


def in_cuts(random: Random, rows: list[Any]) -> list[list[Any]]:
    """``rows`` in stretches of random lengths."""
    cuts = sorted({0, len(rows), *(random.randint(0, len(rows)) for _ in range(4))})
    return [rows[one:other] for one, other in pairwise(cuts)]


def block_of(
    random: Random, rows: list[dict[str, int]], defaults: dict[str, int]
) -> dict[str, Any]:
    """The columns of ``rows``: one number where all have the same, or nothing if it is default."""
    columns: dict[str, Any] = {}
    for name, default in defaults.items():
        values = [row.get(name, default) for row in rows]
        if set(values) == {default} and random.random() < 0.8:
            continue
        alike = len(set(values)) == 1 and random.random() < 0.5
        columns[name] = values[0] if alike else np.array(values)
    return columns


@settings(max_examples=100)
@given(seed=st.integers(0, 2**32 - 1), count=st.integers(0, 40))
def test_blocks_equal_one_by_one(seed: int, count: int) -> None:
    random = Random(seed)
    labels = dict(Label(kind=0)._asdict())
    rows = [one_row(random, COLUMNS) for _ in range(count)]
    label_rows = [
        {name: random.randint(0, 20) for name in labels if random.random() < 0.5} for _ in rows
    ]
    for row in label_rows:
        if "tensor" in row:
            row["tensor"] %= len(NAMES)
    pairs = [random.choices(range(count), k=2) for _ in range(2 * count)]
    gated = [
        dict(zip(GATED, (o, 0, o << 40, o % 2, -1 - o, count - 1), strict=True))
        for o in range(count)
        if random.random() < 0.5
    ]
    marks = random.sample(range(count), k=count // 3)

    single = GraphBuilder(NAMES)
    tables(single)
    for number, (row, label) in enumerate(zip(rows, label_rows, strict=True)):
        name = NAMES[label["tensor"]] if "tensor" in label else ""
        assert single.add(name, label=Label(**label), **row) == number  # type: ignore[arg-type]
    for before, after in pairs:
        single.depend(before, after)
    for one in gated:
        single.guard(**one)
    for operation in marks:
        single.mark_iteration(operation, 0)

    blocks = GraphBuilder(NAMES)
    tables(blocks)
    for cut in in_cuts(random, list(range(count))):
        if len(cut) == 1 and random.random() < 0.5:
            row, label = rows[cut[0]], label_rows[cut[0]]
            blocks.add("", label=Label(**label), **row)  # type: ignore[arg-type]
            continue
        columns = block_of(random, [rows[i] for i in cut], COLUMNS)
        label = block_of(random, [label_rows[i] for i in cut], labels)
        shape: int | tuple[int, ...] = len(cut)
        if len(cut) % 2 == 0 and random.random() < 0.5:  # the same in two dimensions
            shape = (2, len(cut) // 2)
            columns, label = (
                {n: v.reshape(shape) if np.ndim(v) else v for n, v in given.items()}
                for given in (columns, label)
            )
        numbers = blocks.add_block(shape, **columns, label=Label(**label))
        assert numbers.ravel().tolist() == cut
        assert numbers.shape == (shape if isinstance(shape, tuple) else (shape,))
    for some in in_cuts(random, pairs):
        blocks.depend_each(*np.array(some, dtype=np.int64).reshape(-1, 2).T)
    for some in in_cuts(random, gated):
        gated_of = {name: np.array([one[name] for one in some], np.int64) for name in GATED}
        blocks.guard_block(gated_of.pop("operation"), gated_of.pop("gate"), **gated_of)
    blocks.mark_iteration(marks, 0)

    graph = blocks.freeze()
    assert columns_of(graph) == columns_of(single.freeze())
    # And both are what was said.
    flat = vars(graph) | vars(graph.memory)
    for name, default in COLUMNS.items():
        assert flat[name].tolist() == [row.get(name, default) for row in rows]
    for name, default in labels.items():
        column = getattr(graph.labels, name).tolist()
        assert column == [row.get(name, default) for row in label_rows]
    ends = [numbers.tolist() for numbers in graph.edges()]
    assert list(zip(*ends, strict=True)) == sorted(map(tuple, pairs), key=lambda pair: pair[0])


def test_one_may_stand_for_all_and_rows_are_chained() -> None:
    builder = GraphBuilder()
    first = builder.add("first")
    grid = builder.add_block((2, 3))
    builder.depend_each(first, grid[:, 0])
    builder.chain(grid)
    builder.depend_each(grid[:, -1], builder.add("last"))
    edges = {tuple(pair) for pair in np.transpose(builder.freeze().edges()).tolist()}
    assert edges == {(0, 1), (0, 4), (1, 2), (2, 3), (4, 5), (5, 6), (3, 7), (6, 7)}


def test_a_frozen_graph_stays_as_it_is() -> None:
    builder = GraphBuilder()
    builder.add_block(3, [1, 2, 3])
    builder.depend(0, 1)
    graph = builder.freeze()
    before = columns_of(graph)
    builder.add_block(100, 7, device=0, label=Label(Kind.PUSH, rank=1))
    builder.depend(1, 2)
    assert len(builder.freeze()) == 103
    assert columns_of(graph) == before
    with pytest.raises(ValueError, match="read-only"):
        graph.duration_ns[0] = 5


def test_a_selection_keeps_labels() -> None:
    builder = GraphBuilder(NAMES)
    label = Label(Kind.UPDATE, 1, iteration=np.arange(6), tensor=[0, 1, 2, 0, 1, 2])
    builder.add_block(6, label=label)
    graph = builder.freeze()
    chosen = graph.select([5, 2, 3])
    for new, old in enumerate((2, 3, 5)):
        assert chosen.labels.describe(new) == graph.labels.describe(old)
    assert chosen.labels.describe(2) == "update of c, worker 1, iteration 5"


def test_what_does_not_fit_is_refused_and_leaves_nothing() -> None:
    builder = GraphBuilder()
    builder.add("one", 1)
    for label, text in (
        (Label(rank=40_000), "rank must be from -32768 to 32767, got 40000"),
        (Label(tensor=np.array([0, 2**31])), r"tensor must be from .* got 2147483648"),
        (Label(kind=-1), "kind must be from 0 to 255, got -1"),
        (Label(part=[0.5, 1]), "part must be integers, got float64"),
    ):
        with pytest.raises(UserError, match=text):
            builder.add_block(2, 5, label=label)
    with pytest.raises(ValueError, match="broadcast"):
        builder.add_block(2, 5, priority=[1, 2, 3])
    with pytest.raises(TypeError, match="no such column: devcie"):
        builder.add_block(2, 5, devcie=0)  # type: ignore[call-arg]
    with pytest.raises(UserError, match="key must be from 0"):
        builder.guard_block([0], 0, key=-1, server=0, priority=0, acked_by=0)
    builder.add_block(2)
    graph = builder.freeze()
    assert graph.duration_ns.tolist() == [1, 0, 0]
    assert graph.labels.kind.tolist() == [0, 0, 0]
    assert not len(graph.gated.operation)


def test_what_is_added_alone_is_checked_too() -> None:
    for columns, error in (({"device": 2**31}, UserError), ({"devcie": 0}, TypeError)):
        builder = GraphBuilder()
        builder.add("one", **columns)  # type: ignore[arg-type]
        with pytest.raises(error, match=r"device must be|no such column"):
            builder.freeze()


def test_nobody_waits_for_what_is_not_there() -> None:
    for before in (2, -1):
        builder = GraphBuilder()
        builder.add_block(2)
        builder.depend(before, 1)
        with pytest.raises(UserError, match=rf"operation 1 waits for operation {before}"):
            builder.freeze()


def test_memory_of_a_pool_that_is_not_there_is_refused() -> None:
    builder = GraphBuilder()
    builder.add_block(2, pool=[-1, 0], allocated_bytes=5)
    with pytest.raises(UserError, match=r"operation 1 .* pool"):
        replay(builder.freeze())


def bytes_of(graph: Graph) -> int:
    parts = (graph, graph.labels, graph.memory, graph.gated)
    return sum(v.nbytes for part in parts for v in vars(part).values() if hasattr(v, "nbytes"))


def test_a_million_operations_take_little_more_than_they_are() -> None:
    tracemalloc.start()
    try:
        builder = GraphBuilder(f"layer {number}" for number in range(1000))
        last = builder.add_block(1000)
        for iteration in range(1, 1000):
            label = Label(Kind.PUSH, 1, iteration=iteration, tensor=np.arange(1000))
            block = builder.add_block(1000, np.arange(1000), device=0, size_bytes=7, label=label)
            builder.depend_each(last, block)
            builder.depend_each(np.roll(last, 1), block)
            last = block
        graph = builder.freeze()
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(graph) == 1_000_000
    assert len(graph.successor) == 1_998_000
    assert peak_bytes < 2 * bytes_of(graph)
