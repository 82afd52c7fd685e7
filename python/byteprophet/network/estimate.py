"""Bandwidth, message cost and delay of one direction of a path, from the times of its messages.

Pure: no clock, no thread; ``add`` takes what was observed, ``estimate`` answers.

*Busy time.* Messages finish in order. While something is under way, a message takes the link's time
from the finish of the one before it, or from one path delay after it was sent, whichever is later,
to its own finish. So idle time is left out, and the pauses of a sender whose window is too small
for the path. A message that was sent when nothing was under way does not count.

*Samples* are stretches of 25 ms of busy time, or 4 MiB if they come earlier, but never less than
6 ms, which late acknowledgements would spoil; the estimate is their median over the last second of
busy time, and none of fewer than eight samples. A stall (a process that was not scheduled) and the
bunch of acknowledgements after it are two samples, which a median does not follow. A link that
changed is: when the samples of the last 400 ms, six or more, all lie on one side of those before,
what was before is forgotten.

*What it cannot see*: acknowledgements that are late at one end of a busy stretch only, because a
receiver had to wake up at its start, or because they wait behind answers in the other direction at
its end. Over stretches of a few milliseconds that is 20% or more, up or down; over 50 ms, nothing.
And how long the link idled while a window that was too small for acknowledgements of varying delay
had nothing to send: what is found then is what the window gets (where the delay varies by half of
what the window takes the link, some 5% too little; by three quarters, 20%).

*Message cost* and *delay*: see message_cost.py. The delay is what a message takes that is sent when
nothing else is under way, beyond its cost and its bytes. Where the cost is known, bandwidth is what
bytes alone would get; where sizes do not differ it is what these messages get, cost included.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

import numpy as np
import numpy.typing as npt

from byteprophet.network.message_cost import SMALL, Floats, fit_line, message_cost_ns, spread

Integers = npt.NDArray[np.int64]
Booleans = npt.NDArray[np.bool_]

SAMPLE_NS = 25_000_000
SAMPLE_BYTES = 4 << 20
WINDOW_NS = 1_000_000_000
FEWEST_SAMPLES = 8
CHANGE_SAMPLES = 6
CHANGE_NS = 400_000_000
CHANGE = 0.15
_SAMPLE_MESSAGES = 2
_LEAST_NS = 6_000_000
_MOST_GAPS = 2000  # that message cost is found from
_MOST_LONE = 256  # messages on an idle link, that delay is found from
_FEWEST_LONE = 5
_FASTEST_NS_PER_BYTE = 1e-3  # 8 Tbit/s


@dataclass(frozen=True)
class Estimate:
    """What is known of a direction; None: not known. All of payload, nothing of headers.

    ``spread_bps`` is the standard deviation of 25 ms samples (robust). ``busy_ns`` and ``bytes``
    are totals: time in which the link was seen to work, and all bytes of all messages.
    """

    bandwidth_bps: int | None
    spread_bps: int | None
    busy_ns: int
    bytes: int
    message_cost_ns: int | None
    delay_ns: int | None


class DirectionEstimate:
    """One direction. ``quantile``: which of the samples is the estimate.

    ``one_path`` False: messages go to several servers at once, so that the time between two is not
    that of one of them; message cost is then not looked for.
    """

    def __init__(self, quantile: float = 0.5, *, one_path: bool = True) -> None:
        self._quantile = quantile
        self._one_path = one_path
        self._last_ns: int | None = None  # when the last message finished
        # Rows of samples, the last of which is not complete: bytes, busy time and messages; bytes
        # and time of those messages that followed the one before at once.
        self._samples: Floats = np.zeros((1, 5))
        self._gaps: Floats = np.zeros((0, 2))  # size, time: of messages on a busy link
        self._lone: Floats = np.zeros((0, 2))  # size, duration: of messages on an idle link
        self._cost_ns: float | None = None  # of a message, when it was last looked at
        self._busy_ns = 0
        self._bytes = 0

    def add(self, sent_ns: Integers, finished_ns: Integers, sizes: Integers) -> None:
        """Takes messages in, in order of ``finished_ns``; one that is older than before is late.

        Late ones count as bytes only.
        """
        self._bytes += int(sizes.sum())
        if self._last_ns is None and len(finished_ns):
            self._last_ns = int(finished_ns[0])
            sent_ns, finished_ns, sizes = sent_ns[1:], finished_ns[1:], sizes[1:]
        if self._last_ns is None:
            return
        in_time = finished_ns >= self._last_ns
        sent_ns, finished_ns, sizes = sent_ns[in_time], finished_ns[in_time], sizes[in_time]
        if not len(finished_ns):
            return
        before_ns = np.concatenate(([self._last_ns], finished_ns[:-1]))
        self._last_ns = int(finished_ns[-1])
        # Of this and all later ones, the one that was sent first.
        waiting_ns = np.minimum.accumulate(sent_ns[::-1])[::-1]
        lone = waiting_ns >= before_ns
        durations_ns = (finished_ns - sent_ns)[lone]
        self._lone = _appended(self._lone, sizes[lone], durations_ns, _MOST_LONE)
        # Of a message on its way that is the first, the link works one delay after it was sent.
        begin_ns = np.maximum(before_ns, waiting_ns + self._shortest_delay_ns())
        follows = ~lone & (begin_ns == before_ns)
        gaps_ns = finished_ns - before_ns
        self._gaps = _appended(self._gaps, sizes[follows], gaps_ns[follows], _MOST_GAPS)
        spans_ns = np.maximum(0, finished_ns - begin_ns)[~lone]
        self._busy_ns += int(spans_ns.sum())
        self._sample(sizes[~lone], spans_ns, follows[~lone])

    @property
    def busy_ns(self) -> int:
        """Time in which the link was seen to work, so far."""
        return self._busy_ns

    @property
    def last_ns(self) -> int | None:
        """When the last message finished."""
        return self._last_ns

    def bandwidth_bps(self) -> int | None:
        """``estimate``'s, for a fraction of its work: with the message cost of its last call."""
        return _bps(self._bytes_per_ns(self._rates()))

    def estimate(self) -> Estimate:
        """What is known now. Takes some milliseconds."""
        if self._one_path:
            self._cost_ns = message_cost_ns(self._gaps[:, 0], self._gaps[:, 1])
        rates = self._rates()
        bytes_per_ns = self._bytes_per_ns(rates)
        return Estimate(
            bandwidth_bps=_bps(bytes_per_ns),
            spread_bps=_bps(spread(rates)) if len(rates) >= FEWEST_SAMPLES else None,
            busy_ns=self._busy_ns,
            bytes=self._bytes,
            message_cost_ns=None if self._cost_ns is None else round(self._cost_ns),
            delay_ns=self._delay_ns(bytes_per_ns),
        )

    def _bytes_per_ns(self, rates: Floats) -> float | None:
        if len(rates) >= FEWEST_SAMPLES:
            return float(np.quantile(rates, self._quantile))
        if len(rates) or len(self._lone) < 2 * _FEWEST_LONE:
            return None
        # One message at a time: never busy, but durations grow with sizes. Where they do not, they
        # are of something else.
        slope = fit_line(self._lone[:, 0], self._lone[:, 1])
        return 1 / slope if slope is not None and slope > _FASTEST_NS_PER_BYTE else None

    def _rates(self) -> Floats:
        """Of the complete samples, in bytes per nanosecond."""
        sample_bytes, busy_ns, messages = self._samples[:-1, :3].T
        cost_ns = self._cost_ns or 0.0
        return np.asarray(sample_bytes / np.maximum(busy_ns - cost_ns * messages, busy_ns / 2))

    def _delay_ns(self, bytes_per_ns: float | None) -> int | None:
        if bytes_per_ns is None or len(self._lone) < _FEWEST_LONE:
            return None
        rest_ns = self._lone[:, 1] - self._lone[:, 0] / bytes_per_ns - (self._cost_ns or 0.0)
        return max(0, round(float(np.median(rest_ns))))

    def _shortest_delay_ns(self) -> int:
        """What a message on an idle link takes beyond its bytes, at its best; 0 if not known.

        From small messages if there are any: theirs does not depend on the bandwidth. The bytes of
        others go at the pace of messages that followed one another: with a window too small for the
        path most wait for it, and theirs agrees with any delay that is too short.
        """
        if not len(self._lone):
            return 0
        small = self._lone[:, 0] <= SMALL * float(self._lone[:, 0].max())
        lone = self._lone[small] if small.sum() >= _FEWEST_LONE else self._lone
        sample_bytes, busy_ns = self._samples[:-1, 3:].T
        rates = sample_bytes[busy_ns > 0] / busy_ns[busy_ns > 0]
        pace = 1 / float(np.quantile(rates, 0.75)) if len(rates) else np.inf
        delays_ns = lone[:, 1] - pace * lone[:, 0]
        return max(0, round(float(np.quantile(delays_ns, 0.1)))) if np.isfinite(pace) else 0

    def _sample(self, sizes: Integers, spans_ns: Integers, follows: Booleans) -> None:
        """Adds busy stretches to the samples, closing each that is long enough."""
        rows = (sizes, spans_ns, np.ones_like(sizes), sizes * follows, spans_ns * follows)
        until = np.zeros((1 + len(sizes), len(rows)))
        np.cumsum(np.column_stack(rows), axis=0, out=until[1:])
        bytes_until, ns_until = until[:, 0], until[:, 1]
        start = 0
        while start < len(sizes):
            has_bytes, has_ns, has_messages, _, _ = self._samples[-1]
            by_time = np.searchsorted(ns_until, ns_until[start] + SAMPLE_NS - has_ns)
            by_size = np.searchsorted(bytes_until, bytes_until[start] + SAMPLE_BYTES - has_bytes)
            by_size = max(by_size, np.searchsorted(ns_until, ns_until[start] + _LEAST_NS - has_ns))
            fewest = max(start + 1, start + _SAMPLE_MESSAGES - int(has_messages))
            stop = max(fewest, int(min(by_time, by_size)))
            closes = stop <= len(sizes)
            stop = min(stop, len(sizes))
            self._samples[-1] += until[stop] - until[start]
            start = stop
            if closes:
                self._samples = np.vstack((self._samples, np.zeros((1, len(rows)))))
                self._forget()

    def _forget(self) -> None:
        """Drops samples that are too old, or of another link than the latest."""
        done = self._samples[:-1]
        newer_ns = np.cumsum(done[::-1, 1])[::-1] - done[:, 1]  # busy time after each
        age = np.arange(len(done))[::-1]
        keep = (newer_ns < WINDOW_NS) | (age < FEWEST_SAMPLES)
        latest = max(CHANGE_SAMPLES, 1 + int((newer_ns < CHANGE_NS).sum()))
        if _changed(done[:, 0] / done[:, 1], latest):
            keep = age < latest
            messages = int(done[keep, 2].sum())
            self._gaps = self._gaps[-messages:]
            self._lone = self._lone[-_FEWEST_LONE:]
            self._cost_ns = None
        self._samples = self._samples[np.concatenate((keep, [True]))]


def _changed(rates: Floats, count: int) -> bool:
    """Whether the last ``count`` are of another link than all before."""
    before, latest = rates[:-count], rates[-count:]
    if len(before) < CHANGE_SAMPLES:
        return False
    # Every sample asks: for so few, np.median takes several times as long, and spread more still.
    middle: float = median(before.tolist())
    beyond = max(float(latest.min()) - middle, middle - float(latest.max()))
    return beyond > CHANGE * middle and beyond > 2 * spread(before)


def _appended(rows: Floats, sizes: Integers, times_ns: Integers, most: int) -> Floats:
    added = np.column_stack((sizes, times_ns)).astype(np.float64)
    return np.concatenate((rows, added))[-most:]


def _bps(bytes_per_ns: float | None) -> int | None:
    return None if bytes_per_ns is None else round(bytes_per_ns * 8e9)
