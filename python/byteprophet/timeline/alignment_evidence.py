"""Evidence about the clocks of two machines: causes on one machine and their effects on the other.

An effect is never earlier than its cause. So each pair of events, stamped on two clocks, bounds the
difference of the clocks. Only a few dozen of a million such bounds can be the tightest for some
drift. ``binding`` finds them; a linear program with only these has the same solution.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from byteprophet.errors import UserError

Int64s = npt.NDArray[np.int64]

SMALL_BYTES = 4096
"""Messages up to this size count as equal: they are a few packets and take almost no time."""

_LATEST_NS = 2**62
_LONGEST_NS = 2**53


@dataclass(frozen=True)
class Evidence:
    """Events on ``cause_machine`` and, index by index, their effects on ``effect_machine``.

    The effect's true time is at least ``minimum_ns`` after the cause's; effects may be stamped
    late, but never early. ``cause_ns`` and ``effect_ns`` are integers on the clocks of their
    machines, which may have any origin. ``size_bytes`` is what went over the link (None: messages
    without payload). ``kind`` names the events in error messages. Raises ``UserError`` for invalid
    values.
    """

    cause_machine: str
    effect_machine: str
    kind: str
    cause_ns: Int64s
    effect_ns: Int64s
    size_bytes: Int64s | None = None
    minimum_ns: int = 0

    def __post_init__(self) -> None:
        self._take("cause_ns", np.asarray(self.cause_ns))
        self._take("effect_ns", np.asarray(self.effect_ns))
        if self.size_bytes is not None:
            self._take("size_bytes", np.asarray(self.size_bytes))
            if np.any(self.size_bytes < 0):
                raise UserError(f"{self}: size_bytes: must not be negative")
        if self.minimum_ns < 0:
            raise UserError(f"{self}: minimum_ns {self.minimum_ns}: must not be negative")

    def _take(self, name: str, values: npt.NDArray[np.generic]) -> None:
        if values.ndim != 1 or not (np.issubdtype(values.dtype, np.integer) or values.size == 0):
            raise UserError(f"{self}: {name}: must be a row of integers")
        if values.size != np.size(self.cause_ns):
            raise UserError(f"{self}: {name}: has {values.size} values, cause_ns {len(self)}")
        if values.size:
            first, last = int(values.min()), int(values.max())
            if -first > _LATEST_NS or last > _LATEST_NS or last - first > _LONGEST_NS:
                raise UserError(f"{self}: {name}: {first} to {last} is not within one recording")
        object.__setattr__(self, name, values.astype(np.int64))

    def __str__(self) -> str:
        return f"{self.kind} from {self.cause_machine} to {self.effect_machine}"

    def __len__(self) -> int:
        return int(np.size(self.cause_ns))

    def sizes(self) -> Int64s:
        """Each message's size, 0 for small ones. Messages of equal size take similar time."""
        if self.size_bytes is None:
            return np.zeros(len(self), np.int64)
        return np.where(self.size_bytes <= SMALL_BYTES, 0, self.size_bytes)


def binding(times_ns: Int64s, delays_ns: Int64s, slope_limit: float) -> Int64s:
    """Indices, in order of time, of the points that can minimise ``delay + slope * time``.

    ``slope`` is any value in ``[-slope_limit, slope_limit]``. These points are the part of the
    lower convex hull whose edges are no steeper than that. Only one of several equal points is
    kept. The rounding error is about a millionth of a nanosecond.
    """
    order = np.argsort(times_ns, kind="stable")
    times, delays = times_ns[order], delays_ns[order]
    # Below each point is a wedge whose sides have the steepest slope. A point is dropped if another
    # point is inside its wedge.
    tilt = slope_limit * times
    falling, rising = delays - tilt, delays + tilt
    alone = np.ones(times.size, bool)
    alone[1:] &= falling[1:] < np.minimum.accumulate(falling)[:-1]
    alone[:-1] &= rising[:-1] <= np.minimum.accumulate(rising[::-1])[::-1][1:]
    order = order[alone]
    return order[_lower_hull(times[alone].tolist(), delays[alone].tolist())]


def _lower_hull(times: list[int], delays: list[int]) -> list[int]:
    """Indices of the lower convex hull's corners, exactly. The points are sorted by time."""
    hull: list[int] = []
    for i in range(len(times)):
        while len(hull) > 1:
            a, b = hull[-2], hull[-1]
            to_last = (times[b] - times[a]) * (delays[i] - delays[a])
            if to_last > (delays[b] - delays[a]) * (times[i] - times[a]):
                break
            hull.pop()
        hull.append(i)
    return hull
