"""The interface between a synchroniser and its exchange, the transport to all other ranks.

A *reduce-scatter* replaces this rank's shard of some tensors by the sum or average over all ranks.
An *all-gather* replaces the other ranks' shards by the values that those ranks have. An
*all-reduce* is both, one after the other. All ranks start the same operations under the same
numbers, with the same owners, in any order and at any time. Among the operations that can begin,
the one with the smallest position goes first.

There are two exchanges. ``mesh_exchange.py`` uses sockets of our own, for tensors on CPUs.
``group_exchange.py`` uses the collectives of a process group, such as NCCL's on GPUs.
``process_exchange.py`` chooses the exchange of a process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.distributed.distributed_c10d import Store

from byteprophet.job.owners import Owners
from byteprophet.torch.sync.completion import Done
from byteprophet.torch.tensors.naming import Names


@dataclass(frozen=True)
class Sent:
    """What this process has sent, and how long it had something to send.

    ``carried_bytes``: what its link carried in ``carrying_ns``, a part of ``busy_ns``. The system
    takes bytes before the link carries them, and so a short message says nothing about the link.
    """

    payload_bytes: int
    busy_ns: int
    carried_bytes: int
    carrying_ns: int

    def bandwidth_bps(self, before: Sent) -> int:
        """The bandwidth of the link since ``before``, in bits per second, at least 1."""
        carried_bytes, took_ns = (
            self.carried_bytes - before.carried_bytes,
            self.carrying_ns - before.carrying_ns,
        )
        if carried_bytes <= 0 or took_ns <= 0:  # all messages were short
            carried_bytes = self.payload_bytes - before.payload_bytes
            took_ns = self.busy_ns - before.busy_ns
        return max(1, max(1, carried_bytes) * 8 * 10**9 // max(1, took_ns))


class Exchange(Protocol):
    """The connection of this process to all other ranks, for one kind of device.

    ``store`` is for messages before the job begins.
    """

    rank: int
    size: int
    store: Store
    numbers: Iterator[int]
    """Numbers for objects that all ranks make in the same order."""
    names: Names
    device_type: str
    """The device type of the tensors that this exchange sends."""
    in_order: bool
    """Whether operations begin in the order of rank 0's requests.

    Then one that another rank has not requested yet delays those after it (``outstanding.py``).
    """

    def carries(self, dtype: torch.dtype) -> bool:
        """Whether this exchange can send tensors of this type."""

    def reduce_scatter(
        self,
        operation: int,
        tensors: Sequence[Tensor],
        owners: Owners,
        average: bool,
        position: int,
        done: Done,
    ) -> None:
        """Start a reduce-scatter of ``tensors``, which are dense and of one type.

        Raises ``RuntimeError`` after ``close``, and ``ValueError`` if this exchange cannot send
        the type, or the type is one of integers, which have no averages.
        """

    def all_gather(
        self,
        operation: int,
        tensors: Sequence[Tensor],
        owners: Owners,
        position: int,
        done: Done,
    ) -> None:
        """Start an all-gather of ``tensors``, with the conditions of ``reduce_scatter``."""

    def all_reduce(
        self,
        operations: tuple[int, int],
        tensors: Sequence[Tensor],
        owners: Owners,
        average: bool,
        positions: tuple[int, int],
        summed: Callable[[], None] | None,
        done: Done,
    ) -> None:
        """Start a reduce-scatter, and an all-gather of ``tensors`` from each rank's sum on.

        ``operations`` and ``positions`` are those of the two. ``summed`` is called when this rank
        has its sum. ``done`` is called at the end of the all-gather, or with the first error.
        """

    def missing(self, operation: int) -> list[int]:
        """The ranks whose part of an operation in flight has not arrived, as far as is known."""

    def sent(self) -> Sent:
        """What this process has sent in total."""

    def let_go(self, timeout_s: float) -> None:
        """Wait until no thread holds a tensor. Nothing may be in flight."""

    def close(self) -> None:
        """Send what is left, then disconnect. No operation may be started from then on."""
