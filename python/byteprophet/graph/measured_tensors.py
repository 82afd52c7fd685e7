"""What a recorded worker sent: tensors, their sizes, and the size they were cut into.

A partition size may change in mid-run (a policy follows its link, a tuner tries others); what a
tensor's partitions were in one iteration is known from that iteration alone, because keys of larger
partition numbers stay behind. A job is what it was in the end, from the iteration on from which its
partitions had that size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from byteprophet.errors import UserError
from byteprophet.timeline.events import Events
from byteprophet.timeline.tables import Rows, tensor_of


def layer_of(name: str, layers: Mapping[str, int]) -> int:
    """The place of the layer that a parameter is of, or that is called so; else the first."""
    while name not in layers and "." in name:
        name = name.rpartition(".")[0]
    return layers.get(name, 0)


@dataclass(frozen=True)
class Tensors:
    """In forward order. ``numbers``: those of BytePS.

    ``partition_bytes``: None where no tensor was larger than that.
    ``settled_from``: the iteration, from 0, since which partitions have had their size.
    """

    names: tuple[str, ...]
    size_bytes: tuple[int, ...]
    numbers: tuple[int, ...]
    partition_bytes: int | None
    settled_from: int


def measure_tensors(transfers: Events) -> Tensors:
    """What one worker sent; UserError where the forward order has gaps."""
    rows = transfers.rows
    rows = rows[(rows["priority"] < 0) & (rows["iteration"] > 0)]
    places = -1 - rows["priority"].astype(np.int64)
    iterations = rows["iteration"].astype(np.int64)
    sizes = np.zeros((iterations.max(initial=0) + 1, places.max(initial=-1) + 1), np.int64)
    np.add.at(sizes, (iterations, places), rows["size_bytes"].astype(np.int64))
    sent = sizes > 0
    if not sent.any(axis=0).all() or not len(rows):
        raise UserError("transfers: some tensors have no place in the forward order")
    # Of the last iteration that sent it; the one that was cut off may have half of it.
    latest = np.array([np.median(of[of > 0][-3:]) for of in sizes.T]).astype(np.int64)
    # The last that had each place: places are told after the first iteration.
    _, last = np.unique(places[::-1], return_index=True)
    numbers = tensor_of(rows[::-1][last]).tolist()
    names = [transfers.names.get(number, "") for number in numbers]
    partition_bytes, settled_from = _partitions(rows)
    return Tensors(
        tuple(names), tuple(latest.tolist()), tuple(numbers), partition_bytes, settled_from
    )


def _partitions(rows: Rows) -> tuple[int | None, int]:
    """The last size of partitions, and since which iteration, from 0."""
    numbers = rows["key"] & np.uint64(0xFFFF)
    wide = np.unique(np.stack([tensor_of(rows), rows["iteration"]])[:, numbers == 1], axis=1)
    code = tensor_of(rows) << np.uint64(32) | rows["iteration"]
    cut = (numbers == 0) & np.isin(code, wide[0] << np.uint64(32) | wide[1])
    if not cut.any():
        return None, 0
    order = np.argsort(rows["iteration"][cut], kind="stable")
    iterations, sizes = rows["iteration"][cut][order], rows["size_bytes"][cut][order]
    other = iterations[sizes != sizes[-1]]
    return int(sizes[-1]), int(other.max(initial=0))
