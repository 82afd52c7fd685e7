"""Sizes of tensors and partitions, where these change in mid-run."""

from __future__ import annotations

import numpy as np
import pytest

from byteprophet.errors import UserError
from byteprophet.job.fused_file import Fused
from byteprophet.job.partitions import partitions_of
from byteprophet.measure.tensors import (
    Tensors,
    check_extent,
    check_servers,
    measure_tensors,
    place_since,
    whole_iterations,
)
from byteprophet.timeline.events import Events, Origin
from byteprophet.timeline.tables import SPAN, TRANSFER, TRANSFERS, Kind

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
    assert found == Tensors(
        NAMES, SIZES, (0, 1, 2), (("a",), ("b",), ("c",)), last, (), settled_from
    )


def test_places_are_told_after_the_first_iteration() -> None:
    """Before, BytePS takes the order of declaration for the order of need."""
    events = sent(*(1 << 18,) * 4)
    later = events.rows["iteration"] > 1
    events.rows["priority"][later] = -4 - events.rows["priority"][later]
    found = measure_tensors(events)
    assert (found.names, found.size_bytes, found.numbers) == (NAMES[::-1], SIZES[::-1], (2, 1, 0))


def test_numbers_of_iterations_may_be_anything() -> None:
    """Where a recording begins late, and where a file says what cannot be: no array grows."""
    events = sent(1 << 18, 1 << 18)
    events.rows["iteration"] += 4_000_000_000
    assert measure_tensors(events).size_bytes == SIZES


def test_a_place_far_away_is_a_gap() -> None:
    events = sent(1 << 18)
    events.rows["priority"][-1] = -(2**31)
    with pytest.raises(UserError, match="no place in the forward order"):
        measure_tensors(events)


def test_too_long_a_job_is_refused() -> None:
    check_extent(10_000, 1000)
    with pytest.raises(UserError, match="1000000 iterations of 1000 tensors are too many"):
        check_extent(1_000_000, 1000)


def test_iterations_are_recorded_once() -> None:
    spans = np.zeros(3, SPAN)
    spans["kind"], spans["iteration"] = Kind.ITERATION, [2, 1, 3]
    assert whole_iterations(spans).tolist() == [1, 2, 3]
    spans["iteration"][2] = 1
    with pytest.raises(UserError, match="iteration 1 was recorded more than once"):
        whole_iterations(spans)


def test_a_gap_in_the_order_is_refused() -> None:
    events = sent(1 << 18)
    events.rows["priority"][events.rows["priority"] == -2] = 0
    with pytest.raises(UserError, match="no place in the forward order"):
        measure_tensors(events)


def test_gradients_that_share_a_buffer_are_one_tensor() -> None:
    """Before, each travelled alone, at a place of its own."""
    events = sent(*(1 << 18,) * 4)
    rows = events.rows
    rows["priority"] = np.where(rows["iteration"] < 3, rows["priority"], -1)
    rows["key"] = np.where(rows["iteration"] < 3, rows["key"], (7 << 16) + np.arange(len(rows)))
    events = Events(TRANSFERS, events.origin, rows, {**events.names, 7: "a and 2 more"})
    found = measure_tensors(events, Fused({"a and 2 more": NAMES}, since=3))
    assert (found.names, found.size_bytes) == (("a and 2 more",), (sum(SIZES),))
    assert found.parameters == (NAMES,)
    assert found.settled_from == 2


def test_partitions_that_byteps_compresses_tell_no_size() -> None:
    """It cuts all gradients alike, and compresses each partition of some."""
    events = sent(*(1 << 18,) * 3)
    is_compressed = events.rows["priority"] == -2
    events.rows["size_bytes"][is_compressed] //= 10
    own_bytes = dict(zip(NAMES, SIZES, strict=True))
    found = measure_tensors(events, own_bytes=own_bytes)
    assert found.compressed == ("b",)
    assert found.keys == ()
    assert found.partition_bytes is None  # no other one is large enough to tell it
    assert measure_tensors(events).keys  # without these sizes, what was sent is all that is known
    # A script that casts all gradients does so before they are cut.
    halved = sent(1 << 18, 1 << 18)
    found = measure_tensors(halved, own_bytes={name: 2 * own_bytes[name] for name in NAMES})
    assert (found.compressed, found.partition_bytes) == ((), 1 << 18)


def test_more_servers_than_keys_were_sent_to_are_refused() -> None:
    """A replay has a link and a policy for each: of 60000, it would not end."""
    events = [sent(1 << 18)]  # 14 keys
    check_servers(events, 64)
    check_servers([], 60_000)  # nothing is known
    with pytest.raises(UserError, match="has 60000 servers, but only 14 keys"):
        check_servers(events, 60_000)


def test_settings_that_no_recorded_iteration_had_are_refused() -> None:
    numbers = range(101, 121)  # --record-steps 100:120
    assert [place_since(settled, numbers) for settled in (0, 100, 101, 119)] == [0, 0, 1, 19]
    with pytest.raises(
        UserError, match="last settings were used from iteration 121 on, and no iteration was"
    ):
        place_since(120, numbers)
