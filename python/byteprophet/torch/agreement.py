"""One order for all ranks: rank 0's, broadcast as a sum to which the others add zeros."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import torch

from byteprophet.torch.synchroniser import Synchroniser


def agree(
    synchroniser: Synchroniser,
    name: str,
    order: Sequence[int] | None,
    count: int,
    timeout_s: float,
) -> list[int] | None:
    """Rank 0's ``order``, a permutation of ``range(count)``; ``None`` if rank 0 has none.

    Every rank calls it at the same step. Raises ``RuntimeError`` after ``timeout_s`` seconds.
    """
    message = torch.zeros(count + 1, dtype=torch.int64)
    if synchroniser.rank == 0 and order is not None:
        message[0] = 1
        message[1:] = torch.tensor(order, dtype=torch.int64)
    arrived = threading.Event()
    failure: list[BaseException | None] = []

    def done(error: BaseException | None) -> None:
        failure.append(error)
        arrived.set()

    synchroniser.declare([name])
    synchroniser.submit(name, message, priority=0, average=False, done=done)
    if not arrived.wait(timeout_s):
        raise RuntimeError(
            f"byteprophet: waited {timeout_s:g} s for the forward order of rank 0; a worker or a "
            "server may be gone (BYTEPROPHET_TIMEOUT_S sets the limit)"
        )
    if failure[0] is not None:
        raise RuntimeError("byteprophet: the forward order could not be exchanged") from failure[0]
    return [int(index) for index in message[1:]] if int(message[0]) == 1 else None
