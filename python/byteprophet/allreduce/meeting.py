"""Messages between ranks during the rendezvous, through a store, until a deadline.

A rank that cannot take part publishes the reason. The others then fail with the same message
instead of waiting.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Protocol

from byteprophet.errors import JobFailed, UserError

LOOK_S = 0.5  # how often a waiting rank checks whether another one has failed
_FIRST_POLL_S = 0.005
_FAILED = "failed"


class Store(Protocol):
    """The methods of torch.distributed's stores that are used here."""

    def set(self, key: str, value: str, /) -> None:
        """Store ``value`` under ``key``."""

    def get(self, key: str, /) -> bytes:
        """The value stored under ``key``."""

    def check(self, keys: list[str], /) -> bool:
        """Whether all ``keys`` are set."""


class Meeting:
    """The messages of all ranks that share ``store``.

    No other code may use keys that begin with ``prefix``. ``timeout_s`` limits all waits together.
    """

    def __init__(self, store: Store, prefix: str, timeout_s: float) -> None:
        self._store = store
        self._prefix = prefix
        self._timeout_s = timeout_s
        self._end_s = time.monotonic() + timeout_s

    @property
    def timeout_s(self) -> float:
        """The limit of all waits together, in seconds."""
        return self._timeout_s

    def left_s(self) -> float:
        """The time left until the deadline, in seconds; never below 0."""
        return max(0.0, self._end_s - time.monotonic())

    def say(self, key: str, value: str) -> None:
        """Publish ``value`` under ``key`` for all ranks."""
        self._store.set(f"{self._prefix}/{key}", value)

    def hear(self, key: str, rank: int) -> bytes:
        """Wait for the value that ``rank`` publishes under ``key``.

        Raises ``JobFailed`` at the deadline, or if another rank has failed.
        """
        poll_s = _FIRST_POLL_S
        while not self._is_said(key, rank):
            self.raise_if_failed(rank)
            if self.left_s() <= 0:
                raise self.not_come([rank])
            time.sleep(min(poll_s, self.left_s()))
            poll_s = min(2 * poll_s, LOOK_S)
        return self._get(key, rank)

    def raise_if_failed(self, awaited: int) -> None:
        """Raises ``JobFailed`` with another rank's message if one has failed.

        ``awaited`` is the rank for which this one waits. It is named if the store fails.
        """
        if self._is_said(_FAILED, awaited):
            raise JobFailed(self._get(_FAILED, awaited).decode(errors="replace"))

    @contextmanager
    def failure_is_said(self) -> Iterator[None]:
        """Within this context, publish errors that end this rank's part."""
        try:
            yield
        except (JobFailed, UserError) as error:
            with suppress(RuntimeError):  # the store itself may have failed
                self.say(_FAILED, str(error))
                time.sleep(2 * LOOK_S)  # the store may end with this rank: let others read it
            raise

    def not_come(self, ranks: Sequence[int]) -> JobFailed:
        """The error to raise at the deadline if ``ranks`` have not arrived."""
        names = ", ".join(str(r) for r in ranks)
        have = "rank {} has" if len(ranks) == 1 else "ranks {} have"
        return JobFailed(
            f"mesh: {have.format(names)} not come within {self._timeout_s:g} s: all ranks must "
            "call DistributedOptimizer() together"
        )

    def _is_said(self, key: str, rank: int) -> bool:
        try:
            return self._store.check([f"{self._prefix}/{key}"])
        except RuntimeError as error:
            raise _store_failed(rank, error) from None

    def _get(self, key: str, rank: int) -> bytes:
        try:
            return bytes(self._store.get(f"{self._prefix}/{key}"))
        except RuntimeError as error:
            raise _store_failed(rank, error) from None


def _store_failed(rank: int, error: RuntimeError) -> JobFailed:
    line = str(error).partition("\n")[0]
    return JobFailed(f"mesh: the store failed while waiting for rank {rank}: {line}")
