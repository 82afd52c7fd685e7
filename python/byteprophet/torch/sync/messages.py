"""Messages of an optimizer: integers, other than gradients, that are summed over all ranks.

Threads: any thread may call ``send``. ``deferring`` runs in the training thread. ``_lock`` guards
the list.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from byteprophet.torch.sync.exchange import Exchange
from byteprophet.torch.sync.operations import Operations, Submission
from byteprophet.torch.sync.outstanding import finish_updates


class Messages:
    """Sends or defers the messages of one optimizer, whose ``operations`` are on ``exchange``."""

    def __init__(self, operations: Operations, exchange: Exchange) -> None:
        self._operations = operations
        self._exchange = exchange
        self._lock = threading.Lock()
        self._defers = False
        self._deferred: list[tuple[str, Submission]] = []  # until the next iteration begins

    def send(self, name: str, message: Submission) -> None:
        """Sum the message now, before all other operations, or when the next iteration begins."""
        if not self._defers:
            finish_updates(self._exchange, averages=True)
        with self._lock:
            if self._defers:
                self._deferred.append((name, message))
            else:
                self._operations.sum_message(name, message)

    def send_deferred(self) -> None:
        """Sum the deferred messages. No update may be outstanding if ``in_order`` is True."""
        with self._lock:
            deferred, self._deferred = self._deferred, []
            for name, message in deferred:
                self._operations.sum_message(name, message)

    @contextmanager
    def deferring(self) -> Iterator[None]:
        """Within this context, defer messages to the next iteration if ``in_order`` is True.

        So they need not wait for the updates that are outstanding (``outstanding.py``).
        """
        if self._deferred:  # no iteration has begun since the last time
            finish_updates(self._exchange, averages=True)
            self.send_deferred()
        self._defers = self._exchange.in_order
        try:
            yield
        finally:
            self._defers = False
