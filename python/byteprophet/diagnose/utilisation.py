"""Utilisation of workers, links and servers over time, in bins of equal width.

A bin's value is exact. Busy time that spans several bins is divided by its overlap with each, and
bytes are spread evenly over their stretch (``links.py``). So the bins sum to the busy time and the
bytes of the window.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from byteprophet.diagnose.computing import COMPUTED, computing
from byteprophet.diagnose.links import DIRECTIONS, carried
from byteprophet.diagnose.recorded import Ints, Recorded
from byteprophet.order_statistics import distinct
from byteprophet.workload.run_config import link_limits_bps

Floats = npt.NDArray[np.float64]

_MOST_BINS = 400
_SHORTEST_NS = 1_000_000


@dataclass(frozen=True)
class Utilisation:
    """Shapes: W workers, S servers, B bins from ``begin_ns`` to ``end_ns``.

    A bin is ``bin_ns`` long, and the last one perhaps shorter. ``compute`` (W, B): busy share.
    ``link_busy``, ``link_bytes``: by direction, (W, B): the share of the time in which anything was
    in flight, and the bytes; NaN if the worker recorded none of it. ``sums`` (S, B): mean number of
    a server's threads that sum. ``servers`` (S,): ranks of the servers that recorded. ``link_bps``
    (W,): configured payload rate; 0: no limit, or not known.
    """

    begin_ns: int
    end_ns: int
    bin_ns: int
    compute: Floats
    link_busy: dict[str, Floats]
    link_bytes: dict[str, Floats]
    sums: Floats
    servers: Ints
    link_bps: Ints

    def mean_rate_bps(self, direction: str) -> Floats:
        """Mean rate over the window, (W,)."""
        rates: Floats = self.link_bytes[direction].sum(axis=1) * 8e9 / self._window_ns
        return rates

    def busy_rate_bps(self, direction: str) -> Floats:
        """Mean rate while anything was in flight, (W,)."""
        busy_ns = (self.link_busy[direction] * self.widths_ns).sum(axis=1)
        rates: Floats = self.link_bytes[direction].sum(axis=1) * 8e9 / np.maximum(1, busy_ns)
        return rates

    def mean(self, shares: Floats) -> Floats:
        """The mean over the window of one of the shares above: from shape (n, B) to (n,)."""
        means: Floats = (shares * self.widths_ns).sum(axis=1) / self._window_ns
        return means

    @property
    def widths_ns(self) -> Ints:
        """The length of each bin, (B,)."""
        widths_ns: Ints = np.diff(_edges_ns(self.begin_ns, self.end_ns, self.bin_ns))
        return widths_ns

    @property
    def _window_ns(self) -> int:
        return self.end_ns - self.begin_ns


def utilisation(run: Recorded, bin_ns: int | None = None) -> Utilisation:
    """Utilisation over all measured iterations; ``bin_ns`` None: suitable for a picture."""
    begin_ns, end_ns = run.window_ns
    width_ns = bin_ns or max(_SHORTEST_NS, -(-(end_ns - begin_ns) // _MOST_BINS))
    edges_ns = _edges_ns(begin_ns, end_ns, width_ns)
    widths_ns = np.diff(edges_ns)
    shape = len(run.workers), len(edges_ns) - 1
    compute = np.full(shape, np.nan)
    busy_ns, link_bytes = (
        {direction: np.full(shape, np.nan) for direction in DIRECTIONS} for _ in range(2)
    )
    for worker, own in enumerate(run.workers):
        if len(own.spans):
            thread = computing(own)
            busy = np.isin(thread.kind, list(COMPUTED))
            compute[worker] = shared_out(thread.begin_ns[busy], thread.end_ns[busy], edges_ns)
        for direction in DIRECTIONS if len(own.transfers) else ():
            link = carried(run, worker, direction)
            busy_ns[direction][worker] = shared_out(link.begin_ns, link.end_ns, edges_ns)
            link_bytes[direction][worker] = shared_out(
                link.begin_ns, link.end_ns, edges_ns, link.size_bytes.astype(np.float64)
            )
    servers = distinct(run.server)
    return Utilisation(
        begin_ns=begin_ns,
        end_ns=end_ns,
        bin_ns=width_ns,
        compute=compute / widths_ns,
        link_busy={name: times / widths_ns for name, times in busy_ns.items()},
        link_bytes=link_bytes,
        sums=_sums(run, servers, edges_ns) / widths_ns,
        servers=servers,
        link_bps=link_rates_bps(run),
    )


def _edges_ns(begin_ns: int, end_ns: int, width_ns: int) -> Ints:
    """Between which bins lie, shape (B + 1,)."""
    edges_ns: Ints = np.minimum(np.arange(begin_ns, end_ns + width_ns, width_ns), end_ns)
    return edges_ns


def shared_out(
    begins_ns: Ints, ends_ns: Ints, edges_ns: Ints, amounts: Floats | None = None
) -> Floats:
    """Spread each stretch's ``amounts`` (by default its length) over the bins that it overlaps.

    What lies outside the edges is left out.
    """
    amounts = (ends_ns - begins_ns).astype(np.float64) if amounts is None else amounts
    bins = np.zeros(len(edges_ns) - 1)
    last = np.searchsorted(edges_ns, ends_ns, "left") - 1
    first = np.minimum(last, np.searchsorted(edges_ns, begins_ns, "right") - 1)
    within = (first == last) & (first >= 0) & (last < len(bins))
    np.add.at(bins, first[within], amounts[within])
    across = np.flatnonzero((first < last) & (first < len(bins)) & (last >= 0))
    low, high = np.maximum(0, first[across]), np.minimum(len(bins) - 1, last[across])
    # One entry for each bin that one of these reaches into.
    count = high - low + 1
    stretch = np.repeat(across, count)
    reached = np.arange(len(stretch)) + np.repeat(high + 1 - np.cumsum(count), count)
    begin_ns, end_ns = begins_ns[stretch], ends_ns[stretch]
    passed = [
        (np.clip(edges, begin_ns, end_ns) - begin_ns) / (end_ns - begin_ns)
        for edges in (edges_ns[reached], edges_ns[reached + 1])
    ]
    np.add.at(bins, reached, amounts[stretch] * (passed[1] - passed[0]))
    return bins


def link_rates_bps(run: Recorded) -> Ints:
    """Configured payload rates, (W,); 0: no limit, not known, or changed during the run."""
    limits_bps = dict(enumerate(link_limits_bps(run.config) if run.config else ()))
    return np.array([limits_bps.get(worker.rank) or 0 for worker in run.workers], np.int64)


def _sums(run: Recorded, servers: Ints, edges_ns: Ints) -> Floats:
    """Time of summing, per server and bin; one pass may sum two pushes."""
    bins = np.zeros((len(servers), len(edges_ns) - 1))
    for place, server in enumerate(servers.tolist()):
        rows = run.served[run.server == server]
        passes = distinct(rows[["key", "sum_begin_ns", "sum_end_ns"]])
        known = passes[(passes["sum_begin_ns"] > 0) & (passes["sum_end_ns"] > 0)]
        bins[place] = shared_out(known["sum_begin_ns"], known["sum_end_ns"], edges_ns)
    return bins
