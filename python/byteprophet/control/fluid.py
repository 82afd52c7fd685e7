"""Strict priority on one link in the fluid limit: what is on the wire when, and when each is done.

The most urgent ready tensor has the link, always, and gives it up the moment a more urgent one is
ready. Pure functions. Times are nanoseconds on one clock of the caller's choice.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Segment:
    """Tensor ``tensor`` (its position in forward order) has the link from start to end."""

    starts_ns: float
    ends_ns: float
    tensor: int


def strict_priority(ready_ns: Sequence[float], needs_ns: Sequence[float]) -> list[Segment]:
    """The segments in order of time; ``needs_ns`` is how long each tensor has to have the link.

    Position 0 is the most urgent. Two neighbours of one tensor are one segment. O(n log n).
    """
    left_ns = list(needs_ns)
    releases = sorted(range(len(left_ns)), key=lambda tensor: (ready_ns[tensor], tensor))
    waiting: list[int] = []
    segments: list[Segment] = []
    now_ns = 0.0
    fresh = 0  # the next release
    while fresh < len(releases) or waiting:
        if not waiting:
            now_ns = max(now_ns, ready_ns[releases[fresh]])
        while fresh < len(releases) and ready_ns[releases[fresh]] <= now_ns:
            heapq.heappush(waiting, releases[fresh])
            fresh += 1
        head = waiting[0]
        ends_ns = now_ns + left_ns[head]
        if fresh < len(releases) and ready_ns[releases[fresh]] < ends_ns:
            ends_ns = ready_ns[releases[fresh]]
            left_ns[head] -= ends_ns - now_ns
        else:
            heapq.heappop(waiting)
        if segments and segments[-1].tensor == head and segments[-1].ends_ns == now_ns:
            segments[-1] = Segment(segments[-1].starts_ns, ends_ns, head)
        else:
            segments.append(Segment(now_ns, ends_ns, head))
        now_ns = ends_ns
    return segments
