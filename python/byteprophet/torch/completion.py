"""Waiting for one call of a synchroniser: the ``done`` that is handed to it."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Completion:
    """Called when it is over; ``what`` it was, for messages."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._over = threading.Event()
        self._error: BaseException | None = None

    def __call__(self, error: BaseException | None) -> None:
        """Tell whoever waits."""
        self._error = error
        self._over.set()

    def arrives_within(self, timeout_s: float) -> bool:
        """Whether it is over, well or not, after at most ``timeout_s``."""
        return self._over.wait(timeout_s)

    def wait(self, timeout_s: float, awaited: Callable[[], str]) -> None:
        """``RuntimeError`` if it failed, or is late: ``awaited`` says who may be to blame."""
        if not self.arrives_within(timeout_s):
            raise RuntimeError(
                f"byteprophet: waited {timeout_s:g} s for the {self._what}; {awaited()} "
                "(BYTEPROPHET_TIMEOUT_S sets the limit)"
            )
        if self._error is not None:
            raise RuntimeError(
                f"byteprophet: the {self._what} could not be exchanged: {self._error}"
            ) from self._error
