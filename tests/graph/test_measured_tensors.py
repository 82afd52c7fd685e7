"""Sizes of tensors and partitions, where these change in mid-run."""

from __future__ import annotations

import numpy as np
import pytest

from byteprophet.engine.layout import partitions_of
from byteprophet.errors import UserError
from byteprophet.graph.measured_tensors import Tensors, measure_tensors
from byteprophet.timeline.events import Events, Origin
from byteprophet.timeline.tables import TRANSFER, TRANSFERS

SIZES = (4096, 3 << 20, 100_000)
NAMES = ("a", "b", "c")


def sent(*partition_bytes: int) -> Events:
    """One worker's transfers, an iteration per partition size."""
    tables = []
    for iteration, size in enumerate(partition_bytes, 1):
        parts = partitions_of(SIZES, size, 1)
        rows = np.zeros(len(parts.key), TRANSFER)
        rows["key"], rows["size_bytes"] = parts.key, parts.size_bytes
        rows["priority"], rows["iteration"] = -1 - parts.tensor, iteration
        tables.append(rows)
    names = dict(enumerate(NAMES))
    return Events(TRANSFERS, Origin("worker-0", 0), np.concatenate(tables), names)


@pytest.mark.parametrize(
    ("partition_bytes", "last", "settled_from"),
    [
        ((1 << 18,) * 3, 1 << 18, 0),
        ((1 << 18, 1 << 18, 1 << 20, 1 << 20), 1 << 20, 2),
        ((1 << 20, 1 << 18, 1 << 20, 1 << 18), 1 << 18, 3),
        ((4 << 20, 4 << 20), None, 0),
    ],
)
def test_the_last_size_counts(
    partition_bytes: tuple[int, ...], last: int | None, settled_from: int
) -> None:
    found = measure_tensors(sent(*partition_bytes))
    assert found == Tensors(NAMES, SIZES, (0, 1, 2), last, settled_from)


def test_places_are_told_after_the_first_iteration() -> None:
    """Before, BytePS takes the order of declaration for the order of need."""
    events = sent(*(1 << 18,) * 4)
    later = events.rows["iteration"] > 1
    events.rows["priority"][later] = -4 - events.rows["priority"][later]
    found = measure_tensors(events)
    assert (found.names, found.size_bytes, found.numbers) == (NAMES[::-1], SIZES[::-1], (2, 1, 0))


def test_a_gap_in_the_order_is_refused() -> None:
    events = sent(1 << 18)
    events.rows["priority"][events.rows["priority"] == -2] = 0
    with pytest.raises(UserError, match="no place in the forward order"):
        measure_tensors(events)
