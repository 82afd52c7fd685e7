"""Passes the lines of roles on to their receiver (``Echo``), which may block.

The receiver writes, for example, to a pipe that nobody reads. A write cannot be given a time limit,
so a thread of its own calls the receiver, and the supervisor's thread can always go on.

Threads: the supervisor's calls every method, and the receiver's is ``_pass_on``. ``_changed`` is
the one lock; it guards all fields, and is not held while the receiver is called. The thread begins
with the first line, ends after ``close``, and is a daemon: if it still waits for its receiver then,
it does not keep this process from its end.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from typing import final

from byteprophet.launcher.spec import Echo

_ROOM_LINES = 1000


@final
class Shown:
    """The lines that ``echo`` is still to get, in their order. None: nobody gets them."""

    def __init__(self, echo: Echo | None) -> None:
        self._echo = echo
        self._changed = threading.Condition()
        self._waiting: deque[tuple[str, str]] = deque()
        self._is_calling = False
        self._is_over = False
        self._has_dropped = False
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    def put(self, name: str, lines: Iterable[str], may_drop: bool = False) -> None:
        """Has the receiver get ``lines`` of the role ``name``. Never waits for it.

        ``may_drop``: leaves ``lines`` out if too many are waiting already.
        """
        with self._changed:
            if self._echo is None or self._is_over:
                return
            if may_drop and len(self._waiting) >= _ROOM_LINES:
                self._has_dropped = True
                return
            self._waiting.extend((name, line) for line in lines)
            if self._waiting and self._thread is None:
                self._thread = threading.Thread(target=self._pass_on, name="shown", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def has_room(self, timeout_s: float) -> bool:
        """Whether lines may be put, once they may, or after ``timeout_s``.

        While they may not, roles should wait: then a slow receiver slows them down, as without us.
        """
        with self._changed:
            return self._changed.wait_for(lambda: len(self._waiting) < _ROOM_LINES, timeout_s)

    def check(self) -> None:
        """Raises what the receiver has raised, once. It is not called again."""
        with self._changed:
            error, self._error = self._error, None
        if error is not None:
            raise error

    def is_done(self, timeout_s: float) -> bool:
        """Whether the receiver has got all lines, once it has, or after ``timeout_s``."""
        with self._changed:
            return self._changed.wait_for(
                lambda: not self._waiting and not self._is_calling, timeout_s
            )

    def close(self) -> bool:
        """The receiver gets no more lines. Returns whether it has missed some."""
        with self._changed:
            has_missed = self._has_dropped or bool(self._waiting) or self._is_calling
            self._end()
            return has_missed

    def _end(self) -> None:
        self._is_over = True
        self._waiting.clear()
        self._changed.notify_all()

    def _pass_on(self) -> None:
        assert self._echo is not None
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_over)
                if self._is_over:
                    return
                name, line = self._waiting.popleft()
                self._is_calling = True
            error: BaseException | None = None
            try:
                self._echo(name, line)
            except BaseException as raised:  # noqa: BLE001 - the supervisor's thread raises it
                error = raised
            with self._changed:
                self._is_calling = False
                if error is not None:
                    self._error = error
                    self._end()
                self._changed.notify_all()
