"""Messages between ranks: integers that are summed over all ranks between two steps.

Every rank makes the same exchange at the same step and under the same name. A rank waits only when
it asks for the result.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from byteprophet.observe.span_log import process_spans
from byteprophet.timeline.tables import Kind
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
        with process_spans.span(Kind.WAIT, self._name):
            self._completion.wait(timeout_s, self._synchroniser, self._name)
        return [int(value) for value in self._sums]


class Announcement(_Exchange):
    """Sends one rank's integers to all ranks. The other ranks contribute zeros.

    ``values`` are used on the rank ``sender`` only and must be exactly ``count`` integers. None
    means that it has none.
    """

    def __init__(
        self,
        synchroniser: Synchroniser,
        name: str,
        values: Sequence[int] | None,
        count: int,
        what: str,
        sender: int = 0,
    ) -> None:
        says = synchroniser.rank == sender and values is not None
        mine = [1, *(values or ())] if says else [0] * (count + 1)
        super().__init__(synchroniser, name, mine, f"{what} of rank {sender}", STEP)

    def wait(self, timeout_s: float) -> list[int] | None:
        """Wait for the sender's integers, or None if it has none.

        Raises ``TimedOut`` after ``timeout_s`` seconds, and ``RuntimeError`` if the sum failed.
        """
        said, *values = self._wait(timeout_s)
        return values if said == 1 else None


class Table(_Exchange):
    """Sends a row of integers of every rank to all ranks; rows are equally long.

    Each rank contributes zeros for the others.
    """

    def __init__(
        self,
        synchroniser: Synchroniser,
        name: str,
        row: Sequence[int],
        what: str,
        call: Call = STEP,
    ) -> None:
        self._columns = len(row)
        mine = [0] * (synchroniser.size * self._columns)
        first = synchroniser.rank * self._columns
        mine[first : first + self._columns] = row
        super().__init__(synchroniser, name, mine, what, call)

    def wait(self, timeout_s: float) -> list[list[int]]:
        """Wait for the rows, in rank order.

        Raises ``TimedOut`` after ``timeout_s`` seconds, and ``RuntimeError`` if the sum failed.
        """
        values = self._wait(timeout_s)
        starts = range(0, len(values), self._columns)
        return [values[start : start + self._columns] for start in starts]


class Collection:
    """Sends one integer of every rank to all ranks: a ``Table`` of one column."""

    def __init__(
        self, synchroniser: Synchroniser, name: str, value: int, what: str, call: Call = STEP
    ) -> None:
        self._table = Table(synchroniser, name, [value], what, call)

    def arrives_within(self, timeout_s: float) -> bool:
        """See ``Table``."""
        return self._table.arrives_within(timeout_s)

    def wait(self, timeout_s: float) -> list[int]:
        """Wait for the integers, in rank order. Raises what ``Table.wait`` does."""
        return [value for (value,) in self._table.wait(timeout_s)]


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
