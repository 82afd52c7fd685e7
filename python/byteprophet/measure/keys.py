"""Measures how a recorded worker's tensors were cut into partitions, and where these were summed.

A tensor's partitions are those of the last iteration that sent all of it. Keys of larger partition
numbers remain from earlier, larger numbers of partitions, so one iteration must tell. A partition
size may change during the run, because a policy adapts it to its link or a tuner tries others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import dataclass

import numpy as np

from byteprophet.job.partitions import PAGE_BYTES, repeated, server_of
from byteprophet.job.strategy import Keys
from byteprophet.job.times import Int64Array
from byteprophet.timeline.tables import Rows

_PARTS = np.uint64(0xFFFF)


@dataclass(frozen=True)
class MeasuredKeys:
    """``partition_bytes``: that of most tensors; None: no tensor was larger than a partition.

    ``keys``: what is different about single tensors. ``settled_from``: 0-based index of the first
    iteration since which all tensors were cut so.
    """

    partition_bytes: int | None
    keys: tuple[Keys, ...]
    settled_from: int


@dataclass(frozen=True)
class _Cut:
    """How one tensor was cut last: the sizes and servers of its partitions, and since when."""

    first_bytes: int
    servers: tuple[int, ...]
    since: int

    @property
    def is_cut(self) -> bool:
        return len(self.servers) > 1


def measure_keys(
    rows: Rows,
    names: Sequence[str],
    sizes_bytes: Sequence[int],
    numbers: Sequence[int],
    servers: int,
    compressed: Container[int] = (),
) -> MeasuredKeys:
    """Measure the keys of tensors in forward order, from one worker's transfers ``rows``.

    ``numbers``: the tensors' numbers in BytePS. ``servers``: how many the job has. ``compressed``:
    places of tensors that BytePS cut before it compressed their partitions, whose sizes therefore
    do not tell how it cut them. It cuts them as all others.
    """
    cuts = _cuts(rows, sizes_bytes)
    told = [cut for place, cut in cuts.items() if place not in compressed]
    usual = Counter(cut.first_bytes for cut in told if cut.is_cut)
    partition_bytes = max(usual, key=lambda size: (usual[size], size)) if usual else None
    keys = []
    for place, cut in sorted(cuts.items()):
        own_bytes = 0
        if cut.is_cut or cut.first_bytes > (partition_bytes or cut.first_bytes):
            own_bytes = -(-cut.first_bytes // PAGE_BYTES) * PAGE_BYTES
        if own_bytes == partition_bytes or place in compressed:
            own_bytes = 0
        number = int(numbers[place]) << 16
        hashed = tuple(server_of(number + part, servers) for part in range(len(cut.servers)))
        placed = () if cut.servers == hashed else repeated(cut.servers)
        if names[place] and (own_bytes or placed):
            keys.append(Keys(names[place], own_bytes, placed))
    return MeasuredKeys(
        partition_bytes, tuple(keys), max((cut.since for cut in cuts.values()), default=0)
    )


def _cuts(rows: Rows, sizes_bytes: Sequence[int]) -> dict[int, _Cut]:
    """By the tensor's place; without those that no iteration sent completely."""
    part = (rows["key"] & _PARTS).astype(np.int64)
    place, iteration = -1 - rows["priority"].astype(np.int64), rows["iteration"].astype(np.int64)
    order = np.lexsort((part, iteration, place))
    part, place, iteration = part[order], place[order], iteration[order]
    size_bytes = rows["size_bytes"].astype(np.int64)[order]
    server = rows["server"].astype(np.int64)[order]
    begins = (np.diff(place, prepend=-1) != 0) | (np.diff(iteration, prepend=-1) != 0)
    first = np.flatnonzero(begins)
    if not len(first):
        return {}
    sums = np.add.reduceat(size_bytes, first)
    last = np.append(first[1:], len(part))
    whole = (sums == np.array(sizes_bytes)[place[first]]) & (part[last - 1] == last - first - 1)
    first, last = first[whole], last[whole]
    return {
        int(place[one[-1][0]]): _Cut(
            int(size_bytes[one[-1][0]]),
            tuple(server[slice(*one[-1])].tolist()),
            _since(iteration[one[:, 0]], size_bytes[one[:, 0]]),
        )
        for one in _by_place(place, np.stack([first, last], axis=1))
    }


def _by_place(place: Int64Array, spans: Int64Array) -> list[Int64Array]:
    """The spans of rows of each place, in order of iterations."""
    borders = np.flatnonzero(np.diff(place[spans[:, 0]])) + 1
    return [one for one in np.split(spans, borders) if len(one)]


def _since(iterations: Int64Array, first_bytes: Int64Array) -> int:
    """The 0-based iteration behind the last one in which a tensor was cut otherwise."""
    other = iterations[first_bytes != first_bytes[-1]]
    return int(other.max(initial=0))
