"""What one machine's clock tells about another's: causes, their effects, and which of them matter.

An effect is never earlier than its cause. Stamped on two clocks, each pair of events therefore
bounds how far the clocks can be apart. Of a million such bounds a few dozen can be the tightest
for some drift; ``binding`` finds them, so that a linear program of them alone has the same answer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from byteprophet.errors import UserError

Int64s = npt.NDArray[np.int64]

SMALL_BYTES = 4096
"""Messages up to this size are alike: a few packets, whose transfer takes next to no time."""

_LATEST_NS = 2**62
_LONGEST_NS = 2**53


@dataclass(frozen=True)
class Evidence:
    """Events on ``cause_machine`` and, index by index, their effects on ``effect_machine``.

    The effect's true time is at least ``minimum_ns`` after the cause's; stamps may be late, never
    early. ``cause_ns`` and ``effect_ns`` are integers, each on its own machine's clock, whatever
    that clock's origin. ``size_bytes`` is what went over the link (None: messages without payload).
    ``kind`` says what the events are, for messages. ``UserError`` if anything does not fit.
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
                raise UserError(f"{self}: {name}: {first} to {last} is no time of one recording")
        object.__setattr__(self, name, values.astype(np.int64))

    def __str__(self) -> str:
        return f"{self.kind} from {self.cause_machine} to {self.effect_machine}"

    def __len__(self) -> int:
        return int(np.size(self.cause_ns))

    def sizes(self) -> Int64s:
        """Each message's size, 0 for all small ones: what is equal here takes similar time."""
        if self.size_bytes is None:
            return np.zeros(len(self), np.int64)
        return np.where(self.size_bytes <= SMALL_BYTES, 0, self.size_bytes)


def binding(times_ns: Int64s, delays_ns: Int64s, slope_limit: float) -> Int64s:
    """Indices, by time, of the points that are lowest on some slope of at most ``slope_limit``.

    That is, the points where ``delay + slope * time`` can have its minimum, for any slope in
    ``[-slope_limit, slope_limit]``: the lower convex hull, as far as its edges are no steeper. One
    of several equal points is kept. Rounding may cost a millionth of a nanosecond.
    """
    order = np.argsort(times_ns, kind="stable")
    times, delays = times_ns[order], delays_ns[order]
    # Below any point, a wedge with sides of the steepest slope: who has another one in it is out.
    tilt = slope_limit * times
    falling, rising = delays - tilt, delays + tilt
    alone = np.ones(times.size, bool)
    alone[1:] &= falling[1:] < np.minimum.accumulate(falling)[:-1]
    alone[:-1] &= rising[:-1] <= np.minimum.accumulate(rising[::-1])[::-1][1:]
    order = order[alone]
    return order[_lower_hull(times[alone].tolist(), delays[alone].tolist())]


def _lower_hull(times: list[int], delays: list[int]) -> list[int]:
    """Indices of the corners of the lower convex hull of points sorted by time; exact."""
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
