"""Strict priority on links in the fluid limit: what is sent when, and when each item is done.

The most urgent ready item always has the link, and gives it up as soon as a more urgent one is
ready. On several links at once, an item needs time on each, in any order or at the same time, and
is done when it is through on all. Exact for integers. Times are on one clock of the caller's
choice, from 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from typing import TypeVar

Time = TypeVar("Time", int, float)

Segment = tuple[Time, Time, int, bool]
"""When an item gets the link and gives it up, the item, and whether it is through then."""


def strict_priority(
    to_come: list[tuple[Time, int]], needs_ns: Sequence[Time]
) -> Iterator[Segment[Time]]:
    """The segments in order of time; two neighbours of one item are one segment.

    An item is its urgency: 0 is the most urgent. ``to_come``: when each item is ready, and the
    item; it is sorted, the latest first, and used up. Whoever takes the segments may add more to
    it, in this order, ready no earlier than the last segment ended. ``needs_ns``: how long each
    item has to have the link. O(n log n).
    """
    to_come.sort(reverse=True)
    left_ns = list(needs_ns)
    ready: list[int] = []
    now_ns: Time = 0
    while ready or to_come:
        if not ready:
            now_ns = max(now_ns, to_come[-1][0])
        while to_come and to_come[-1][0] <= now_ns:
            heappush(ready, to_come.pop()[1])
        item, since_ns = ready[0], now_ns
        while ready[0] == item and to_come and to_come[-1][0] < now_ns + left_ns[item]:
            left_ns[item] -= to_come[-1][0] - now_ns
            now_ns = to_come[-1][0]
            while to_come and to_come[-1][0] <= now_ns:
                heappush(ready, to_come.pop()[1])
        done = ready[0] == item
        if done:
            heappop(ready)
            now_ns += left_ns[item]
        yield since_ns, now_ns, item, done


def strict_priority_together(
    to_come: list[tuple[Time, int]], needs_ns: Sequence[Sequence[Time]]
) -> Iterator[Segment[Time]]:
    """The items in order of their ends, on several links.

    Each has one segment, from when it first has a link. ``to_come`` is that of
    ``strict_priority``. ``needs_ns``: how long each item has to have each link. O(links n log n).
    """
    to_come.sort(reverse=True)
    left_ns = [list(needs) for needs in needs_ns]
    open_links = [sum(need > 0 for need in needs) for needs in needs_ns]
    ready: list[list[int]] = [[] for _ in left_ns[0]]
    since_ns: dict[int, Time] = {}
    now_ns: Time = 0
    while True:
        while to_come and to_come[-1][0] <= now_ns:
            item = to_come.pop()[1]
            if not open_links[item]:
                yield now_ns, now_ns, item, True
            for link, need_ns in enumerate(left_ns[item]):
                if need_ns:
                    heappush(ready[link], item)
        served = [(link, items[0]) for link, items in enumerate(ready) if items]
        if not served and not to_come:
            return
        until_ns = [now_ns + left_ns[item][link] for link, item in served]
        until_ns += [to_come[-1][0]] if to_come else []
        next_ns, done = min(until_ns), []
        for link, item in served:
            since_ns.setdefault(item, now_ns)
            left_ns[item][link] -= next_ns - now_ns
            if not left_ns[item][link]:
                heappop(ready[link])
                open_links[item] -= 1
                if not open_links[item]:
                    done.append(item)
        now_ns = next_ns
        for item in done:
            yield since_ns[item], now_ns, item, True
