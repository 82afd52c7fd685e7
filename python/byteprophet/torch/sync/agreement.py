"""Messages between ranks: integers that are summed over all ranks between two steps.

Every rank makes the same exchange at the same step and under the same name. A rank waits only when
it asks for the result.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from byteprophet.torch.sync.completion import STEP, Call, Completion
from byteprophet.torch.sync.synchroniser import Synchroniser


class _Exchange:
    """A sum of integers over all ranks that is in flight.

    Error messages name ``what`` the integers are and the ``call`` that all ranks must make.
    """

    def __init__(
        self, synchroniser: Synchroniser, name: str, mine: Sequence[int], what: str, call: Call
    ) -> None:
        self._synchroniser = synchroniser
        self._name = name
        self._sums = torch.tensor(mine, dtype=torch.int64)
        self._completion = Completion(what, call)
        synchroniser.declare([name])
        synchroniser.submit_message(name, self._sums, done=self._completion)

    def arrives_within(self, timeout_s: float) -> bool:
        """Wait at most ``timeout_s`` seconds. True if the sum has arrived or has failed."""
        return self._completion.arrives_within(timeout_s)

    def _wait(self, timeout_s: float) -> list[int]:
        self._completion.wait(timeout_s, self._synchroniser, self._name)
        return [int(value) for value in self._sums]


class Announcement(_Exchange):
    """Sends rank 0's integers to all ranks. The other ranks contribute zeros.

    ``values`` are used on rank 0 only and must be exactly ``count`` integers. None means that
    rank 0 has none.
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
        super().__init__(synchroniser, name, mine, f"{what} of rank 0", STEP)

    def wait(self, timeout_s: float) -> list[int] | None:
        """Wait for rank 0's integers, or None if it has none.

        Raises ``TimedOut`` after ``timeout_s`` seconds, and ``RuntimeError`` if the sum failed.
        """
        said, *values = self._wait(timeout_s)
        return values if said == 1 else None


class Collection(_Exchange):
    """Sends one integer of every rank to all ranks. Each rank contributes zeros for the others."""

    def __init__(
        self, synchroniser: Synchroniser, name: str, value: int, what: str, call: Call = STEP
    ) -> None:
        mine = [0] * synchroniser.size
        mine[synchroniser.rank] = value
        super().__init__(synchroniser, name, mine, what, call)

    def wait(self, timeout_s: float) -> list[int]:
        """Wait for the integers, in rank order.

        Raises ``TimedOut`` after ``timeout_s`` seconds, and ``RuntimeError`` if the sum failed.
        """
        return self._wait(timeout_s)


def agree(
    synchroniser: Synchroniser,
    name: str,
    order: Sequence[int] | None,
    count: int,
    timeout_s: float,
) -> list[int] | None:
    """Return rank 0's ``order``, a permutation of ``range(count)``, or None if rank 0 has none.

    Every rank calls it at the same step. Raises ``TimedOut`` after ``timeout_s`` seconds, and
    ``RuntimeError`` if the exchange failed.
    """
    return Announcement(synchroniser, name, order, count, "forward order").wait(timeout_s)
