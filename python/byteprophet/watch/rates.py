"""A worker's rates: differences between its status files over the last seconds, and their history.

Sums only grow while somebody watches, and every beginning of that has a number (``watched``). So
two files give a rate only if they have the same number; a file of another process gives none
either.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from byteprophet.watch.live_file import LiveLink, LiveStatus

SPAN_S = 3.0
"""Rates are of so long, and there are none of a worker that has not written for so long."""
_MOST_SAMPLES = 64
_MOST_POINTS = 300


@dataclass(frozen=True)
class LinkRates:
    """Rates of a link to ``server``, in bits per second of payload.

    ``server`` None: the host's interfaces, all bytes of all processes. ``push_busy_bps``,
    ``pull_busy_bps``: only of the time in which anything was in flight; None if nothing was, or it
    is not known.
    """

    server: int | None
    push_bps: int
    pull_bps: int
    push_busy_bps: int | None
    pull_busy_bps: int | None
    in_flight_bytes: int | None


@dataclass(frozen=True)
class Rates:
    """A worker's rates. Times are means per transfer; None without transfers.

    ``wait_share``: of time, how much the training waited for parameters; threads that wait at the
    same time add up. None: nobody tells.
    """

    links: tuple[LinkRates, ...]
    wait_share: float | None
    held_ns: int | None
    travel_ns: int | None
    peers_ns: int | None

    @property
    def push_bps(self) -> int:
        """The sum over all links."""
        return sum(link.push_bps for link in self.links)

    @property
    def pull_bps(self) -> int:
        """The sum over all links."""
        return sum(link.pull_bps for link in self.links)

    @property
    def in_flight_bytes(self) -> int:
        """The sum over all links."""
        return sum(link.in_flight_bytes or 0 for link in self.links)


Point = tuple[float, int, int, int, float | None]
"""Unix time in s, push and pull in bits per second, bytes in flight, share of waits."""


class WorkerRates:
    """The latest status files of one worker."""

    def __init__(self) -> None:
        self._files: deque[LiveStatus] = deque(maxlen=_MOST_SAMPLES)
        self._points: deque[Point] = deque(maxlen=_MOST_POINTS)

    def add(self, status: LiveStatus) -> None:
        """Adds a status file; one that was added before is no news."""
        last = self._files[-1] if self._files else None
        if last is not None:
            if status.monotonic_ns == last.monotonic_ns and status.pid == last.pid:
                return
            if _life(status) != _life(last) or status.monotonic_ns < last.monotonic_ns:
                self._files.clear()
        self._files.append(status)
        found = self.latest()
        if found is not None:
            time_s = round(status.unix_ns / 1e9, 3)
            self._points.append(
                (time_s, found.push_bps, found.pull_bps, found.in_flight_bytes, found.wait_share)
            )

    def latest(self, age_s: float = 0.0) -> Rates | None:
        """The rates over the last seconds; None if they are not known, or the worker has left.

        ``age_s``: since the latest file was seen to be new. A worker that was killed or stopped
        leaves one that says nothing of it.
        """
        if age_s > SPAN_S:
            return None
        if len(self._files) < 2 or not self._files[-1].watching or self._files[-1].ended:
            return None
        new = self._files[-1]
        since_ns = new.monotonic_ns - SPAN_S * 1e9
        recent = [file for file in self._files if file.monotonic_ns >= since_ns]
        old = recent[0] if len(recent) > 1 else self._files[-2]
        span_ns = new.monotonic_ns - old.monotonic_ns
        if not old.watching or span_ns <= 0:
            return None
        return _rates(old, new, span_ns)

    def points(self) -> list[Point]:
        """The history."""
        return list(self._points)


def _life(status: LiveStatus) -> tuple[int, int, str]:
    return status.watched, status.pid, status.machine


def _rates(old: LiveStatus, new: LiveStatus, span_ns: int) -> Rates:
    before = {link.server: link for link in old.links}
    links = [_link(before.get(link.server), link, span_ns) for link in new.links]
    if new.interfaces is not None and old.interfaces is not None:
        sent_bytes = new.interfaces.sent_bytes - old.interfaces.sent_bytes
        received_bytes = new.interfaces.received_bytes - old.interfaces.received_bytes
        if sent_bytes >= 0 and received_bytes >= 0:
            rates_bps = _bps(sent_bytes, span_ns), _bps(received_bytes, span_ns)
            links.append(LinkRates(None, *rates_bps, None, None, None))
    transfers = max(0, new.transfers - old.transfers)

    def mean_ns(new_ns: int, old_ns: int) -> int | None:
        return max(0, new_ns - old_ns) // transfers if transfers else None

    return Rates(
        links=tuple(links),
        wait_share=_share(old.wait_ns, new.wait_ns, span_ns),
        held_ns=mean_ns(new.held_ns, old.held_ns),
        travel_ns=mean_ns(new.travel_ns, old.travel_ns),
        peers_ns=mean_ns(new.peers_ns, old.peers_ns),
    )


def _link(old: LiveLink | None, new: LiveLink, span_ns: int) -> LinkRates:
    push_bytes = new.push_bytes - (old.push_bytes if old else 0)
    pull_bytes = new.pull_bytes - (old.pull_bytes if old else 0)
    push_busy_ns = new.push_busy_ns - (old.push_busy_ns if old else 0)
    pull_busy_ns = new.pull_busy_ns - (old.pull_busy_ns if old else 0)
    return LinkRates(
        server=new.server,
        push_bps=_bps(push_bytes, span_ns),
        pull_bps=_bps(pull_bytes, span_ns),
        push_busy_bps=_bps(push_bytes, push_busy_ns) if push_busy_ns > 0 else None,
        pull_busy_bps=_bps(pull_bytes, pull_busy_ns) if pull_busy_ns > 0 else None,
        in_flight_bytes=new.in_flight_bytes,
    )


def _share(old_ns: int | None, new_ns: int | None, span_ns: int) -> float | None:
    if old_ns is None or new_ns is None:
        return None
    return round(max(0, new_ns - old_ns) / span_ns, 4)


def _bps(size_bytes: int, span_ns: int) -> int:
    return max(0, size_bytes * 8_000_000_000 // span_ns)
