"""Messages of an optimizer: integers, other than gradients, that are summed over all ranks.

Threads: any thread may call ``send``. ``deferring`` runs in the training thread. ``_lock`` guards
the list.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from byteprophet.torch.sync.operations import Operations, Submission


class Messages:
    """Sends or defers the messages of one optimizer.

    ``in_order`` says whether operations begin in the order of rank 0's requests.
    """

    def __init__(self, operations: Operations, in_order: bool) -> None:
        self._operations = operations
        self._in_order = in_order
        self._lock = threading.Lock()
        self._defers = False
        self._deferred: list[tuple[str, Submission]] = []  # until the next iteration begins

    def send(self, name: str, message: Submission) -> None:
        """Sum the message now, before all other operations, or when the next iteration begins."""
        with self._lock:
            if self._defers:
                self._deferred.append((name, message))
            else:
                self._operations.sum_message(name, message)

    def send_deferred(self) -> None:
        """Sum the deferred messages."""
        with self._lock:
            deferred, self._deferred = self._deferred, []
            for name, message in deferred:
                self._operations.sum_message(name, message)

    @contextmanager
    def deferring(self) -> Iterator[None]:
        """Within this context, defer messages to the next iteration if ``in_order`` is True.

        This avoids a deadlock. If rank 0 requested a message now, it would begin before the
        operations of outstanding updates. But another rank may wait for these updates before it
        requests the same message.
        """
        self.send_deferred()  # in case no iteration has begun since the last time
        self._defers = self._in_order
        try:
            yield
        finally:
            self._defers = False
