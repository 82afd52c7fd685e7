"""A workload as the core's arrays: its partitions, the servers they go to, its times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from byteprophet.workload import Workload

Int64Array = npt.NDArray[np.int64]

PAGE_BYTES = 4096
"""BytePS rounds the size of partitions up to whole pages."""

_LAYOUTS = 64


@dataclass(frozen=True)
class Layout:
    """Tensors in forward order, partitions tensor after tensor.

    ``forward_ns``, ``ready_ns`` (from the start of backward): shape (tensors,);
    ``first_partition``: (tensors + 1,); ``size_bytes``, ``server``: (partitions,). Read-only.
    """

    forward_ns: Int64Array
    ready_ns: Int64Array
    first_partition: Int64Array
    size_bytes: Int64Array
    server: npt.NDArray[np.int32]


@dataclass(frozen=True)
class Partitions:
    """Tensors' partitions, tensor after tensor, as BytePS cuts them. Read-only.

    ``first``: shape (tensors + 1,), of each tensor, and behind the last. ``tensor`` (from 0),
    ``key`` (of that and the place in the tensor), ``size_bytes``, ``server``: shape (partitions,).
    """

    first: Int64Array
    tensor: Int64Array
    key: Int64Array
    size_bytes: Int64Array
    server: npt.NDArray[np.int32]


@lru_cache(_LAYOUTS)
def partitions_of(
    sizes: tuple[int, ...], partition_bytes: int, servers: int, numbers: tuple[int, ...] = ()
) -> Partitions:
    """The partitions of tensors of ``sizes`` bytes.

    ``numbers``: of the tensors in BytePS, which decide on servers; none: from 0, as they come.
    """
    partition_bytes = -(-partition_bytes // PAGE_BYTES) * PAGE_BYTES
    counts = -(-np.array(sizes, dtype=np.int64) // partition_bytes)
    first = np.concatenate([[0], np.cumsum(counts)])
    size_bytes = np.full(int(first[-1]), partition_bytes, dtype=np.int64)
    size_bytes[first[1:] - 1] = np.array(sizes) - (counts - 1) * partition_bytes
    tensor = np.repeat(np.arange(len(sizes)), counts)
    place = np.arange(len(tensor)) - first[tensor]
    key = (tensor << 16) + place
    hashed = (np.array(numbers or range(len(sizes)))[tensor] << 16) + place
    server = np.array([server_of(int(one), servers) for one in hashed], dtype=np.int32)
    partitions = Partitions(first.astype(np.int64), tensor, key, size_bytes, server)
    for array in vars(partitions).values():
        array.flags.writeable = False
    return partitions


def layout(workload: Workload, partition_bytes: int, servers: int) -> Layout:
    """The arrays of ``workload`` in partitions of ``partition_bytes``."""
    sizes = tuple(tensor.size_bytes for tensor in workload.tensors)
    numbers = numbers_of([tensor.name for tensor in workload.tensors])
    partitions = partitions_of(sizes, partition_bytes, servers, numbers)
    arrays = Layout(
        forward_ns=np.array([tensor.forward_ns for tensor in workload.tensors], dtype=np.int64),
        ready_ns=np.array(workload.ready_ns(), dtype=np.int64),
        first_partition=partitions.first,
        size_bytes=partitions.size_bytes,
        server=partitions.server,
    )
    for array in vars(arrays).values():
        array.flags.writeable = False
    return arrays


def numbers_of(names: Sequence[str]) -> tuple[int, ...]:
    """Those that BytePS' optimizer for PyTorch gives to gradients: it declares them by name."""
    return tuple(np.argsort(np.argsort(names, kind="stable")).tolist())


def server_of(key: int, servers: int) -> int:
    """BytePS' server of a key, by its default hash (djb2 of the key's decimal digits)."""
    if servers == 1:
        return 0
    value = 5381
    for digit in str(key).encode():
        value = (value * 33 + digit) % 2**64
    return value % servers
