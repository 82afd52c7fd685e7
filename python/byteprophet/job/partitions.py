"""How BytePS cuts tensors into partitions, and which server each goes to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from byteprophet.errors import UserError
from byteprophet.job.job import Job
from byteprophet.job.strategy import Keys
from byteprophet.job.times import Int64Array

PAGE_BYTES = 4096
"""BytePS rounds the size of partitions up to whole pages."""

_LAYOUTS = 64
_HASHES = 1 << 16
_MOST_OF_A_TENSOR = 1 << 16  # BytePS' keys have no room for more
_MOST_PARTITIONS = 1 << 20


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


def partitions_of_job(job: Job) -> Partitions:
    """The partitions of a job with servers, as its strategy cuts and places them on the wire.

    Raises ``UserError`` where ``partitions_of`` does.
    """
    strategy = job.strategy
    keys = {each.tensor: each for each in strategy.keys}
    own = [(place, keys[name]) for place, name in enumerate(job.model.names) if name in keys]
    return partitions_of(
        job.wire_bytes,
        strategy.partition_bytes,
        job.servers,
        strategy.numbers,
        tuple(own),
    )


@lru_cache(_LAYOUTS)
def partitions_of(
    sizes: tuple[int, ...],
    partition_bytes: int,
    servers: int,
    numbers: tuple[int, ...] = (),
    keys: tuple[tuple[int, Keys], ...] = (),
) -> Partitions:
    """The partitions of tensors of ``sizes`` bytes.

    ``numbers``: of the tensors in BytePS, which decide on servers; none: from 0, as they come.
    ``keys``: places of tensors in ``sizes``, with what is different about their keys. UserError
    where partitions have no bytes, where there would be more of them than BytePS can tell apart, or
    than can be simulated, and where ``keys`` name a server that is not there.
    """
    given = np.full(len(sizes), partition_bytes, dtype=np.int64)
    for place, own in keys:
        given[place] = own.partition_bytes or partition_bytes
    if not given.all():
        raise UserError("partition_bytes is 0: a job with servers needs at least 1")
    most_bytes = _whole_pages(given)
    size_of = np.array(sizes, dtype=np.int64)
    counts = -(-size_of // most_bytes)
    together, largest = int(counts.sum()), int(counts.argmax())
    if counts[largest] > _MOST_OF_A_TENSOR or together > _MOST_PARTITIONS:
        raise UserError(
            f"partitions of {most_bytes[largest]} bytes: there would be {together}, "
            f"{counts[largest]} of one tensor: at most {_MOST_PARTITIONS} and {_MOST_OF_A_TENSOR} "
            "are possible; use larger ones"
        )
    first = np.concatenate([[0], np.cumsum(counts)])
    tensor = np.repeat(np.arange(len(sizes)), counts)
    size_bytes = most_bytes[tensor]
    size_bytes[first[1:] - 1] = size_of - (counts - 1) * most_bytes
    place = np.arange(len(tensor)) - first[tensor]
    key = (tensor << 16) + place
    hashed = (np.array(numbers or range(len(sizes)))[tensor] << 16) + place
    server = np.array([server_of(int(one), servers) for one in hashed], dtype=np.int32)
    for at, own in keys:
        if max(own.servers, default=0) >= servers:
            raise UserError(
                f"tensor {own.tensor!r} is placed on server {max(own.servers)}, but the job has "
                f"{servers} server(s), from 0"
            )
        if own.servers:
            server[first[at] : first[at + 1]] = np.resize(own.servers, counts[at])
    partitions = Partitions(first.astype(np.int64), tensor, key, size_bytes, server)
    for array in vars(partitions).values():
        array.flags.writeable = False
    return partitions


def repeated(servers: Sequence[int]) -> tuple[int, ...]:
    """The shortest beginning of ``servers`` that gives all of them when it is repeated."""
    for length in range(1, len(servers)):
        if all(one == servers[place % length] for place, one in enumerate(servers)):
            return tuple(servers[:length])
    return tuple(servers)


def _whole_pages(size_bytes: Int64Array) -> Int64Array:
    whole: Int64Array = -(-size_bytes // PAGE_BYTES) * PAGE_BYTES
    return whole


def numbers_of(names: Sequence[str]) -> tuple[int, ...]:
    """Those that BytePS' optimizer for PyTorch gives to gradients: it declares them by name."""
    return tuple(np.argsort(np.argsort(names, kind="stable")).tolist())


@lru_cache(_HASHES)
def server_of(key: int, servers: int) -> int:
    """BytePS' server of a key, by its default hash (djb2 of the key's decimal digits).

    33 is divisible by 3 and 11, so for so many servers only the last digit counts. Tensors of one
    partition have even keys: they fall 2 : 1 : 2 on three servers, and on 5 of eleven.
    """
    if servers == 1:
        return 0
    value = 5381
    for digit in str(key).encode():
        value = (value * 33 + digit) % 2**64
    return value % servers
