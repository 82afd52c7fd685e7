"""Bandwidth, message cost and delay of one direction of a path, from the times of its messages.

The computation uses no clock and no thread: ``add`` takes observed messages, ``estimate`` returns
the result.

*Busy time.* Messages finish in order. While messages are in flight, each one uses the link until it
finishes. It begins to use the link when the previous message finishes or one path delay after it
was sent, whichever is later. So busy time excludes idle time, and the pauses of a sender whose
window is too small for the path. A message that was sent while nothing was in flight does not
count.

*Samples.* A sample is a stretch of 25 ms of busy time, or less if 4 MiB finish earlier. It has at
least 6 ms, because late acknowledgements would distort shorter ones. The estimate is the median of
the samples of the last second of busy time; at least eight samples are needed. A stall (a process
that was not scheduled) and the burst of acknowledgements after it make two samples, which hardly
move a median. A change of the link is noticed if the samples of the last 400 ms, at least six, all
lie clearly on one side of the earlier ones. The earlier samples are then forgotten.

*Errors.* Two effects cannot be seen. First, acknowledgements may be late at only one end of a busy
stretch: at its start because a receiver had to wake up, or at its end because they wait behind
answers in the other direction. The error is 20% or more, up or down, for stretches of a few
milliseconds, and nothing for 50 ms. Second, if acknowledgements have varying delays, a window may
be too small for them, and the link idles for an unknown time. The estimate is then the bandwidth
that the window allows. It is about 5% too low if the delay varies by half of the time that the
window occupies the link, and 20% too low if it varies by three quarters of that time.

*Message cost and delay.* For the cost, see message_cost.py. The delay is the time of a message that
is sent while nothing else is in flight, minus the times for its cost and its bytes. If the cost is
known, the bandwidth is that of the bytes alone. If sizes do not differ, the cost is not known, and
the bandwidth includes it.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from byteprophet.monitor.message_cost import SMALL, Floats, fit_line, message_cost_ns, spread
from byteprophet.order_statistics import median, quantile

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
_MOST_GAPS = 2000  # from which the message cost is computed
_MOST_LONE = 256  # messages on an idle link, from which the delay is computed
_FEWEST_LONE = 5
_FASTEST_NS_PER_BYTE = 1e-3  # 8 Tbit/s


@dataclass(frozen=True)
class Estimate:
    """The estimate for one direction. None: not known. Bytes are payload, without headers.

    ``spread_bps`` is a robust standard deviation of 25 ms samples. ``busy_ns`` and ``bytes`` are
    totals: the busy time of the link, and the bytes of all messages.
    """

    bandwidth_bps: int | None
    spread_bps: int | None
    busy_ns: int
    bytes: int
    message_cost_ns: int | None
    delay_ns: int | None


class DirectionEstimate:
    """Collects the messages of one direction. ``quantile``: the samples' quantile to return.

    ``one_path`` False: messages go to several servers at once. The time between two messages is
    then not the time of one message, so no message cost is computed.
    """

    def __init__(self, quantile: float = 0.5, *, one_path: bool = True) -> None:
        self._quantile = quantile
        self._one_path = one_path
        self._last_ns: int | None = None  # when the last message finished
        # One row per sample; the last one is not complete. Columns: bytes, busy time and number of
        # messages; bytes and time of those messages that followed the previous one immediately.
        self._samples: Floats = np.zeros((1, 5))
        self._gaps: Floats = np.zeros((0, 2))  # size, time: of messages on a busy link
        self._lone: Floats = np.zeros((0, 2))  # size, duration: of messages on an idle link
        self._cost_ns: float | None = None  # message cost as of the last ``estimate``
        self._busy_ns = 0
        self._bytes = 0

    def add(self, sent_ns: Integers, finished_ns: Integers, sizes: Integers) -> None:
        """Adds messages in order of ``finished_ns``.

        A message that finished before an earlier call's last one is late; only its bytes count.
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
        # The earliest send time of this message and all later ones.
        waiting_ns = np.minimum.accumulate(sent_ns[::-1])[::-1]
        lone = waiting_ns >= before_ns
        durations_ns = (finished_ns - sent_ns)[lone]
        self._lone = _appended(self._lone, sizes[lone], durations_ns, _MOST_LONE)
        # The link starts to work one path delay after the first waiting message was sent.
        begin_ns = np.maximum(before_ns, waiting_ns + self._shortest_delay_ns())
        follows = ~lone & (begin_ns == before_ns)
        gaps_ns = finished_ns - before_ns
        self._gaps = _appended(self._gaps, sizes[follows], gaps_ns[follows], _MOST_GAPS)
        spans_ns = np.maximum(0, finished_ns - begin_ns)[~lone]
        self._busy_ns += int(spans_ns.sum())
        self._sample(sizes[~lone], spans_ns, follows[~lone])

    @property
    def busy_ns(self) -> int:
        """The total busy time of the link so far."""
        return self._busy_ns

    @property
    def last_ns(self) -> int | None:
        """When the last message finished; None without messages."""
        return self._last_ns

    def bandwidth_bps(self) -> int | None:
        """The bandwidth as in ``estimate``, but faster: it uses the last call's message cost."""
        return _bps(self._bytes_per_ns(self._rates()))

    def estimate(self) -> Estimate:
        """The current estimate. Takes some milliseconds."""
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
            return quantile(rates, self._quantile)
        if len(rates) or len(self._lone) < 2 * _FEWEST_LONE:
            return None
        # Messages were sent one at a time, so the link was never busy, but durations grow with
        # sizes. If they do not, the durations have another cause.
        slope = fit_line(self._lone[:, 0], self._lone[:, 1])
        return 1 / slope if slope is not None and slope > _FASTEST_NS_PER_BYTE else None

    def _rates(self) -> Floats:
        """The rates of the complete samples, in bytes per nanosecond."""
        sample_bytes, busy_ns, messages = self._samples[:-1, :3].T
        cost_ns = self._cost_ns or 0.0
        return np.asarray(sample_bytes / np.maximum(busy_ns - cost_ns * messages, busy_ns / 2))

    def _delay_ns(self, bytes_per_ns: float | None) -> int | None:
        if bytes_per_ns is None or len(self._lone) < _FEWEST_LONE:
            return None
        rest_ns = self._lone[:, 1] - self._lone[:, 0] / bytes_per_ns - (self._cost_ns or 0.0)
        return max(0, round(median(rest_ns)))

    def _shortest_delay_ns(self) -> int:
        """The shortest time of a message on an idle link, without its bytes; 0 if not known.

        Small messages are used if there are any, because their time hardly depends on the
        bandwidth. The time for a message's bytes is computed from messages that followed one
        another immediately. Other messages are not used for that: with a window that is too small
        for the path, most of them wait for the window, and their times would fit any delay that is
        too short.
        """
        if not len(self._lone):
            return 0
        small = self._lone[:, 0] <= SMALL * float(self._lone[:, 0].max())
        lone = self._lone[small] if small.sum() >= _FEWEST_LONE else self._lone
        sample_bytes, busy_ns = self._samples[:-1, 3:].T
        moved = (busy_ns > 0) & (sample_bytes > 0)
        rates = sample_bytes[moved] / busy_ns[moved]
        pace = 1 / quantile(rates, 0.75) if len(rates) else np.inf
        delays_ns = lone[:, 1] - pace * lone[:, 0]
        return max(0, round(quantile(delays_ns, 0.1))) if np.isfinite(pace) else 0

    def _sample(self, sizes: Integers, spans_ns: Integers, follows: Booleans) -> None:
        """Adds busy stretches to the samples, and completes each sample that is long enough."""
        rows = (sizes, spans_ns, np.ones_like(sizes), sizes * follows, spans_ns * follows)
        until = np.zeros((1 + len(sizes), len(rows)))
        for place, column in enumerate(rows):
            until[1:, place] = column
        np.cumsum(until, axis=0, out=until)
        bytes_until, ns_until = until[:, 0].tolist(), until[:, 1].tolist()
        start = 0
        while start < len(sizes):
            has_bytes, has_ns, has_messages, _, _ = self._samples[-1].tolist()
            by_time = bisect_left(ns_until, ns_until[start] + SAMPLE_NS - has_ns)
            by_size = bisect_left(bytes_until, bytes_until[start] + SAMPLE_BYTES - has_bytes)
            by_size = max(by_size, bisect_left(ns_until, ns_until[start] + _LEAST_NS - has_ns))
            fewest = max(start + 1, start + _SAMPLE_MESSAGES - int(has_messages))
            stop = max(fewest, min(by_time, by_size))
            closes = stop <= len(sizes)
            stop = min(stop, len(sizes))
            self._samples[-1] += until[stop] - until[start]
            start = stop
            if closes:
                self._samples = np.concatenate((self._samples, np.zeros((1, len(rows)))))
                self._forget()

    def _forget(self) -> None:
        """Drops samples that are too old, or from before a change of the link."""
        done = self._samples[:-1]
        newer_ns = done[::-1, 1].cumsum() - done[::-1, 1]  # busy time after each, last first
        keep = max(FEWEST_SAMPLES, int((newer_ns < WINDOW_NS).sum()))
        latest = max(CHANGE_SAMPLES, 1 + int((newer_ns < CHANGE_NS).sum()))
        if _changed(done, latest):
            keep = latest
            messages = int(done[-keep:, 2].sum())
            self._gaps = self._gaps[-messages:]
            self._lone = self._lone[-_FEWEST_LONE:]
            self._cost_ns = None
        self._samples = self._samples[-1 - keep :]


def _changed(samples: Floats, count: int) -> bool:
    """Whether the link changed before the last ``count`` samples."""
    if len(samples) - count < CHANGE_SAMPLES:
        return False
    rates = samples[:, 0] / samples[:, 1]
    before, latest = rates[:-count], rates[-count:]
    middle = median(before)
    beyond = max(float(latest.min()) - middle, middle - float(latest.max()))
    return beyond > CHANGE * middle and beyond > 2 * spread(before)


def _appended(rows: Floats, sizes: Integers, times_ns: Integers, most: int) -> Floats:
    added = np.column_stack((sizes, times_ns)).astype(np.float64)
    return np.concatenate((rows, added))[-most:]


def _bps(bytes_per_ns: float | None) -> int | None:
    return None if bytes_per_ns is None else round(bytes_per_ns * 8e9)
