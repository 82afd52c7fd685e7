"""What rank 0 says holds for all: its integers, broadcast as a sum to which others add zeros."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import torch

from byteprophet.torch.synchroniser import Synchroniser


class Announcement:
    """Rank 0's integers on their way to all ranks; every rank makes one at the same step.

    ``values``, exactly ``count``, are looked at on rank 0 only; ``None``: it has nothing to say.
    ``what`` they are, for messages.
    """

    def __init__(
        self,
        synchroniser: Synchroniser,
        name: str,
        values: Sequence[int] | None,
        count: int,
        what: str,
    ) -> None:
        self._what = what
        self._message = torch.zeros(count + 1, dtype=torch.int64)
        if synchroniser.rank == 0 and values is not None:
            self._message[0] = 1
            self._message[1:] = torch.tensor(values, dtype=torch.int64)
        self._arrived = threading.Event()
        self._error: BaseException | None = None
        synchroniser.declare([name])
        synchroniser.submit(name, self._message, priority=0, average=False, done=self._done)

    def wait(self, timeout_s: float) -> list[int] | None:
        """Rank 0's integers, ``None`` if it has none. ``RuntimeError`` after ``timeout_s``."""
        if not self.arrives_within(timeout_s):
            raise RuntimeError(
                f"byteprophet: waited {timeout_s:g} s for the {self._what} of rank 0; a worker or "
                "a server may be gone (BYTEPROPHET_TIMEOUT_S sets the limit)"
            )
        if self._error is not None:
            raise RuntimeError(
                f"byteprophet: the {self._what} could not be exchanged"
            ) from self._error
        return [int(value) for value in self._message[1:]] if int(self._message[0]) == 1 else None

    def arrives_within(self, timeout_s: float) -> bool:
        """Whether it is there, or has failed, after at most ``timeout_s``."""
        return self._arrived.wait(timeout_s)

    def _done(self, error: BaseException | None) -> None:
        self._error = error
        self._arrived.set()


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
    return Announcement(synchroniser, name, order, count, "forward order").wait(timeout_s)
