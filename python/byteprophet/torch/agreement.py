"""What ranks tell each other between two steps: integers that travel as a sum.

Every rank makes the same exchange at the same step and under the same name; nobody waits before
the result is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from byteprophet.torch.completion import Completion
from byteprophet.torch.synchroniser import Synchroniser


class _Exchange:
    """A sum of integers over all ranks, on its way. ``what`` they are, for messages."""

    def __init__(
        self, synchroniser: Synchroniser, name: str, mine: Sequence[int], what: str
    ) -> None:
        self._synchroniser = synchroniser
        self._name = name
        self._sums = torch.tensor(mine, dtype=torch.int64)
        self._completion = Completion(what)
        synchroniser.declare([name])
        synchroniser.submit(name, self._sums, priority=0, average=False, done=self._completion)

    def arrives_within(self, timeout_s: float) -> bool:
        """Whether it is there, or has failed, after at most ``timeout_s``."""
        return self._completion.arrives_within(timeout_s)

    def _wait(self, timeout_s: float) -> list[int]:
        self._completion.wait(timeout_s, lambda: self._synchroniser.awaited(self._name))
        return [int(value) for value in self._sums]


class Announcement(_Exchange):
    """Rank 0's integers on their way to all ranks: the others add zeros.

    ``values``, exactly ``count``, are looked at on rank 0 only; ``None``: it has nothing to say.
    """

    def __init__(
        self,
        synchroniser: Synchroniser,
        name: str,
        values: Sequence[int] | None,
        count: int,
        what: str,
    ) -> None:
        says = synchroniser.rank == 0 and values is not None
        mine = [1, *(values or ())] if says else [0] * (count + 1)
        super().__init__(synchroniser, name, mine, f"{what} of rank 0")

    def wait(self, timeout_s: float) -> list[int] | None:
        """Rank 0's integers, ``None`` if it has none. ``RuntimeError`` after ``timeout_s``."""
        said, *values = self._wait(timeout_s)
        return values if said == 1 else None


class Collection(_Exchange):
    """One integer of every rank on its way to all ranks: each adds its own in its place."""

    def __init__(self, synchroniser: Synchroniser, name: str, value: int, what: str) -> None:
        mine = [0] * synchroniser.size
        mine[synchroniser.rank] = value
        super().__init__(synchroniser, name, mine, what)

    def wait(self, timeout_s: float) -> list[int]:
        """By rank. ``RuntimeError`` after ``timeout_s``."""
        return self._wait(timeout_s)


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
