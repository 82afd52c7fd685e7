"""What a host's cores needed for an iteration of late: the usual need, and how much it varies.

The need is a few per cent wide even under a steady load. A threshold that lies within that width is
crossed again and again, and each crossing would change the order (``arrival_order.py``). So a need
on the other side says that the load has changed only if it is not as usual, or if the usual need is
on the other side, too:

    unusual   at least ``_UNUSUAL`` times the spread from the usual need
    usual     the median since the order changed last, of up to ``_KEPT`` needs
    spread    the median distance from it, as a standard deviation (1.4826 of a normal distribution)

Both are medians, so that a change of the load that is as old as it must be to count does not hide
itself. Until ``_ENOUGH`` needs are known, the spread from before the change of the order also
counts: the first needs may be more alike than later ones.

Needs are noted once in ``_PERIOD_NS`` at most. No clock: callers pass times.
"""

from __future__ import annotations

import statistics
from collections import deque

_PERIOD_NS = 1_000_000_000
_KEPT = 240
_FEWEST, _ENOUGH = 20, 60
_UNUSUAL = 3.0
_OF_NORMAL = 1.4826


class HostNeed:
    """The needs since the order changed last, in ns."""

    def __init__(self) -> None:
        self._needs_ns: deque[int] = deque(maxlen=_KEPT)
        self._noted_ns: int | None = None
        self._spread_before_ns = 0.0

    def note(self, need_ns: int, now_ns: int) -> None:
        """Notes what the cores need now."""
        if self._noted_ns is None or now_ns - self._noted_ns >= _PERIOD_NS:
            self._noted_ns = now_ns
            self._needs_ns.append(need_ns)

    def order_changed(self) -> None:
        """The order has changed: another need may be usual from here on."""
        self._spread_before_ns = self._spread_ns
        self._needs_ns.clear()

    def is_unusual(self, need_ns: int) -> bool:
        """Whether ``need_ns`` differs from the usual need by more than that varies."""
        if not self._needs_ns:
            return True
        return abs(need_ns - self._usual_ns) >= _UNUSUAL * self._spread_ns

    @property
    def settled_ns(self) -> int | None:
        """The usual need; None until enough is known."""
        return int(self._usual_ns) if len(self._needs_ns) >= _ENOUGH else None

    @property
    def _usual_ns(self) -> float:
        return statistics.median(self._needs_ns)

    @property
    def _spread_ns(self) -> float:
        if len(self._needs_ns) < _FEWEST:
            return self._spread_before_ns
        usual_ns = self._usual_ns
        found_ns = _OF_NORMAL * statistics.median(abs(need - usual_ns) for need in self._needs_ns)
        if len(self._needs_ns) >= _ENOUGH:
            return found_ns
        return max(found_ns, self._spread_before_ns)
