"""What is measured of keys is how the tensors were cut and placed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from byteprophet.job.partitions import partitions_of
from byteprophet.job.strategy import Keys
from byteprophet.measure.keys import measure_keys
from byteprophet.timeline.tables import TRANSFER, Rows

SIZES = (1 << 20, 4096, 3 << 20, 100_000, 5_000_000)
NAMES = ("a", "b", "c", "d", "e")
USUAL_BYTES = 1 << 18

GivenKeys = tuple[tuple[int, Keys], ...]


def sent(iterations: list[GivenKeys], servers: int) -> Rows:
    """One worker's transfers, an iteration per element of ``iterations``."""
    tables = []
    for iteration, keys in enumerate(iterations, 1):
        parts = partitions_of(SIZES, USUAL_BYTES, servers, keys=keys)
        rows = np.zeros(len(parts.key), TRANSFER)
        rows["key"], rows["size_bytes"], rows["server"] = parts.key, parts.size_bytes, parts.server
        rows["priority"], rows["iteration"] = -1 - parts.tensor, iteration
        tables.append(rows)
    return np.concatenate(tables)


@st.composite
def keys_of_some(draw: st.DrawFn, servers: int) -> GivenKeys:
    """Of two tensors, so that most of those that are cut have the usual size."""
    found = []
    for place in draw(st.permutations(range(5)))[:2]:
        on = draw(st.lists(st.integers(0, servers - 1), max_size=4))
        size_bytes = draw(st.sampled_from((0, 1 << 16, 40_960, 1 << 19, 1 << 23)))
        found.append((place, Keys(NAMES[place], size_bytes, tuple(on))))
    return tuple(found)


@given(st.data())
def test_what_is_measured_gives_the_same_partitions(data: st.DataObject) -> None:
    servers = data.draw(st.integers(1, 4))
    iterations = data.draw(st.lists(keys_of_some(servers), min_size=1, max_size=4))
    rows = sent(iterations, servers)
    rows = rows[data.draw(st.permutations(range(len(rows)))) if len(rows) < 100 else ...]
    found = measure_keys(rows, NAMES, SIZES, range(5), servers)
    keys = tuple((NAMES.index(each.tensor), each) for each in found.keys)
    again = partitions_of(SIZES, found.partition_bytes or USUAL_BYTES, servers, keys=keys)
    was = partitions_of(SIZES, USUAL_BYTES, servers, keys=iterations[-1])
    assert again.size_bytes.tolist() == was.size_bytes.tolist()
    assert again.server.tolist() == was.server.tolist()
    cut = [
        partitions_of(SIZES, USUAL_BYTES, servers, keys=keys).size_bytes.tolist()
        for keys in iterations
    ]
    assert found.settled_from == max(
        (number + 1 for number, sizes in enumerate(cut) if sizes != cut[-1]), default=0
    )


def test_a_hash_needs_no_words_and_a_placement_few() -> None:
    plain = measure_keys(sent([()], 3), NAMES, SIZES, range(5), 3)
    assert (plain.partition_bytes, plain.keys) == (USUAL_BYTES, ())
    placed = ((2, Keys("c", 1 << 16, (2, 0, 0, 2, 0, 0))), (0, Keys("a", 0, (1,))))
    found = measure_keys(sent([placed], 3), NAMES, SIZES, range(5), 3)
    assert found.keys == (Keys("a", 0, (1,)), Keys("c", 1 << 16, (2, 0, 0)))


def test_an_iteration_that_was_cut_off_does_not_count() -> None:
    placed: GivenKeys = ((2, Keys("c", 1 << 20, (1,))),)
    rows = sent([placed, placed, ()], 2)
    rows = rows[(rows["iteration"] < 3) | (rows["key"] & np.uint64(0xFFFF) == 0)]
    found = measure_keys(rows, NAMES, SIZES, range(5), 2)
    assert found.keys == (Keys("c", 1 << 20, (1,)),)
    assert found.settled_from == 0


@pytest.mark.parametrize("servers", [1, 2])
def test_nothing_sent_is_nothing_known(servers: int) -> None:
    found = measure_keys(np.zeros(0, TRANSFER), NAMES, SIZES, range(5), servers)
    assert (found.partition_bytes, found.keys, found.settled_from) == (None, (), 0)
