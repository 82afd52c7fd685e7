"""The network monitor of one worker: estimates bandwidth per server and direction.

    transfers ──► in order of acknowledgement ──► DirectionEstimate (push) ──┐
              └─► in order of arrival ──────────► DirectionEstimate (pull) ──┴► samples, links

*Push* is measured from acknowledgements. While several servers are busy, the result is each one's
share of the worker's link. *Pull* is measured from arrivals: an answer counts as waiting from the
acknowledgement of its own push on. In fact it may have waited for another worker, so pull bandwidth
is the upper quartile of samples, and a lower bound. ``links`` are the estimates of all servers
together, i.e. of the worker's own link if that is the bottleneck.

Threads: the observer's thread calls ``take`` and ``close``; any thread may call ``samples``,
``links`` and ``found``. One lock guards everything; ``close`` writes the file without it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from byteprophet.monitor.estimate import DirectionEstimate
from byteprophet.monitor.interface_check import InterfaceCheck, interface_of
from byteprophet.monitor.samples import DIRECTIONS, Sample, WorkerNetwork
from byteprophet.timeline.tables import TRANSFER, Transfers

_QUANTILE = {"push": 0.5, "pull": 0.75}
_FINISHED = {"push": "acked_ns", "pull": "pulled_ns"}
_STARTED = {"push": "sent_ns", "pull": "acked_ns"}
_MOST_HISTORY = 4096
_HISTORY_NS = 200_000_000
_LONGEST_HOLD_NS = 2_000_000_000
_LAGS = 32  # batches


class NetworkMonitor:
    """A consumer of the observer. ``run_directory`` None: nothing is written.

    ``address`` is the address from which this worker talks to servers. It determines the interface.
    """

    def __init__(self, rank: int, run_directory: Path | None, address: str | None = None) -> None:
        self._rank = rank
        self._run_directory = run_directory
        self._lock = threading.Lock()
        self._estimates: dict[tuple[int, str], DirectionEstimate] = {}
        self._links = {
            name: DirectionEstimate(_QUANTILE[name], one_path=False) for name in DIRECTIONS
        }
        self._acknowledged = _InOrder()
        self._history: dict[str, list[tuple[int, int, int]]] = {name: [] for name in DIRECTIONS}
        self._check = InterfaceCheck(interface_of(address))
        self._probe: tuple[Sample, ...] = ()
        self._probe_end_ns: int | None = None  # of a probe whose samples have not been stored yet
        self._keys: set[int] = set()

    def take(self, transfers: Transfers) -> None:
        """Adds completed transfers (TRANSFER), in order of completion."""
        with self._lock:
            if self._probe_end_ns is not None:
                probing = transfers["ready_ns"] <= self._probe_end_ns
                self._take(transfers[probing])
                transfers = transfers[~probing]
                if len(transfers):
                    self._end_probe()
            self._take(transfers)

    def close(self) -> None:
        """Adds transfers that were held back, and writes the file."""
        with self._lock:
            if self._probe_end_ns is not None:
                self._end_probe()
            self._add("push", self._acknowledged.rest())
            for direction in DIRECTIONS:
                self._note(direction)
        if self._run_directory is not None:
            self.found().write(self._run_directory)

    def samples(self) -> tuple[Sample, ...]:
        """The latest estimates, by server and direction."""
        with self._lock:
            return self._samples()

    def links(self) -> tuple[Sample, ...]:
        """The latest estimates of all servers together, per direction."""
        with self._lock:
            return tuple(
                _sample(None, direction, self._links[direction])
                for direction in DIRECTIONS
                if self._estimates
            )

    def probe_ended(self, now_ns: int) -> None:
        """Marks transfers that became ready until ``now_ns`` as a probe.

        Its samples are kept in addition to the later ones.
        """
        with self._lock:
            self._probe_end_ns = now_ns

    def found(self) -> WorkerNetwork:
        """All results."""
        samples, links = self.samples(), self.links()
        with self._lock:
            history = {name: list(rows) for name, rows in self._history.items()}
            return WorkerNetwork(
                self._rank, samples, links, self._check.report(), history, self._probe
            )

    def _samples(self) -> tuple[Sample, ...]:
        """REQUIRES: the lock is held."""
        return tuple(
            _sample(server, direction, estimate)
            for (server, direction), estimate in sorted(self._estimates.items())
        )

    def _end_probe(self) -> None:
        """REQUIRES: the lock is held."""
        self._add("push", self._acknowledged.rest())
        self._probe, self._probe_end_ns = self._samples(), None

    def _take(self, transfers: Transfers) -> None:
        """REQUIRES: the lock is held."""
        if not len(transfers):
            return
        known = self._known(transfers)
        if not known.all():  # a key's initialisation at the servers is not a transfer
            self._check.restart()
        else:
            for direction in DIRECTIONS:
                self._check.explain(direction, int(transfers["size_bytes"].sum()))
        transfers = transfers[known]
        self._add("pull", transfers[np.argsort(transfers["pulled_ns"])])
        self._add("push", self._acknowledged.add(transfers))
        for direction in DIRECTIONS:
            self._note(direction)
        self._check.look(time.monotonic_ns())

    def _known(self, transfers: Transfers) -> npt.NDArray[np.bool_]:
        """A mask of transfers whose key has been seen before.

        The first transfer of a key does not count: the server holds its answer until all workers
        have sent theirs. REQUIRES: the lock is held.
        """
        keys = transfers["key"].tolist()
        if self._keys.issuperset(keys):
            return np.ones(len(keys), np.bool_)
        known = []
        for key in keys:
            known.append(key in self._keys)
            self._keys.add(key)
        return np.array(known)

    def _add(self, direction: str, transfers: Transfers) -> None:
        """Feeds ``transfers`` to the estimates. They are in order of the direction's finish time.

        REQUIRES: the lock is held.
        """
        for server in np.unique(transfers["server"]).tolist():
            key = (server, direction)
            if key not in self._estimates:
                self._estimates[key] = DirectionEstimate(_QUANTILE[direction])
            _feed(self._estimates[key], direction, transfers[transfers["server"] == server])
        _feed(self._links[direction], direction, transfers)

    def _note(self, direction: str) -> None:
        """Adds the link's estimate and the time to the history. REQUIRES: the lock is held."""
        estimate, rows = self._links[direction], self._history[direction]
        bandwidth_bps, now_ns = estimate.bandwidth_bps(), estimate.last_ns
        if bandwidth_bps is None or now_ns is None:
            return
        if rows and now_ns < rows[-1][0] + _HISTORY_NS:
            return
        rows.append((now_ns, estimate.busy_ns, bandwidth_bps))
        if len(rows) > _MOST_HISTORY:  # a long job: drop every other row of the older half
            del rows[: len(rows) // 2 : 2]


class _InOrder:
    """Sorts transfers, which come in order of completion, by acknowledgement.

    A transfer is held back as long as one that was acknowledged earlier may still come. That is
    the longest recent time from acknowledgement to completion, but at most two seconds.
    """

    def __init__(self) -> None:
        self._held: list[Transfers] = []
        self._lags_ns: deque[int] = deque(maxlen=_LAGS)

    def add(self, transfers: Transfers) -> Transfers:
        if not len(transfers):
            return transfers
        self._lags_ns.append(int((transfers["pulled_ns"] - transfers["acked_ns"]).max()))
        self._held.append(transfers)
        held = np.concatenate(self._held)
        held = held[np.argsort(held["acked_ns"], kind="stable")]
        hold_ns = min(max(self._lags_ns), _LONGEST_HOLD_NS)
        ready = int(np.searchsorted(held["acked_ns"], transfers["pulled_ns"].max() - hold_ns))
        self._held = [held[ready:]]
        return held[:ready]

    def rest(self) -> Transfers:
        held, self._held = self._held, []
        return held[0] if held else np.zeros(0, TRANSFER)


def _sample(server: int | None, direction: str, estimate: DirectionEstimate) -> Sample:
    found = estimate.estimate()
    # Pulls have no delay: even an answer that is alone on the link has waited for other workers.
    return Sample(
        server, direction, found if direction == "push" else replace(found, delay_ns=None)
    )


def _feed(estimate: DirectionEstimate, direction: str, transfers: Transfers) -> None:
    estimate.add(
        transfers[_STARTED[direction]],
        transfers[_FINISHED[direction]],
        transfers["size_bytes"].astype(np.int64),
    )
